"""Twin of `ext_core.nics`."""

from __future__ import annotations

from collections.abc import Sequence

from tests.reference.device_plugin import Gpus


def matched(gpus: Gpus, nics: Sequence[int]) -> int:
    """The most of `gpus` that can each have one of `nics` (sets of GPUs) alone: every way to give them out is tried."""
    if not gpus or not nics:
        return 0
    near, rest = nics[0], nics[1:]
    kept = [1 + matched(tuple(gpu for gpu in gpus if gpu != one), rest) for one in gpus if near >> one & 1]
    return max(kept, default=0) if kept else matched(gpus, rest)
