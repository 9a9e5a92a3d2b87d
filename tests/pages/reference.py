"""The reference pages that are tables of what the code has: metrics, policy, reasons, settings."""

from __future__ import annotations

from inspect import cleandoc
from typing import Final

from extender.cli import config
from extender.metrics import PREFIX, Metrics
from extender.policy.contracts import Class
from extender.policy.costs import COSTS
from extender.policy.reasons import REASONS
from extender.policy.rules import RULES
from extender.policy.scorers import SCORERS
from extender.settings import Settings

LABEL_VALUES: Final = {
    "record_lost cause": "`memory` (`record.queueBytes`), `disk`, `defect`",
    "preemption_victims by": "`kube-scheduler`, `gpu-extender`, `queue`",
    "preemption_work_lost_gpu_seconds by": "`kube-scheduler`, `gpu-extender`, `queue`",
    "request_duration_seconds result": "`ok`, `error`, `bad_request`, `not_ready`, `gone`",
    "decisions reason": "filter: `fits`, `refused`, `try-again`; prioritize: `scored`; preempt: `evict`, "
    "`standing-plan`, `none`, `not-reserved`, `dark` (pods, nodes or budgets are not watched); bind: `bound`, "
    "`refused`; `untouched` without GPUs; `not-judged` in shadow mode, before all is known or after a defect",
    "refused_nodes code": "the keys of [reasons.md](reasons.md)",
    "bad_requests code": "`bad-request`, `body-too-large`, `body-too-late`, `bodies-full`",
    "connections_closed limit": "`request` or `answer` over its time, `headers` too large, too many `connections` or "
    "`handshakes`, `unused`, too many requests `pipelined`; or the `client-name` in its certificate is not accepted",
    "reviews kind": "`token`, `access`",
    "save_requests result": "`asked`, `saved` (by an annotation), `exited` (a container with GPUs ended), `late` "
    "(after the deadline), `ignored`, `withdrawn`, `refused` (the API server did not allow the request)",
    "save_requests_gpu_seconds result": "`saved`, `lost`",
    "save_requests_gpu_seconds priority_class": "names, and `none`; `(others)` beyond 500 pairs with a namespace",
    "save_requests_gpu_seconds namespace": "names; `(others)` beyond 500 pairs with a PriorityClass",
    "reviews result": "`accepted`, `rejected`, `failed` (the request is answered with 503)",
    "certificate_not_after_seconds file": "the files of the settings `server.*tls` (certificate, client CA)",
    "gpus model": "what nodes state (`mix.modelLabels`), the 100 with the most GPUs",
    "gpus state": "`allocated`, `reserved` (for pods on their way, or dates), `free`, `closed` (of closed nodes)",
    "whole_nodes model": "as above",
    "linked_sets model": "as above",
    "linked_sets gpus": "GPUs of a set: `2`, `4`, `8`, `16`",
    "nodes_wanted model": "what nodes state (`mix.modelLabels`), the 100 of which most are wanted",
    "waiting_pods reason": "as `gpu-extender top` shows: a key of [reasons.md](reasons.md), another resource, `fits`, "
    "`gated`, `not-admitted`, `not-judged`, `evicting`, `saving`, or `queue: ` and why the gang waits",
    "pending_pods priority_class": "the 50 PriorityClasses of the highest value, `none`, `other`",
    "pending_pods outranks": "`true` where pods of a lower priority hold GPUs meanwhile, else `false`",
    "pending_oldest_seconds priority_class": "as above",
    "pending_oldest_seconds outranks": "as above",
    "waiting_pods gpus": "`1`, `2`, `3-4`, `5-8`, `9-16`, `17+`",
    "certificate_reads result": "`ok`, `failed` (the certificates before stay in use)",
    "watch_defects kind": "also `source` for all kinds, and names of controllers",
    "invalid_objects reason": "`too-deep` (all that is used of it was read), `partial` (the rest counts as the "
    "worst), `unreadable` (its last readable version counts), `unknown-event`, `not-held` (a defect)",
    "plans outcome": "`kept`; `exchanged` for another pod's plan, `unhealthy` or `taken` GPUs in it, `stock` where "
    "no relay enforces plans, `other`",
    "failing_node_rejections scope": "`all`, `namespace`",
    "pod_failures what": "`admission`, `runtime` (no GPU for the pod), `refused` by kubelet, `died` within a minute; "
    "the last two count for their namespace",
    "queue_waiting reason": "[why a gang waits](queue.md#why-a-gang-waits)",
    "queue_wanted_gpus queue": "names of queues; `(others)` beyond 500 series",
    "queue_wanted_gpus model": "what the node selector names (`mix.modelLabels`); empty: any",
    "queue_wanted_gpus place": "`none` (the gangs fit nowhere, whatever ends: only new nodes help), `taken` (they fit "
    "once others have ended)",
    "queue_waiting pods": "`1`, `2-8`, `9-64`, `65+`",
    "queue_share queue": "the 500 with the largest shares",
    "queue_failed_pins outcome": "`evicted`, `rejected` (a budget, or another error)",
    "queue_wait_seconds pods": "`1`, `2-8`, `9-64`, `65+`",
    "queue_seats_ended cause": "`bound`, `elsewhere` (on another node, or another seat), `deleted`, `not-used`, "
    "`not-created` (the pod does not exist after `queue.absentSeatSeconds`)",
    "queue_held_gpu_seconds state": "`releasing`, `late` (after 10 s), `in-use` (by pods that are evicted for the "
    "gang), `evicting` (those on the node are gone, others are not)",
    "shadow_placements outcome": "`same` node, `equal` (another node of the same score), `other`, `wait` (we would "
    "reject all nodes), `not-judged`",
    "settings_info hash": "16 hexadecimal digits, as `gpu-extender config validate` prints them",
    "degraded part": "`rights`, `settings`, `certificates`, `reservations`, `queue`, `evictions`, `events`",
    "settings_reloads result": "`loaded`, `partly` (some fields count from the next start on), `invalid` (nothing "
    "of it)",
    "queue_evictions outcome": "`started`, `in-vain`",
    "advance_reservations outcome": "`on-time`, `late`, `missed` (never until its end)",
    "queue_start_windows percent": "`50`, `80`, `95`",
    "queue_start_windows outcome": "`held`, `early` (before the window), `late` (after it)",
    "reservation_writes result": "`ok`, `late`, `failed`, `forbidden`, `refused`",
    "reservations_released cause": "`bound`, `deleted`, `outbid`, `replaced`, `not-used`, `not-carried-out`, "
    "`victims-stay`, `node-lost`",
    "victim_searches result": "`evict`, `none`",
    "victim_searches proved": "`true`, `false` where the budget ended first",
    "events result": "`ok`, `failed`, `forbidden`, `left_out` by the rate limit",
    "evictions result": "`evicted`, `gone`, `blocked` by a budget, `refused`, `unknown`; of a dry run "
    "`dry-run-blocked`, `dry-run-refused`, `dry-run-unknown`",
}
"""What a label of a metric may say ("name label"); METRICS has the labels of several."""

METRICS: Final = """# Metrics

What `/metrics` prints. [Alerts](alerts.md) has what to watch. No label grows with the cluster. Gauges of GPUs, pods and
gangs are counted every 30 s, less often where that takes long. Only the holder of its Lease counts the queue.

Labels without values below: `verb` is `filter`, `prioritize`, `preempt` or `bind`, `kind` a kind of objects that are
watched, `by` is `kube-scheduler` or `gpu-extender`.

| metric | kind | what it counts | labels |
|---|---|---|---|
"""


def metrics_page() -> str:
    """docs/metrics.md."""
    counted = Metrics()
    lines = []
    for family in counted.registry.collect():
        short = family.name.removeprefix(f"{PREFIX}_")
        found = ((label, LABEL_VALUES.get(f"{short} {label}")) for label in counted.labels[short])
        labels = [f"`{label}`: {values}" if values else f"`{label}`" for label, values in found]
        name = family.name + "_total" * (family.type == "counter")
        lines.append(f"| `{name}` | {family.type} | {family.documentation} | {'; '.join(labels)} |\n")
    return METRICS + "".join(lines)


POLICY: Final = """# Policy: rules, scorers, cost terms

What decides where a pod goes, and which pods are evicted for it.
"""
RULES_HEAD: Final = """
## Rules

A rule rejects nodes. The first rule in this order that rejects a node gives its reason ([reasons.md](reasons.md)).

| rule | meaning |
|---|---|
"""
SCORERS_HEAD: Final = """
## Scorers

A scorer values each feasible node from 0 to 1. The weighted sum ranks the nodes. The setting `scorers` chooses them;
the weight is the default, "none" means not used by default.

| scorer | weight | meaning |
|---|--:|---|
"""
COSTS_HEAD: Final = """
## Costs

Terms of what an eviction costs, less is better. They are compared one by one in the order of the setting `costs`, by
default in this order.

| term | unit | meaning |
|---|---|---|
"""


def policy_page() -> str:
    """docs/policy.md."""
    settings = Settings()
    weights = {scorer.name: f"{scorer.weight:.15g}" for scorer in settings.scorers}
    used = [*weights, *(name for name in SCORERS if name not in weights)]
    terms = [*settings.costs, *(name for name in COSTS if name not in settings.costs)]
    return "".join(
        (
            POLICY,
            RULES_HEAD,
            *(f"| `{rule.name}` | {_meaning(rule)} |\n" for rule in RULES),
            SCORERS_HEAD,
            *(f"| `{name}` | {weights.get(name, 'none')} | {_meaning(SCORERS[name])} |\n" for name in used),
            COSTS_HEAD,
            *(f"| `{name}` | {COSTS[name].unit} | {_meaning(COSTS[name].term)} |\n" for name in terms),
        )
    )


def _meaning(part: object) -> str:
    """The first paragraph of its docstring."""
    return " ".join(cleandoc(part.__doc__ or "").partition("\n\n")[0].split())


REASONS_HEAD: Final = """# Why a node is rejected

What `kubectl describe pod` shows of us, as kube-scheduler counts it ("3 gpu-extender: ...").

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


def reasons_page() -> str:
    """docs/reasons.md."""
    order = [Class.HOPELESS, Class.EVICTABLE, Class.TRANSIENT]
    ordered = sorted(REASONS.values(), key=lambda reason: (order.index(reason.cls), reason.code))
    return REASONS_HEAD + "".join(
        f"| `{reason.key}` | {reason.cls.value} | {reason.text.removeprefix('gpu-extender: ')} | {reason.remedy} |\n"
        for reason in ordered
    )


SETTINGS: Final = """# Settings

`gpu-extender serve --config FILE` reads YAML or JSON. Every field has a default. A field that is unknown, repeated, of
a wrong type or out of range rejects the file, with its line, its path and a suggestion.
`gpu-extender config explain FIELD` prints a part of this page.

```yaml
apiVersion: gpu-extender.io/v1
kind: GpuExtenderConfiguration
```


| field | default | unit, range | meaning |
|---|---|---|---|
"""
_AS_ABOVE: Final = ("`claims.byPriorityClass.", "`claims.byNamespace.")
"""Fields with the meaning of those of `claims` itself, which the page does not list."""


def settings_page() -> str:
    """docs/settings.md."""
    fields_of: dict[tuple[str, ...], list[str]] = {}
    for field, *cells in config.rows():  # parts of one class, such as the TLS of each listener, share their rows
        if field.startswith(_AS_ABOVE):
            continue
        fields_of.setdefault((field.rpartition(".")[2], *cells), []).append(field)
    return SETTINGS + "".join(
        f"| {', '.join(same)} | {' | '.join(cells)} |\n" for (_, *cells), same in fields_of.items()
    )
