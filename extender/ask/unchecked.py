"""What a pod asks for that no verdict looks at, one warning each: kube-scheduler decides it."""

from __future__ import annotations

from collections.abc import Iterator

from extender.objects.records import PodRecord
from extender.policy.roles import NODE
from extender.queue.placement import not_modelled
from extender.settings import Settings


def unchecked(pod: PodRecord) -> tuple[str, ...]:
    """What the pod requires that is not checked where it is judged alone."""
    apart = any(term.topology_key == NODE for term in pod.anti_affinity_terms)
    return (*not_modelled(pod), *(("anti-affinity of the pod itself",) if apart else ()))


def warnings(pod: PodRecord, settings: Settings, *, answered: bool = False) -> Iterator[dict[str, str]]:
    """The warnings of a pod. `answered`: kube-scheduler has asked about it, so its scheduler asks us."""
    name, owner = f"pod {pod.namespace}/{pod.name}", pod.owner
    # Equal pods of one owner get one warning.
    alike = name if owner is None else f"{owner.kind} {pod.namespace}/{owner.name}"
    if missing := unchecked(pod):
        text = f"{name} asks for more than is checked here: {', '.join(missing)} ({_whose(missing)} kube-scheduler's)"
        yield {"code": "not-all-checked", "message": text}
    if (preferred := preference(pod, settings)) is not None:
        yield {"code": "preference-not-counted", "message": f"{alike} {preferred}"}
    if not answered and (other := scheduler(pod, settings)) is not None:
        yield {"code": "other-scheduler", "message": f"{alike} {other}"}


def preference(pod: PodRecord, settings: Settings) -> str | None:
    """What becomes of its preferred affinity and soft spread constraints; None without any."""
    asked = [
        text
        for text, applies in (
            ("preferred affinity or anti-affinity", pod.preferred_affinity),
            ("a soft topology spread constraint", pod.soft_spread),
        )
        if applies
    ]
    if not asked:
        return None
    if settings.only_the_best_class_wins:
        effect = (
            f"at schedulerWeight {settings.scheduler_weight} our order outweighs it, so it decides nothing on the "
            "first attempt: make it required, or write gpu-extender.io/placement: spread for replicas on different "
            "nodes"
        )
    else:
        effect = "kube-scheduler counts it beside our points, and may choose another node than stated here"
    return f"has {' and '.join(asked)}: {effect}"


def scheduler(pod: PodRecord, settings: Settings) -> str | None:
    """Whether its scheduler is none of those that ask us; None where it is one of them."""
    if pod.scheduler_name in settings.schedulers:
        return None
    return (
        f"names schedulerName {pod.scheduler_name}, which is none of the schedulers that ask gpu-extender "
        f"({', '.join(settings.schedulers)}; setting: schedulers): that scheduler decides without us"
    )


def _whose(missing: tuple[str, ...]) -> str:
    return "this is" if len(missing) == 1 else "these are"
