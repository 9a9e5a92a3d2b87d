"""A certificate that the server makes for itself, as kube-scheduler does where it is given none.

It encrypts; a client has no CA to verify it by.
"""

from __future__ import annotations

import os
import ssl
import sys
import tempfile
from datetime import UTC, datetime, timedelta
from typing import IO, Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

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
