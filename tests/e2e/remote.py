"""gpu-extender over mTLS: the files that both ends read, and calls as kube-scheduler makes them."""

from __future__ import annotations

import http.client
import json
import os
import ssl
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import trustme

from tests.e2e.extender_process import extender_entry
from tests.e2e.kustomize import MANIFESTS
from tests.server.certificate_files import CLIENT, Files, client, trusting

NAME = "gpu-extender.gpu-extender-system.svc"
PARTS = ("tls.crt", "tls.key", "ca.crt")


class Issued:
    """What `manifests/remote/certificates` makes, as kubelet mounts it: links to a folder that is replaced at once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._number = 0
        (folder / "made").mkdir(parents=True)
        self.server, self.client = (self._linked(name) for name in ("server", "client"))
        self.renew()
        made = folder / "made"
        self.ca = trustme.CA.from_pem((made / "ca.crt").read_bytes(), (made / "ca.key").read_bytes())

    def renew(self) -> None:
        """New certificates of the same CA for both ends."""
        subprocess.run([MANIFESTS / "remote" / "certificates", self._folder / "made"], check=True, timeout=60)
        self._number += 1
        for name in ("server", "client"):
            data = self._folder / name / f"..{self._number}"
            data.mkdir()
            for part in PARTS:
                (data / part).write_bytes((self._folder / "made" / name / part).read_bytes())
            new = self._folder / name / "..new"
            new.symlink_to(data.name)
            os.replace(new, self._folder / name / "..data")

    def arguments(self, port: int, plain: int) -> list[str]:
        """Of `gpu-extender serve`: verbs over TLS on `port`, metrics in plain HTTP on `plain`."""
        return [
            f"--port={port}",
            f"--tls-cert-file={self.server.cert}",
            f"--tls-private-key-file={self.server.key}",
            f"--client-ca-file={self.server.ca}",
            f"--metrics-port={plain}",
        ]

    def _linked(self, name: str) -> Files:
        folder = self._folder / name
        folder.mkdir()
        for part in PARTS:
            (folder / part).symlink_to(f"..data/{part}")
        return Files(*(folder / part for part in PARTS))


def entry(port: int, files: Files, **changes: Any) -> dict[str, Any]:
    """The `extenders` entry of a kube-scheduler that shows the certificate of `files`."""
    tls = {"serverName": NAME, "caFile": str(files.ca), "certFile": str(files.cert), "keyFile": str(files.key)}
    return extender_entry(f"https://127.0.0.1:{port}", enableHTTPS=True, tlsConfig=tls, **changes)


class Caller:
    """Calls prioritize without a pause: some on a kept connection, then on a new one. `failures`: what went wrong."""

    def __init__(self, port: int, context: ssl.SSLContext, body: Mapping[str, Any]) -> None:
        self.calls = 0
        self.serials: set[str] = set()
        """Of the server's certificates that were shown."""
        self.failures: list[BaseException] = []
        self._port, self._context, self._body = port, context, json.dumps(body)
        self._ended = threading.Event()

    @contextmanager
    def calling(self) -> Iterator[None]:
        """In a thread of its own, while the block runs."""
        thread = threading.Thread(target=self._run, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._ended.set()
            thread.join(30)

    def _run(self) -> None:
        while not self._ended.is_set():
            connection = http.client.HTTPSConnection("127.0.0.1", self._port, context=self._context, timeout=30)
            try:
                for _ in range(10):
                    connection.request("POST", "/v1/prioritize", self._body)
                    reply = connection.getresponse()
                    reply.read()
                    assert reply.status == 200
                    self.calls += 1
                shown = connection.sock.getpeercert() if isinstance(connection.sock, ssl.SSLSocket) else None
                self.serials.add(str((shown or {})["serialNumber"]))
            except (OSError, AssertionError, http.client.HTTPException) as error:
                self.failures.append(error)
            finally:
                connection.close()


def caller(port: int, ca: trustme.CA, body: Mapping[str, Any]) -> Caller:
    """With a certificate of its own of the same CA."""
    return Caller(port, trusting(ca, client(ca, CLIENT)), body)
