"""The request as the kernels read it: one struct, made once per request.

A kernel takes tables, an `Ask` and candidate rows, and writes columns.
"""

from typing_extensions import disjoint_base

@disjoint_base
class Ask:
    """One pod's request. It does not change."""

    def __new__(
        cls,
        amounts: tuple[int, ...],
        share: int = 1,
        containers: int = 1,
        priority: int = 0,
        links: str = "preferred",
        namespace: str = "",
    ) -> Ask:
        """`amounts`: R exact integers (milli-CPU, bytes, pod slots, units by GPU resource); `share`: units that the pod
        takes of each GPU; `containers`: how many containers ask for GPUs; `links`: required, preferred or ignore.

        ValueError: fewer than 3 amounts, a share below 1, another word for `links`. OverflowError: an amount beyond
        64 bits, a priority beyond 32 bits.
        """
    def with_nics(self, nics: str) -> Ask:
        """The same request, which asks that of NICs: required, preferred or ignore. ValueError: another word."""
    def as_planned(self) -> Ask:
        """The same request of a pod whose claims the queue allocates: nodes whose GPUs come by claims hand out what is
        planned."""
    def waiting(self, most_wait: int) -> Ask:
        """The same request of a pod that waits so many seconds at most until its victims have saved their work."""
    @property
    def amounts(self) -> tuple[int, ...]:
        """R exact integers."""
    @property
    def resource(self) -> int:
        """Index of the GPU resource that the links are judged on: the one with the most units, then the lowest index.
        -1 without GPUs."""
    @property
    def wanted(self) -> int:
        """GPUs of `resource` that the pod takes, or takes `share` units of each; 2^31 - 1 at most."""
    @property
    def share(self) -> int:
        """Units that the pod takes of each GPU: as many as a GPU of the node has are a whole one."""
    @property
    def containers(self) -> int:
        """How many containers ask for GPUs."""
    @property
    def priority(self) -> int:
        """The pod's priority: pods below it may be its victims."""
    @property
    def links(self) -> str:
        """required, preferred or ignore."""
    @property
    def nics(self) -> str:
        """required, preferred or ignore (at first): whether each of its GPUs gets a NIC of its own."""
    @property
    def planned(self) -> bool:
        """Whether the queue allocates the devices of its claims; False at first."""
    @property
    def most_wait(self) -> int:
        """Seconds for which it waits at most until victims that are asked have saved their work; 0 (at first): none is
        asked."""
    @property
    def namespace(self) -> str:
        """Failures of the namespace's own pods count for this pod too."""
