"""When certificates expire. The standard library reads no date of a certificate that it serves."""

from __future__ import annotations

import re
import ssl
from datetime import UTC, datetime
from typing import Final

PEM: Final = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
SEQUENCE, VERSION, UTC_TIME, GENERALIZED_TIME = 0x30, 0xA0, 0x17, 0x18  # tags of DER (X.690)
LONG: Final = 0x80
"""Bit of a length that is stated in the bytes after it."""


def not_after(text: str) -> float | None:
    """When the first certificate in a PEM text expires, seconds since 1970; None: it has none that can be read."""
    found = [time for part in PEM.findall(text) if (time := _of_certificate(part)) is not None]
    return min(found, default=None)


def _of_certificate(pem: str) -> float | None:
    """Its validity's second time: Certificate > TBSCertificate > [version], serial number, signature, issuer, validity
    (RFC 5280, 4.1)."""
    try:
        signed, _ = _value(ssl.PEM_cert_to_DER_cert(pem), SEQUENCE)
        parts, _ = _value(signed, SEQUENCE)
        if parts[0] == VERSION:
            _, parts = _value(parts, VERSION)
        for _ in range(3):
            _, parts = _value(parts, parts[0])
        validity, _ = _value(parts, SEQUENCE)
        _, end = _value(validity, validity[0])
        time, _ = _value(end, end[0])
        return _seconds(end[0], time.decode("ascii"))
    except (ValueError, IndexError):
        return None


def _value(der: bytes, tag: int) -> tuple[bytes, bytes]:
    """(the content of the first element, what follows it). ValueError: it has another tag, or is cut off."""
    length, start = der[1], 2
    if length & LONG:
        start += length & ~LONG
        length = int.from_bytes(der[2:start], "big")
    if der[0] != tag or len(der) < start + length:
        raise ValueError(tag)
    return der[start : start + length], der[start + length :]


def _seconds(tag: int, text: str) -> float:
    """Both times end in Z. ValueError: it is no such time. A year of two digits is 1950 to 2049."""
    if tag == UTC_TIME:
        text = ("19" if text[:2] >= "50" else "20") + text
    elif tag != GENERALIZED_TIME:
        raise ValueError(tag)
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()
