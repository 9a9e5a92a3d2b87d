"""A node's GPU graph, interned once as a shape, and what can be asked about its sets of GPUs.

A set of GPUs is an int mask: bit i is GPU i. Rings are ring_links x 1000, rounded half up. Shape 0 is the
unknown one: it answers None (linked: True for a single GPU). Errors: KeyError for an id that was never
given, ValueError for a mask with GPUs that the shape does not have.
"""

from collections.abc import Sequence
from typing import NamedTuple, TypedDict, Unpack

from typing_extensions import disjoint_base

from ext_core.ask import Ask

NIC_MODES: dict[str, int]
PLUGINS: dict[str, int]

class GraphFacts(TypedDict):  # the keywords of intern()
    gpu_total: bool
    pcie: Sequence[Sequence[int]] | None
    numa: Sequence[int] | None
    plugin: str
    gbps: float

class Chosen(NamedTuple):
    gpus: int
    ring: int
    ring_best: int
    left: int
    left_before: int
    expected_ring: int

@disjoint_base
class LinkShapes:
    planned: bool
    """Whether pods have planned GPUs, which a relay hands out; False at first."""
    @property
    def nics_known(self) -> bool:
        """Whether the NICs of any shape are."""

    def __new__(cls) -> LinkShapes: ...
    def __len__(self) -> int:
        """Shapes, the unknown one included."""
    def intern(
        self,
        links: Sequence[Sequence[int]] | None,
        *,
        gpu_total: bool,
        pcie: Sequence[Sequence[int]] | None,
        numa: Sequence[int] | None,
        plugin: str,
        gbps: float,
    ) -> int:
        """The id of this graph of N = 1..16 GPUs; equal arguments, equal id; links None: 0. Shapes are kept for good,
        so a new one beyond MOST_SHAPES, or beyond MOST_LARGE with more than 8 GPUs, is unknown: 0.

        ``links``: N x N links of each pair (0..1000), symmetric; with ``gpu_total`` each GPU's total into the
        switches. ``pcie``: N x N levels SYS 0, NODE 1, PHB 2, PXB 3, PIX 4, same board or same GPU 5.
        ``numa``: each GPU's NUMA node, -1 = unknown. ``plugin``: "nvidia", "amd", "arbitrary",
        "relay" for ours in the place of any of them, which hands out what choice() returns, or "first" for
        kube-scheduler's allocator of devices (DRA), which takes the free GPUs with the lowest ids, or "unordered" for
        the same where it is not known which it takes.
        ``gbps``: GB/s per link and direction. ValueError for anything else.
        """
    def intern_with_nics(
        self, nics: Sequence[int] | None, links: Sequence[Sequence[int]] | None, **graph: Unpack[GraphFacts]
    ) -> int:
        """As intern(). ``nics``: for each NIC the set of GPUs under its PCIe switch, 64 at most; None: unknown."""
    def gpus(self, shape: int) -> int | None: ...
    def gbps(self, shape: int) -> float | None: ...
    def relay(self, shape: int) -> bool | None:
        """Whether a relay hands out the GPUs there."""
    def follows_plans(self, shape: int, planned: bool = False) -> bool:
        """Whether nodes of the shape hand out what is planned: by their relay; or, to a pod whose claims the queue
        allocates (``planned``), by its claims."""
    def ring(self, shape: int, gpus: int) -> int | None: ...
    def proved(self, shape: int, gpus: int) -> bool | None:
        """False: ``ring`` is a lower bound only (sets of more than 8 GPUs with very many cycles)."""
    def linked(self, shape: int, gpus: int) -> bool | None: ...
    def top(self, shape: int, gpus: int, k: int) -> int | None:
        """The highest ring of the sets of k in ``gpus``; 0 where there is none."""
    def left(self, shape: int, gpus: int) -> int | None:
        """The sum of ``top`` over the sizes 2..N."""
    def ways(self, shape: int, gpus: int) -> int | None:
        """The sum of the rings of all sets in ``gpus``: how many ways are left to serve linked pods."""
    def future(self, shape: int, gpus: int) -> int | None:
        """What pods of random sizes 1..N get out of ``gpus``, one after the other, until one does not fit.

        Each pod's best ring as a share of the machine's best of that size, summed; millionths. 0 above 12 GPUs.
        """
    def crash(self, shape: int, free: int, k: int) -> int | None:
        """How likely the device plugin crashes when it chooses k of ``free``: millionths, rounded up.

        None where its answer cannot be predicted, and for the unknown shape.
        """
    def islands(self, shape: int) -> list[int] | None:
        """All maximal sets of 2 or more in which every pair is linked, in the order of their ids."""
    def components(self, shape: int) -> list[int] | None:
        """The sets connected by links, lone GPUs included."""
    def objective(self, shape: int, free: int, gpus: int) -> tuple[int, int, int, int, int, int] | None:
        """What a choice of ``gpus`` is judged by, in this order; more is better; then the smallest ids.

        Ring. ``left`` of what stays. ``future`` of what stays + that of the set itself, which comes back whole when
        the pod ends (two GPUs of one bridge rather than one of each of two). ``ways`` likewise (how many ways are
        left: of two free pairs and a lone GPU, a single should take the lone one, though the best pair stays either
        way). Locality of the set, and of what stays (sum of PCIe levels; pairs on one NUMA node where PCIe is
        unknown).
        """
    def choice(self, shape: int, free: int, k: int) -> Chosen | None:
        """The best k of ``free``; None too when there are fewer.

        ``expected_ring`` is the mean over what the device plugin hands out (0 where it crashes), -1 when that
        cannot be predicted.
        """
    def equals(self, shape: int, free: int, k: int) -> list[int] | None:
        """All sets as good as the chosen one but for their ids, itself included."""
    def runner_up(self, shape: int, free: int, k: int) -> Chosen | None:
        """The best set that is worse than the chosen one."""
    def certain(
        self, shape: int, free: int, k: int, unknown: int = 0, containers: int = 1, planned: bool = False
    ) -> int:
        """Is whatever k GPUs the node hands out linked? 2 certain, 1 possible, 0 impossible, -1 unknown links.

        ``unknown``: how many GPUs of ``free`` are held at unknown positions. ``containers`` that share the k GPUs: the
        plugin is asked for one after the other. With either of these only "every set of k is linked" is certain;
        otherwise the device plugin's rule decides where it is known. A relay hands several containers one set
        where the attribute ``planned`` is set; without a plan it is asked one by one too. ``planned``: the queue
        allocates the devices of the pod's claims, so a node whose GPUs come by claims hands out the best set.
        A single GPU is always linked. Where the plugin may crash (an empty place in its answer) it is not certain.
        """
    def nics(self, shape: int, gpus: int) -> int | None:
        """How many of ``gpus`` can have a NIC of their own under their PCIe switch; None where NICs are unknown."""
    def with_nics(self, shape: int, free: int, k: int, nics: str) -> int | None:
        """The k of ``free`` to plan for a pod whose annotation `nics` has this value; None as of choice().

        "preferred": by objective(), and of sets that are equal in links (the first four numbers) the one with the most
        NICs of its own. "required": the most NICs come first of all. "ignore", or unknown NICs: as choice().
        """
    def certain_nics(self, shape: int, free: int, ask: Ask, unknown: int = 0, linked: bool = False) -> int:
        """Does each of whatever GPUs the node hands out for the request have a NIC of its own? As certain(); -1: NICs
        are unknown.

        ``linked``: linked GPUs are required too. A plan has both; of a device plugin certain() tells.
        """
    def expected_nics(self, shape: int, free: int, k: int, nics: str, planned: bool = False) -> float:
        """The part of k GPUs, 0 to 1, that will have a NIC of their own: the mean over what the device plugin hands
        out, else that of with_nics(). 0 where NICs are unknown, or ``free`` has fewer."""
    def handed_out(self, shape: int, free: int, k: int) -> list[tuple[int, float]] | None:
        """The sets that the device plugin may answer, with probabilities; None when not predictable.

        NVIDIA's rule takes the split of all free GPUs into sets of k with the most points, and its best set; the
        GPUs that k does not divide are one smaller set. A smaller set as the answer crashes the plugin: the
        probabilities add up to less than 1 by that much. Ties go to the first in the order in which kubelet names
        the GPUs: each order is taken as equally likely. (Where the first GPU's own set is not among the best, the
        rest is taken as ordered afresh.) AMD's rule takes the lightest set, ties at random. Rounded to 9 digits.
        NVIDIA: with known PCIe levels; from seven sets on (13 GPUs by twos) only where overwriting the split that
        it keeps cannot change the answer. AMD: with known NUMA nodes.
        Source of the rules: NVIDIA/go-gpuallocator (best-effort policy), ROCm/k8s-device-plugin.
        """
