"""The lines of one watch."""

from __future__ import annotations

from typing import Final

from extender.kube.watch.decoder import Relist

LONGEST_LINE: Final = 2**25  # bytes; etcd takes objects of 1.5 MiB


class Lines:
    """Bytes in, whole lines out. `last`: when the last bytes came, seconds."""

    def __init__(self) -> None:
        self.last = 0.0
        self._rest = b""

    def whole(self, chunk: bytes, now: float) -> list[bytes]:
        """The lines that `chunk` ends, without their ends. Relist: one that is too long."""
        self.last = now
        *lines, self._rest = (self._rest + chunk).split(b"\n") if b"\n" in chunk else (self._rest + chunk,)
        if len(self._rest) > LONGEST_LINE:
            raise Relist(f"a watch line of more than {LONGEST_LINE} bytes")
        return lines
