"""Certificates for tests: a CA, what it issues, and the files that a server reads."""

from __future__ import annotations

import datetime
import ssl
from pathlib import Path
from typing import NamedTuple

import trustme

NAME = "gpu-extender.gpu-extender-system.svc"
CLIENT = "kube-scheduler"


class Files(NamedTuple):
    """In PEM, as they are mounted."""

    cert: Path
    key: Path
    ca: Path

    def tls(self, *names: str, clients: bool = True) -> dict[str, object]:
        """The settings of a listener with them. `names`: of clients; `clients`: whether it asks for certificates."""
        made: dict[str, object] = {"certFile": str(self.cert), "keyFile": str(self.key)}
        return made | ({"clientCaFile": str(self.ca), "clientNames": list(names)} if clients else {})


def written(folder: Path, issued: trustme.LeafCert, ca: trustme.CA) -> Files:
    """The files of a certificate and of a CA, in an existing folder or a new one."""
    folder.mkdir(exist_ok=True)
    files = Files(folder / "tls.crt", folder / "tls.key", folder / "ca.crt")
    for file, content in zip(files, (_chain(issued), issued.private_key_pem.bytes(), ca.cert_pem.bytes()), strict=True):
        file.write_bytes(content)
    return files


def _chain(issued: trustme.LeafCert) -> bytes:
    return b"".join(blob.bytes() for blob in issued.cert_chain_pems)


def serving(ca: trustme.CA) -> trustme.LeafCert:
    """The server's certificate, for its Service and for loopback."""
    return ca.issue_cert(NAME, "127.0.0.1")


def client(ca: trustme.CA, name: str = CLIENT, *, expired: bool = False) -> trustme.LeafCert:
    """A client's certificate with a common name."""
    now = datetime.datetime.now(datetime.UTC)
    since, until = (2, -1) if expired else (1, 1)
    return ca.issue_cert(
        f"{name}.example",
        common_name=name,
        not_before=now - datetime.timedelta(days=since),
        not_after=now + datetime.timedelta(days=until),
    )


def trusting(ca: trustme.CA, own: trustme.LeafCert | None = None) -> ssl.SSLContext:
    """What a client connects with. `own`: its certificate."""
    context = ssl.create_default_context()
    ca.configure_trust(context)
    if own is not None:
        own.configure_cert(context)
    return context
