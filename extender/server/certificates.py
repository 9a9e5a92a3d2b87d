"""The certificates of a listener: read again when their files change, or made, and made again before they expire."""

from __future__ import annotations

import asyncio
import os
import re
import ssl
import sys
import tempfile
import time
import warnings
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import IO, Any, Final

from extender.act.controller import Controller
from extender.errors import BadInput
from extender.log import Allowance, get_log
from extender.metrics import Metrics
from extender.settings import Tls

LOOK_SECONDS: Final = 2.0
"""Between two looks at the files. It reads no file: a change shows in their times, sizes and inodes."""
VALID_SECONDS: Final = 365 * 86_400.0
"""Of a certificate that is made."""
RENEWED_SECONDS: Final = VALID_SECONDS / 2
_Seen = tuple[tuple[int, int, int] | None, ...]
log = get_log()


class Certificates(Controller):
    """TLS 1.3 for the connections of a listener. `context`: for the server socket, as long as the process runs.

    Each handshake takes the certificates that were read last. They are read into a context of their own: a pair that
    does not match, half of an update, leaves the one before in use, and a CA that was removed is trusted no more.
    Connections that are open stay open.
    """

    name = "certificates"

    def __init__(self, tls: Tls, metrics: Metrics) -> None:
        """BadInput: a file cannot be used."""
        self._tls, self._metrics = tls, metrics
        self._allowance = Allowance()
        self._files = tuple(file for file in (tls.cert_file, tls.key_file, tls.client_ca_file) if file)
        self._source = ", ".join(self._files) or "selfSigned"
        self._seen, self._read_at = self._look(), time.time()
        try:
            self._latest = _read(tls)
            self.context = _read(tls)
        except (OSError, ValueError) as error:
            raise BadInput(f"no certificate can be used: {error}", path=self._source) from error
        self._ends: dict[str, float] = {}
        self._expired: set[str] = set()
        self._state_ends()
        self.check_ends()
        self.context.sni_callback = self._choose
        self.context.sslobject_class = self._connections()

    def _choose(self, connection: Any, name: str | None, context: ssl.SSLContext) -> None:
        """OpenSSL calls it in each handshake, also where the client names no server."""
        connection.context = self._latest

    def _connections(self) -> type[ssl.SSLObject]:
        rejected = self._rejected

        class Reported(ssl.SSLObject):
            """The event loop closes a connection whose handshake fails, and names no reason to either side."""

            def do_handshake(self) -> None:
                try:
                    super().do_handshake()
                except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                    raise
                except ssl.SSLError as error:
                    rejected(error)
                    raise

        return Reported

    def _rejected(self, error: ssl.SSLError) -> None:
        self._metrics.handshakes_failed.inc()
        left_out = self._allowance.take(time.monotonic())
        if left_out is not None:
            log.warning("a client was rejected, or rejected us", err=str(error), left_out=left_out)

    async def run(self) -> None:
        """Read the files when they have changed, for ever."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self.refresh()
            self.check_ends()

    def refresh(self) -> None:
        """Read the files if they have changed since the last look; make a certificate if the one made before is old."""
        seen = self._look()
        old = not self._tls.cert_file and time.time() - self._read_at >= RENEWED_SECONDS
        if seen == self._seen and not old:
            return
        self._read_at = time.time()
        self._seen = seen  # before they are read: what changes meanwhile is read at the next look
        try:
            self._latest = _read(self._tls)
        except (OSError, ValueError) as error:
            self._metrics.certificate_reads.labels("failed").inc()
            problem = f"{self._source}: new ones cannot be used, those before stay: {error}"
            self._metrics.degraded.note("certificates", problem, self._source)
            log.error("new certificates cannot be used; the ones before stay", files=self._files, err=str(error))
        else:
            self._metrics.certificate_reads.labels("ok").inc()
            self._metrics.degraded.note("certificates", "", self._source)
            self._state_ends()
            log.info("new certificates are used", files=self._files)

    def _state_ends(self) -> None:
        """In the metrics: when what is used now expires."""
        for file in (self._tls.cert_file, self._tls.client_ca_file):
            if not file:
                continue
            try:
                end = not_after(Path(file).read_text(encoding="ascii", errors="replace"))
            except OSError:  # it was replaced at this moment: the next look reads it
                continue
            if end is not None:
                self._ends[file] = end
                self._metrics.certificate_not_after.labels(file).set(end)

    def check_ends(self) -> None:
        """State which certificates have expired: clients reject them, or we reject clients. They may be read so, since
        the next ones come by the same files."""
        now = time.time()
        for file, end in self._ends.items():
            expired = end <= now
            if expired == (file in self._expired):
                continue
            at = datetime.fromtimestamp(end, UTC).isoformat(timespec="seconds")
            problem = f"{file} expired at {at}" if expired else ""
            self._metrics.degraded.note("certificates", problem, f"the end of {file}")
            if expired:
                self._expired.add(file)
                log.error("a certificate has expired: replace the file", file=file, expired=at)
            else:
                self._expired.discard(file)
                log.info("the certificate is valid again", file=file)

    def _look(self) -> _Seen:
        return tuple(_state(file) for file in self._files)


def _state(file: str) -> tuple[int, int, int] | None:
    try:
        status = os.stat(file)  # of the file behind the links that kubelet replaces
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino, status.st_size


def _read(tls: Tls) -> ssl.SSLContext:
    """A context of the files as they are now. OSError (ssl.SSLError is one), ValueError."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=tls.client_ca_file or None)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED if tls.client_ca_file else ssl.CERT_NONE
    context.num_tickets = 0  # a resumed session would not show its client certificate again
    context.set_alpn_protocols(["http/1.1"])
    if tls.cert_file:
        context.load_cert_chain(tls.cert_file, tls.key_file, password="")  # never ask for one on a terminal
    else:
        load_self_signed(context, time.time(), VALID_SECONDS)
    return context


def common_names(connection: ssl.SSLObject) -> set[str]:
    """The common names in the subject of the client's certificate, which is verified; empty without one."""
    subject: Any = (connection.getpeercert() or {}).get("subject", ())
    return {value for part in subject for key, value in part if key == "commonName"}


# -- when they expire. The library is imported where it is used: it takes 10 MiB, and a server without TLS needs none

PEM: Final = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)


def not_after(text: str) -> float | None:
    """When the first certificate in a PEM text expires, seconds since 1970; None: it has none that can be read."""
    return min(filter(None, map(_end_of, PEM.findall(text))), default=None)


def _end_of(pem: str) -> float | None:
    from cryptography import x509

    try:
        with warnings.catch_warnings(action="ignore"):  # of what a later version of the library rejects
            return x509.load_pem_x509_certificate(pem.encode()).not_valid_after_utc.timestamp()
    except (ValueError, x509.InvalidVersion):
        return None


# -- those that the server makes for itself ---------------------------------------------------------------------------

# As kube-scheduler does where it is given none. Such a certificate encrypts; a client has no CA to verify it by.

NAME: Final = "gpu-extender"
SKEW: Final = timedelta(hours=1)
"""So much earlier it is valid: the clock of a client may be behind."""


def load_self_signed(context: ssl.SSLContext, now: float, seconds: float) -> None:
    """Give the context a new key with its certificate. `now`: seconds since 1970; `seconds`: how long it is valid."""
    pem = self_signed(now, seconds)
    with _file() as file:  # the module ssl reads certificates from files alone
        file.write(pem)
        file.flush()
        context.load_cert_chain(file.name if isinstance(file.name, str) else f"/proc/self/fd/{file.name}")


def self_signed(now: float, seconds: float) -> bytes:
    """A key and its certificate, in PEM."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    key, since = ec.generate_private_key(ec.SECP256R1()), datetime.fromtimestamp(now, UTC)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, NAME)])
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(since - SKEW)
        .not_valid_after(since + timedelta(seconds=seconds))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(NAME)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    )
    certificate = builder.sign(key, hashes.SHA256())
    encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    private = key.private_bytes(encoding, form, serialization.NoEncryption())
    return private + certificate.public_bytes(encoding)


def _file() -> IO[bytes]:
    """For a moment: on Linux in memory, so that no key is written to a disk."""
    if sys.platform == "linux":
        return os.fdopen(os.memfd_create(NAME), "wb")
    return tempfile.NamedTemporaryFile()
