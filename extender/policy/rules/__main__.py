"""`python -m extender.policy.rules` prints docs/reasons.md."""

from __future__ import annotations

from extender.policy.contracts import Class
from extender.policy.rules import REASONS

HEAD = """# Why a node is rejected

What `kubectl describe pod` shows of us, as kube-scheduler counts it ("3 gpu-extender: ..."). This page is printed by
`python -m extender.policy.rules`.

- **hopeless**: no eviction helps (`FailedAndUnresolvableNodes`).
- **evictable**: evicting pods of lower priority would help, or pods that are terminating already do. Up to
  kube-scheduler 1.37 it is in `FailedAndUnresolvableNodes` too, except on the pod's own nominated node: there, and from
  1.38 on, in `FailedNodes`.
- **transient**: it passes by itself. When no node is feasible the answer is an Error: the pod is retried within
  seconds, and no pod is evicted. `node-failing` and `node-failing-namespace` last for minutes: there the pod may evict
  others elsewhere.

| key (metric label) | class | text | what to do |
|---|---|---|---|
"""


def page() -> str:
    """docs/reasons.md."""
    order = [Class.HOPELESS, Class.EVICTABLE, Class.TRANSIENT]
    reasons = sorted(REASONS.values(), key=lambda reason: (order.index(reason.cls), reason.code))
    return HEAD + "".join(
        f"| `{reason.key}` | {reason.cls.value} | {reason.text.removeprefix('gpu-extender: ')} | {reason.remedy} |\n"
        for reason in reasons
    )


if __name__ == "__main__":
    print(page(), end="")
