"""What an eviction leaves broken up, from the definitions: rings by the oracle of rings.py, sets by trying all of them.

Price of a set of free GPUs, for a pod that takes k of them: the rings of all sets of the whole machine, less those of
what stays free when the pod has taken its best k. Best, one after the other: its own rings; the best rings of every
size in what stays; what pods of random sizes get out of what stays and out of the set itself, when it comes back; the
rings of all sets in both; the smallest ids. (All paths but the links are alike in these machines.)
"""

from __future__ import annotations

from functools import cache
from itertools import combinations

from tests.oracles.rings import ring_links

Links = tuple[tuple[int, ...], ...]
Gpus = tuple[int, ...]


@cache
def ring(links: Links, gpus: Gpus) -> int:
    """Thousandths of a ring link, halves up."""
    if len(gpus) < 2:
        return 0
    exact = 1000 * ring_links(links, gpus)
    return (2 * exact.numerator + exact.denominator) // (2 * exact.denominator)


@cache
def ways(links: Links, gpus: Gpus) -> int:
    return sum(ring(links, some) for k in range(2, len(gpus) + 1) for some in combinations(gpus, k))


@cache
def top(links: Links, gpus: Gpus, k: int) -> int:
    return max((ring(links, some) for some in combinations(gpus, k)), default=0)


def without(gpus: Gpus, some: Gpus) -> Gpus:
    return tuple(gpu for gpu in gpus if gpu not in some)


@cache
def future(links: Links, gpus: Gpus) -> int:
    """Millionths, cut at each step: each size is as likely, each pod takes the set of the best rings, then future."""
    total = 0
    for k in range(1, len(gpus) + 1):
        own, later = max(
            (ring(links, some), future(links, without(gpus, some))) for some in combinations(gpus, k)
        )  # fmt: skip
        whole = top(links, tuple(range(len(links))), k)
        total += later + (1_000_000 * own // whole if whole else 0)
    return total // len(links)


@cache
def best(links: Links, free: Gpus, k: int) -> Gpus:
    def worth(some: Gpus) -> tuple[list[int], Gpus]:
        stays = without(free, some)
        left = sum(top(links, stays, size) for size in range(2, len(links) + 1))
        later = future(links, stays) + future(links, some)
        return [-ring(links, some), -left, -later, -ways(links, stays) - ways(links, some)], some

    return min(combinations(free, k), key=worth)


@cache
def price(links: Links, free: Gpus, k: int) -> int:
    whole = ways(links, tuple(range(len(links))))
    stays = without(free, best(links, free, k)) if len(free) >= k else free
    return max(0, whole - ways(links, stays))
