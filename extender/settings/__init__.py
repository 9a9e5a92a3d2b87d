"""The settings file: versioned, strict, read once, frozen.

YAML or JSON, `apiVersion: gpu-extender.io/v1`, `kind: GpuExtenderConfiguration`. Every field has a default, so an
empty file is a valid one. A field that is unknown, repeated, of the wrong type or out of range rejects the file: a
server that runs with half of what was meant is worse than one that does not start. All problems are reported at once.

The names of scorers and cost terms are checked against the registries, which the caller passes in (`Known`): they
stand above this package. docs/settings.md is printed by `python -m tests.pages`.
"""

from extender.settings.fields import (
    ClaimBounds,
    ClaimSettings,
    DecisionSettings,
    FailingNodes,
    Hold,
    Known,
    LimitSettings,
    ListenerSettings,
    Mix,
    Placement,
    PreemptionSettings,
    Queue,
    QueueLimits,
    Record,
    ReservationSettings,
    ResourceSettings,
    ServerSettings,
    Settings,
    Shortlist,
    Tls,
    WatchSettings,
)
from extender.settings.reading import override_server, parse_settings, read_settings

__all__ = [
    "ClaimBounds", "ClaimSettings", "DecisionSettings", "FailingNodes", "Hold", "Known", "LimitSettings",
    "ListenerSettings", "Mix", "Placement", "PreemptionSettings", "Queue", "QueueLimits", "Record",
    "ReservationSettings", "ResourceSettings", "ServerSettings", "Settings", "Shortlist", "Tls", "WatchSettings",
    "override_server", "parse_settings", "read_settings",
]  # fmt: skip
