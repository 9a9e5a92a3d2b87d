"""Several listeners: each serves what is its own, and the default serves all."""

from __future__ import annotations

import argparse
import socket
from collections.abc import Mapping
from typing import Any

import pytest

from extender.cli.options import add_address, settings_of
from extender.errors import BadSettings
from extender.server.serve import Host, listeners
from extender.settings import Known, Settings, Tls, parse_settings
from tests import plain
from tests.server.served import serving
from tests.world import World, workload

HEAD = "apiVersion: gpu-extender.io/v1\nkind: GpuExtenderConfiguration\n"
KNOWN = Known(scorers=(), costs=())
PATHS = ("/metrics", "/", "/debug/state", "/healthz", "/readyz", "/livez")
PROBES = {"/healthz", "/readyz", "/livez"}


def answered(port: int) -> set[str]:
    """The paths that a listener serves, and the verb filter."""
    with plain.client(base_url=f"http://127.0.0.1:{port}") as http:
        found = {path for path in PATHS if http.get(path).status_code == 200}
        reply = http.post("/v1/filter", json={"Pod": workload("p", 1), "NodeNames": ["m"]})
        assert reply.status_code in (200, 404)
        return found | ({"filter"} if reply.status_code == 200 else set())


@pytest.mark.parametrize(
    ("server", "expected"),
    [
        ({}, [{*PATHS, "filter"}]),
        ({"metrics": {"port": 0}}, [{*PATHS, "filter"} - {"/metrics"}, {"/metrics", *PROBES}]),
        ({"debug": {"port": 0}}, [{"/metrics", "filter", *PROBES}, {*PATHS} - {"/metrics"}]),
        (
            {"metrics": {"port": 0}, "debug": {"port": 0}},
            [{"filter", *PROBES}, {"/metrics", *PROBES}, {*PATHS} - {"/metrics"}],
        ),
    ],
)
def test_each_listener_serves_its_own(server: Mapping[str, Any], expected: list[set[str]]) -> None:
    with serving(server) as served:
        assert [answered(port) for port in served.ports] == expected


TLS = "{certFile: c, keyFile: k, clientCaFile: a}"


@pytest.mark.parametrize(
    ("server", "problem"),
    [
        ("{host: 0.0.0.0}", "answers verbs on 0.0.0.0 to everyone: set tls.clientCaFile"),
        ("{host: '::'}", "answers verbs on :: to everyone"),
        ("{host: gpu-extender.example}", "answers verbs on gpu-extender.example to everyone"),
        ("{host: 10.1.2.3, tls: {certFile: c, keyFile: k}}", "answers verbs on 10.1.2.3 to everyone"),
        ("{metrics: {host: 0.0.0.0, port: 1}}", "serves metrics on 0.0.0.0 to everyone: set metrics.authorize"),
        ("{debug: {host: 0.0.0.0, port: 1, authorize: true}}", "serves debug on 0.0.0.0 to everyone"),
        ("{metrics: {host: '', port: 1, authorize: true}}", "serves metrics on all addresses to everyone"),
        ("{metrics: {host: '', port: 1, tls: {selfSigned: true}}}", "serves metrics on all addresses to everyone"),
        ("{host: 0.0.0.0, tls: {selfSigned: true}}", "answers verbs on 0.0.0.0 to everyone"),
        ("{debug: {host: 0.0.0.0, port: 1, tls: {certFile: c, keyFile: k}}}", "serves debug on 0.0.0.0 to everyone"),
        ("{tls: {certFile: c}}", "has one of certFile and keyFile without the other"),
        ("{tls: {clientCaFile: a}}", "has a clientCaFile without a certFile or selfSigned"),
        ("{tls: {certFile: c, keyFile: k, clientNames: [n]}}", "has clientNames without a clientCaFile"),
        ("{metrics: {tls: {certFile: c, keyFile: k}}}", "has tls without a port"),
        ("{metrics: {tls: {selfSigned: true}}}", "has tls without a port"),
    ],
)
def test_a_listener_without_protection_is_rejected(server: str, problem: str) -> None:
    with pytest.raises(Exception, match="rejected") as error:
        parse_settings(f"{HEAD}server: {server}\n", KNOWN)
    assert problem in str(error.value)


@pytest.mark.parametrize(
    "server",
    [
        "{host: 127.0.0.2}",
        "{host: '::1'}",
        "{host: localhost}",
        f"{{host: 0.0.0.0, tls: {TLS}}}",
        "{host: 0.0.0.0, allowUnprotected: true}",
        f"{{metrics: {{host: 0.0.0.0, port: 1, tls: {TLS}}}}}",
        "{debug: {host: 0.0.0.0, port: 1, authorize: true, tls: {certFile: c, keyFile: k}}}",
        "{metrics: {host: '', port: 1, authorize: true, tls: {selfSigned: true}}}",
        "{debug: {host: 0.0.0.0}}",  # it has no listener of its own
    ],
)
def test_a_listener_with_protection_is_accepted(server: str) -> None:
    parse_settings(f"{HEAD}server: {server}\n", KNOWN)


def overridden(*words: str) -> Settings:
    parser = argparse.ArgumentParser()
    add_address(parser)
    return settings_of(parser.parse_args(words))


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--host=0.0.0.0"], "server: answers verbs on 0.0.0.0 to everyone"),
        (["--debug-host=0.0.0.0", "--debug-port=0"], "server: serves debug on 0.0.0.0 to everyone"),
        (["--tls-cert-file=c"], "server.tls: has one of certFile and keyFile"),
    ],
)
def test_flags_are_checked_as_the_file_is(words: list[str], problem: str) -> None:
    with pytest.raises(BadSettings) as error:
        overridden(*words)
    assert f"the command line is rejected:\n  {problem}" in str(error.value)


def test_flags_override_the_file() -> None:
    assert overridden() == Settings()
    assert overridden("--host=0.0.0.0", "--allow-unprotected").server.host == "0.0.0.0"
    files = ["--tls-cert-file=c", "--tls-private-key-file=k", "--client-ca-file=a"]
    debug = ["--debug-host=127.0.0.2", "--debug-port=2", "--debug-authorize", "--debug-client-ca-file=b"]
    more = ["--debug-tls-cert-file=d", "--debug-tls-private-key-file=e"]
    made = overridden("--host=0.0.0.0", *files, "--metrics-port=1", *debug, *more).server
    assert made.tls == Tls(cert_file="c", key_file="k", client_ca_file="a")
    assert made.debug.tls == Tls(cert_file="d", key_file="e", client_ca_file="b")
    assert (made.metrics.authorize, made.debug.authorize) == (False, True)
    assert (made.metrics.port, made.debug.port, made.debug.host) == (1, 2, "127.0.0.2")
    assert made.apart == ("metrics", "debug")
    open_to_all = overridden("--metrics-host=", "--metrics-port=1", "--metrics-tls-self-signed", "--metrics-authorize")
    assert (open_to_all.server.metrics.host, open_to_all.server.metrics.tls) == ("", Tls(self_signed=True))


def test_a_port_in_use_ends_the_server_and_leaves_none_open() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        settings = Settings.model_validate({"server": {"port": 0, "debug": {"port": taken.getsockname()[1]}}})
        world = World(settings)
        host = Host(listeners(world.server, settings))
        with pytest.raises(SystemExit) as end:
            host.run()
        assert end.value.code == 3
        assert not host.started
        assert not any(one.sockets for one in host.servers)
