"""Which requests of a browser are answered: none that a site of another name sends."""

from __future__ import annotations

from typing import Any

import pytest

from extender.server.gate import ours
from extender.settings import Settings
from tests.world import World

OURS = (
    *("127.0.0.1:8888", "localhost", "LocalHost:8888", "[::1]:8888", "10.0.0.7", "page.localhost:1", "extender:8888"),
    *("extender.kube-system.svc:8888", "extender.kube-system.svc.cluster.local", "gpus.example.com", "127.0.0.1."),
)  # fmt: skip
OTHERS = (
    *("evil.example", "127.0.0.1.evil.example", "localhost.evil.example:8888", "evil.svc.example", "example.com"),
    *("", ":8888", "user@localhost", "localhost@evil.example", "[::1", "[evil.example]", "127.0.0.1, evil.example"),
    *("gpus.example.com.evil.example", "localhost/../evil.example", "1.evil.example#localhost", "::ffff:1.2.3.4.evil"),
)  # fmt: skip


@pytest.mark.parametrize("host", OURS)
def test_names_that_are_ours(host: str) -> None:
    assert ours(host, {"gpus.example.com"})


@pytest.mark.parametrize("host", OTHERS)
def test_names_that_are_of_others(host: str) -> None:
    assert not ours(host, {"gpus.example.com"})


def world(**server: Any) -> World:
    return World(Settings.model_validate({"server": server}))


PATHS = ("/", "/.json", "/pod?pod=a/b", "/live", "/debug/state", "/debug/decisions", "/debug/map")


@pytest.mark.parametrize("path", PATHS)
def test_a_site_whose_name_resolves_here_reads_nothing(path: str) -> None:
    reply = as_host(world(), path, "evil.example:8888")
    assert reply.status == 421
    assert reply.json["error"]["code"] == "unknown-host"


def test_a_question_is_guarded_too() -> None:
    assert world().call("/debug/whatif", b"{}", host="evil.example:8888").status == 421


def test_a_name_of_the_settings_is_ours() -> None:
    assert as_host(world(), "/", "gpus.example.com").status == 421
    assert as_host(world(hosts=["GPUs.example.com"]), "/", "gpus.example.com:443").status == 200
    made = world(host="extender.example.com", allow_unprotected=True)
    assert as_host(made, "/", "extender.example.com").status == 200


def test_probes_are_answered_by_any_name_and_metrics_beside_the_verbs_by_ours() -> None:
    for path in ("/healthz", "/livez", "/readyz"):
        assert as_host(world(), path, "kubelet.example").status == 200
    assert as_host(world(), "/metrics", "evil.example").status == 421
    assert as_host(world(), "/metrics", "10.0.0.7:8888").status == 200
    assert as_host(world(hosts=["prometheus.example"]), "/metrics", "prometheus.example").status == 200


def as_host(world: World, path: str, host: str) -> Any:
    return world.call(path, method="GET", host=host)
