"""Reason codes: one struct for each kernel that rejects nodes, made once by the class of the rule.

A code is 1 to 255; 0 in a reason column stands for a node that is not rejected. The core knows codes only: what they
mean to people is the caller's. ValueError: a code 0; OverflowError: a code beyond 255.
"""

from typing_extensions import disjoint_base

@disjoint_base
class ResourceCodes:
    """Of `fit.resource`."""

    def __new__(cls, none: int, away: int) -> ResourceCodes:
        """`none`: the node does not have the resource; `away`: its device plugin may be back soon."""
    @property
    def none(self) -> int: ...
    @property
    def away(self) -> int: ...

@disjoint_base
class CountCodes:
    """Of `fit.count`; the first that holds is written."""

    def __new__(cls, few: int, assumed: int, reserved: int, releasing: int, busy: int, held: int) -> CountCodes:
        """`few`: the node does not have that many GPUs. `assumed`: without the claims of assumed pods the pod fits.
        `reserved`: without any claims. `releasing`: after terminating pods have terminated. `busy`: after the eviction
        of every pod that may be a victim, assumed ones too. `held`: not even then.
        """
    @property
    def few(self) -> int: ...
    @property
    def assumed(self) -> int: ...
    @property
    def reserved(self) -> int: ...
    @property
    def releasing(self) -> int: ...
    @property
    def busy(self) -> int: ...
    @property
    def held(self) -> int: ...

@disjoint_base
class LinkCodes:
    """Of `fit.links`; the first that holds is written."""

    def __new__(cls, unknown: int, never: int, pending: int, busy: int, held: int) -> LinkCodes:
        """`unknown`: the links of the node are unknown. `never`: not even the empty node is certain. `pending`: an
        admission under way hides positions. `busy`: the eviction of every pod that may be a victim makes it certain.
        `held`: not even that.
        """
    @property
    def unknown(self) -> int: ...
    @property
    def never(self) -> int: ...
    @property
    def pending(self) -> int: ...
    @property
    def busy(self) -> int: ...
    @property
    def held(self) -> int: ...

@disjoint_base
class NicCodes:
    """Of `fit.nics`; the first that holds is written."""

    def __new__(cls, unknown: int, never: int, pending: int, held: int) -> NicCodes:
        """`unknown`: the NICs of the node are unknown. `never`: not even the empty node is certain. `pending`: an
        admission under way hides positions. `held`: other pods hold the GPUs with NICs of their own.
        """
    @property
    def unknown(self) -> int: ...
    @property
    def never(self) -> int: ...
    @property
    def pending(self) -> int: ...
    @property
    def held(self) -> int: ...

@disjoint_base
class HazardCodes:
    """Of `Hazards.reject`."""

    def __new__(cls, panics: int, lost: int) -> HazardCodes:
        """`panics`: the device plugin may crash over the free GPUs; `lost`: it fails every pod, for a lost GPU."""
    @property
    def panics(self) -> int: ...
    @property
    def lost(self) -> int: ...

@disjoint_base
class FailingCodes:
    """Of `places.failing`."""

    def __new__(cls, node: int, namespace: int) -> FailingCodes:
        """`node`: the node fails for every pod; `namespace`: for pods of the request's namespace."""
    @property
    def node(self) -> int: ...
    @property
    def namespace(self) -> int: ...
