"""A KubeSchedulerConfiguration of a user: what keeps kube-scheduler from asking gpu-extender well.

Each rule is one that manifests/kube-scheduler-config.yaml explains. Unknown fields are found as kube-scheduler's strict
decoder finds them, with their lines.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from ipaddress import ip_address
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit

from extender.ask.checks.finding import ORDER, Finding, Severity
from extender.ask.text import count, short
from extender.errors import BadInput
from extender.objects.progress import duration
from extender.settings import Settings
from extender.settings.checks import did_you_mean
from extender.settings.reading import Place, SettingsDocument, parse_document, path_of

VERSION, KIND = "kubescheduler.config.k8s.io/v1", "KubeSchedulerConfiguration"
PORT: Final = 8888
SHORTEST_TIMEOUT: Final = 4
"""Seconds: a preempt call waits up to 3.6 s for an API server that is just back."""
OUTWEIGHS_USUAL: Final = 41
"""From this weight on one point of ours outweighs what in-tree plugins give to a pod without preferences."""
MOST_NODES: Final = 5000
"""Nodes of the largest cluster that Kubernetes supports."""
_TEXTS: Final = {"name": str, "weight": int}
_PLUGIN: Final[dict[str, Any]] = {"enabled": [_TEXTS], "disabled": [_TEXTS]}
_POINTS: Final = (
    "multiPoint", "preEnqueue", "queueSort", "preFilter", "filter", "postFilter", "preScore", "score", "reserve",
    "permit", "preBind", "bind", "postBind",
)  # fmt: skip
_ARGS: Final[dict[str, dict[str, Any]]] = {
    "NodeResourcesFit": {
        "ignoredResources": [str], "ignoredResourceGroups": [str],
        "scoringStrategy": {"type": str, "resources": [_TEXTS], "requestedToCapacityRatio": None},
    },
    "DefaultPreemption": {"minCandidateNodesPercentage": int, "minCandidateNodesAbsolute": int},
}  # fmt: skip
_FIELDS: Final[dict[str, Any]] = {
    "apiVersion": str, "kind": str, "parallelism": int, "enableProfiling": bool, "enableContentionProfiling": bool,
    "percentageOfNodesToScore": int, "podInitialBackoffSeconds": int, "podMaxBackoffSeconds": int,
    "delayCacheUntilActive": bool,
    "leaderElection": {
        "leaderElect": bool,
        **dict.fromkeys(("leaseDuration", "renewDeadline", "retryPeriod"), str),
        **dict.fromkeys(("resourceLock", "resourceName", "resourceNamespace"), str),
    },
    "clientConnection": {
        **dict.fromkeys(("kubeconfig", "acceptContentTypes", "contentType"), str), "qps": None, "burst": int,
    },
    "profiles": [{
        "schedulerName": str, "percentageOfNodesToScore": int, "plugins": dict.fromkeys(_POINTS, _PLUGIN),
        "pluginConfig": [{"name": str, "args": None}],
    }],
    "extenders": [{
        **dict.fromkeys(("urlPrefix", "filterVerb", "preemptVerb", "prioritizeVerb", "bindVerb"), str),
        "weight": int, "enableHTTPS": bool, "httpTimeout": None, "nodeCacheCapable": bool, "ignorable": bool,
        "managedResources": [{"name": str, "ignoredByScheduler": bool}],
        "tlsConfig": {
            "insecure": bool,
            **dict.fromkeys(("serverName", "certFile", "keyFile", "caFile", "certData", "keyData", "caData"), str),
        },
    }],
}  # fmt: skip
"""The fields that exist, and the types of their values; None: what is below is not looked at."""
_TYPES: Final = {dict: "no object", list: "no list", str: "no text", int: "no whole number", bool: "not true or false"}
_NEEDED: Final = {
    "NodeResourcesFit": "nothing guards the number of GPUs, nor of CPU and memory",
    "DefaultPreemption": "no pod is ever preempted, and preempt is never asked",
    "NodeUnschedulable": "pods are placed on cordoned nodes",
    "TaintToleration": "taints keep no pod off",
    "NodeAffinity": "node selectors and affinities do not count",
}
"""Plugins, and what follows where they are disabled."""


def answer(text: str, source: str, settings: Settings) -> dict[str, Any]:
    """`kind: SchedulerConfigCheck`. BadInput: it is no YAML, or no KubeSchedulerConfiguration."""
    document = parse_document(text)
    if document.problems:
        problem = document.problems[0]
        raise BadInput(f"{f'line {problem.line}: ' if problem.line else ''}{problem.message}", path=source)
    if not isinstance(document.value, dict) or document.value.get("kind") != KIND:
        raise BadInput(f"is no {KIND}", path=source)
    checked = _Checked(document, settings)
    findings = sorted(
        checked.findings(), key=lambda finding: (ORDER.index(finding.severity), dict(finding.facts).get("line", 0))
    )
    return {
        "apiVersion": "gpu-extender.io/v1",
        "kind": "SchedulerConfigCheck",
        "warnings": [],
        "findings": [finding.as_json() for finding in findings],
        "summary": {severity: sum(finding.severity == severity for finding in findings) for severity in ORDER},
    }


def lines(answered: Mapping[str, Any]) -> Iterator[str]:
    """The answer for people."""
    for finding in answered["findings"]:
        line = finding["facts"].get("line")
        about = f"{f'line {line}: ' if line else ''}{short(finding['about'], 100)}"
        yield f"{finding['severity']}: {about} {finding['message']}"
        yield f"  {finding['remedy']}"
    summary = answered["summary"]
    yield f"{count(summary['error'], 'error')}, {count(summary['warning'], 'warning')}, {summary['info']} info"


class _Checked:
    """One document, and what is wrong with it."""

    def __init__(self, document: SettingsDocument, settings: Settings) -> None:
        self._document, self._settings, self._value = document, settings, document.value

    def findings(self) -> Iterator[Finding]:
        """All, in the order of the rules."""
        if self._value.get("apiVersion") != VERSION:
            yield self._found(
                "error",
                "config-version",
                ("apiVersion",),
                f"is {self._value.get('apiVersion')!r}: Kubernetes 1.29 and newer read no other version than v1",
                f"Write {VERSION}.",
            )
        yield from self._unknown(self._value, _FIELDS, ())
        yield from self._sampling()
        yield from self._profiles()
        yield from self._backoff()
        yield from self._extenders()
        at = self._ours()
        if at is None:
            yield self._found(
                "error",
                "extender-missing",
                ("extenders",),
                "no entry asks gpu-extender: GPU pods are placed without it",
                "Copy the entry of manifests/kube-scheduler-config.yaml.",
            )
        else:
            place: Place = ("extenders", at)
            entry = self._list("extenders")[at]
            for rule in (self._verbs, self._weight, self._calls, self._url, self._resources):
                yield from rule(entry, place)

    def _found(self, severity: Severity, code: str, place: Place, message: str, remedy: str) -> Finding:
        line = self._document.line(place)
        facts = () if line is None else (("line", line),)
        return Finding(severity, code, path_of(place), message, remedy, facts)

    def _list(self, *path: str) -> list[Mapping[str, Any]]:
        value: Any = self._value
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
        return [entry if isinstance(entry, dict) else {} for entry in value] if isinstance(value, list) else []

    # -- fields ---------------------------------------------------------------------------------------------------

    def _unknown(self, value: Any, fields: Any, place: Place) -> Iterator[Finding]:
        """Fields that do not exist, and values of another type: kube-scheduler does not start with them."""
        wanted: Any = fields if isinstance(fields, type) else type(fields)
        if fields is None or value is None:
            return
        if not isinstance(value, wanted) or (wanted is int and isinstance(value, bool)):
            yield self._found(
                "error",
                "wrong-type",
                place,
                f"is {_TYPES[wanted]}",
                "Correct it: kube-scheduler does not start with it.",
            )
        elif isinstance(fields, list):
            for at, child in enumerate(value):
                yield from self._unknown(child, fields[0], (*place, at))
        elif isinstance(fields, dict):
            for key, child in value.items():
                if key in fields:
                    yield from self._unknown(child, fields[key], (*place, key))
                else:
                    yield self._found(
                        "error",
                        "unknown-field",
                        (*place, key),
                        f"is not a field{did_you_mean(str(key), list(fields))}",
                        "Correct its name, or remove it: kube-scheduler does not start with it.",
                    )
            if place and place[-1] != "args" and value.get("name") in _ARGS and isinstance(value.get("args"), dict):
                known = {"apiVersion": None, "kind": None, **_ARGS[value["name"]]}
                yield from self._unknown(value["args"], known, (*place, "args"))

    def _sampling(self) -> Iterator[Finding]:
        places: list[tuple[Any, Place]] = [(self._value, ())]
        places += [(profile, ("profiles", at)) for at, profile in enumerate(self._list("profiles"))]
        for part, place in places:
            stated = part.get("percentageOfNodesToScore")
            if stated in (100, "100") or (place and stated is None):  # as a text it is of another type
                continue
            yield self._found(
                "warning",
                "nodes-sampled",
                (*place, "percentageOfNodesToScore"),
                f"is {'not stated' if stated is None else stated}: in clusters of more than 100 nodes kube-scheduler "
                "looks at a sample, and a GPU pod can wait beside a node that fits",
                "Write 100.",
            )

    def _backoff(self) -> Iterator[Finding]:
        most = self._value.get("podMaxBackoffSeconds")
        if isinstance(most, int) and most > 60:
            yield self._found(
                "info",
                "backoff-long",
                ("podMaxBackoffSeconds",),
                f"is {most}: a pod that waits may start so many seconds after GPUs have become free",
                "10 is the default; 60 relieves a cluster with many waiting pods.",
            )

    # -- profiles -------------------------------------------------------------------------------------------------

    def _profiles(self) -> Iterator[Finding]:
        names: set[str] = set()
        profiles = self._list("profiles")
        for at, profile in enumerate(profiles or [{}]):
            place: Place = ("profiles", at) if profiles else ("profiles",)
            if len(profiles) > 1 and not profile.get("schedulerName"):
                yield self._found(
                    "error",
                    "profile-unnamed",
                    (*place, "schedulerName"),
                    "is missing: of several profiles each needs it",
                    "Give each profile a name of its own.",
                )
                continue
            name = str(profile.get("schedulerName") or "default-scheduler")
            if name in names:
                yield self._found(
                    "error",
                    "profile-twice",
                    (*place, "schedulerName"),
                    f"{name!r} is the name of two profiles",
                    "Give each profile a name of its own.",
                )
            names.add(name)
            yield from self._scoring(profile, place)
            yield from self._disabled(profile, place)
        election = self._value.get("leaderElection")
        lease = election.get("resourceName") if isinstance(election, dict) else None
        elects = not isinstance(election, dict) or election.get("leaderElect", True)
        if elects and "default-scheduler" not in names and lease in (None, "kube-scheduler"):
            yield self._found(
                "warning",
                "lease-shared",
                ("leaderElection", "resourceName"),
                "is that of the cluster's own scheduler: only one of the two schedules",
                "Give a second scheduler a Lease of its own, such as gpu-scheduler.",
            )

    def _args(self, profile: Mapping[str, Any], name: str) -> tuple[Mapping[str, Any], Place]:
        """The arguments of a plugin, and where they are."""
        listed = profile.get("pluginConfig")
        for at, entry in enumerate(listed if isinstance(listed, list) else ()):
            if isinstance(entry, dict) and entry.get("name") == name and isinstance(entry.get("args"), dict):
                return entry["args"], ("pluginConfig", at, "args")
        return {}, ("pluginConfig",)

    def _scoring(self, profile: Mapping[str, Any], place: Place) -> Iterator[Finding]:
        args, where = self._args(profile, "NodeResourcesFit")
        strategy = args.get("scoringStrategy")
        stated = strategy if isinstance(strategy, dict) else {}
        kind = stated.get("type") or "LeastAllocated"
        here: Place = (*place, *where, "scoringStrategy") if args else (*place, *where)
        if kind == "LeastAllocated":
            yield self._found(
                "warning",
                "scores-spread",
                here,
                f"NodeResourcesFit scores by LeastAllocated{'' if stated else ' (the default)'}: it spreads pods over "
                "nodes, which works against packing GPUs",
                "Write scoringStrategy.type: MostAllocated with the GPU resources.",
            )
        resources = stated.get("resources")
        names = (
            {resource.get("name") for resource in resources if isinstance(resource, dict)}
            if isinstance(resources, list)
            else set()
        )
        if kind == "MostAllocated" and not names & {resource.name for resource in self._settings.resources}:
            yield self._found(
                "warning",
                "scores-without-gpus",
                here,
                "NodeResourcesFit packs by CPU and memory, and by no GPU resource",
                "List the GPU resources in scoringStrategy.resources, with weight 10.",
            )
        preemption, where = self._args(profile, "DefaultPreemption")
        percentage, absolute = (preemption.get(f"minCandidateNodes{name}") for name in ("Percentage", "Absolute"))
        percentage = 10 if percentage is None else percentage
        if percentage != 100 and not (isinstance(absolute, int) and absolute >= MOST_NODES):
            yield self._found(
                "warning",
                "preemption-sampled",
                (*place, *where),
                f"DefaultPreemption offers {percentage} % of the nodes "
                "for a preemption, from a random place on: the cheapest victims of a part are not the cheapest",
                "Write minCandidateNodesPercentage: 100.",
            )

    def _disabled(self, profile: Mapping[str, Any], place: Place) -> Iterator[Finding]:
        plugins = profile.get("plugins")
        balanced = False
        for point, plugin_set in plugins.items() if isinstance(plugins, dict) else ():
            listed = plugin_set.get("disabled") if isinstance(plugin_set, dict) else None
            enabled = plugin_set.get("enabled") if isinstance(plugin_set, dict) else None
            again = _names(enabled)
            for at, item in enumerate(listed if isinstance(listed, list) else ()):
                name = item.get("name") if isinstance(item, dict) else None
                balanced |= point in ("score", "multiPoint") and name in ("*", "NodeResourcesBalancedAllocation")
                if point == "score":
                    continue
                for plugin in _NEEDED if name == "*" and point in ("multiPoint", "filter", "postFilter") else (name,):
                    if (
                        plugin in _NEEDED
                        and plugin not in again
                        and (plugin == "DefaultPreemption" or point != "postFilter")
                    ):
                        yield self._found(
                            "error",
                            "plugin-disabled",
                            (*place, "plugins", point, "disabled", at),
                            f"{plugin} is disabled: {_NEEDED[plugin]}",
                            "Leave it enabled.",
                        )
        if not balanced:
            yield self._found(
                "info",
                "balanced-allocation",
                (*place, "plugins"),
                "NodeResourcesBalancedAllocation scores: it prefers "
                "nodes whose CPU, memory and GPUs are used in equal shares, which works against packing GPUs",
                "Disable it at the point score.",
            )

    # -- the extender ---------------------------------------------------------------------------------------------

    def _ours(self) -> int | None:
        """Which entry of `extenders` is that of gpu-extender, by its address before its resources; None without one."""
        entries = self._list("extenders")
        managed = {resource.name for resource in self._settings.resources}
        urls = [str(entry.get("urlPrefix")) for entry in entries]
        by_address = [at for at, url in enumerate(urls) if f":{PORT}" in url or "gpu-extender" in url]
        by_resource = [at for at, entry in enumerate(entries) if _names(entry.get("managedResources")) & managed]
        return next(iter([*by_address, *by_resource]), 0 if len(entries) == 1 else None)

    def _extenders(self) -> Iterator[Finding]:
        """What kube-scheduler accepts of one extender alone."""
        seen: dict[Any, str] = {}
        binder = ""
        for at, entry in enumerate(self._list("extenders")):
            place: Place = ("extenders", at)
            if entry.get("bindVerb") and binder:
                yield self._found(
                    "error",
                    "binders-several",
                    (*place, "bindVerb"),
                    f"is stated beside that of {binder}: kube-scheduler starts with one extender that binds",
                    "Leave it to one of them.",
                )
            binder = binder or (path_of(place) if entry.get("bindVerb") else "")
            listed = entry.get("managedResources")
            for number, extender in enumerate(listed if isinstance(listed, list) else ()):
                name = extender.get("name") if isinstance(extender, dict) else None
                if isinstance(name, str) and name in seen:
                    yield self._found(
                        "error",
                        "resource-twice",
                        (*place, "managedResources", number, "name"),
                        f"{name!r} is managed at {seen[name]} already: kube-scheduler starts with one that manages it",
                        "Name each resource once, in one extender.",
                    )
                elif isinstance(name, str):
                    seen[name] = path_of((*place, "managedResources", number))

    def _verbs(self, entry: Mapping[str, Any], place: Place) -> Iterator[Finding]:
        missing: dict[str, tuple[Severity, str]] = {
            "filter": ("error", "GPU pods are placed on nodes that were not checked"),
            "prioritize": ("error", "our order of the nodes does not count"),
            "preempt": ("error", "kube-scheduler evicts by count, blind to links and to what is lost"),
            "bind": ("info", "GPUs are predicted, and known once the pod runs; the relay needs it"),
        }
        for verb, (severity, effect) in missing.items():
            field = f"{verb}Verb"
            stated = entry.get(field)
            if not stated:
                yield self._found(
                    severity,
                    "verb-missing",
                    (*place, field),
                    f"is missing: {effect}",
                    f"Write {field}: {verb}.",
                )
            elif stated != verb:
                yield self._found(
                    "error",
                    "verb-unknown",
                    (*place, field),
                    f"is {stated!r}: gpu-extender serves /v1/{verb}",
                    f"Write {field}: {verb}.",
                )

    def _weight(self, entry: Mapping[str, Any], place: Place) -> Iterator[Finding]:
        where, weight, ours = (*place, "weight"), entry.get("weight"), self._settings.scheduler_weight
        if not isinstance(weight, int) or weight <= 0:
            yield self._found(
                "error",
                "weight-missing",
                where,
                "is missing or not above 0: kube-scheduler rejects the file",
                "Write weight: 150.",
            )
        elif ours is not None and weight != ours:
            yield self._found(
                "error",
                "weight-differs",
                where,
                f"is {weight}, and schedulerWeight of our settings is {ours}: filter leaves out nodes that could win",
                "Write the same number into both files.",
            )
        elif weight < OUTWEIGHS_USUAL:
            yield self._found(
                "warning",
                "weight-low",
                where,
                f"is {weight}: the in-tree plugins can outweigh a point of ours even for a pod without preferences",
                f"Write {OUTWEIGHS_USUAL} or more; 150 outweighs all of them together.",
            )

    def _calls(self, entry: Mapping[str, Any], place: Place) -> Iterator[Finding]:
        if entry.get("nodeCacheCapable") is not True:
            yield self._found(
                "warning",
                "whole-nodes-sent",
                (*place, "nodeCacheCapable"),
                "is not true: whole nodes are sent, and since "
                "Kubernetes 1.33 the in-tree score plugins see every node as empty",
                "Write true.",
            )
        if entry.get("ignorable"):
            yield self._found(
                "warning",
                "ignorable",
                (*place, "ignorable"),
                "is true: while gpu-extender does not answer, GPU pods are placed on nodes that were not checked",
                "Write false.",
            )
        stated = entry.get("httpTimeout")
        stated = "5s" if stated in (None, "0", "0s") else stated  # 0: kube-scheduler takes its default
        plain = not isinstance(stated, str) or stated.strip().isdigit()  # Go wants a unit
        seconds = None if plain else duration(stated)
        if seconds is None:
            yield self._found("error", "timeout-unreadable", (*place, "httpTimeout"), "is no duration", "Write 5s.")
        elif seconds < SHORTEST_TIMEOUT:
            yield self._found(
                "warning",
                "timeout-short",
                (*place, "httpTimeout"),
                f"is {stated}: a preempt call waits up to 3.6 s for "
                "an API server that is just back, and its pod would be parked for minutes",
                "Write 5s.",
            )

    def _url(self, entry: Mapping[str, Any], place: Place) -> Iterator[Finding]:
        where, text = (*place, "urlPrefix"), str(entry.get("urlPrefix") or "")
        url = _split(text)
        if url is None:
            yield self._found(
                "error",
                "url-unusable",
                where,
                f"{text!r} is no address" if text else "is missing",
                "Write http://127.0.0.1:8888/v1 for a sidecar.",
            )
            return
        if url.path.rstrip("/") != "/v1":
            yield self._found(
                "error",
                "url-path",
                where,
                f"kube-scheduler asks {text.rstrip('/')}/filter, and gpu-extender serves /v1/filter",
                "End it with /v1.",
            )
        stated = entry.get("tlsConfig")
        tls: Mapping[str, Any] = stated if isinstance(stated, dict) else {}
        trusted = tls.get("caFile") or tls.get("caData")
        if tls.get("insecure") and trusted:
            yield self._found(
                "error",
                "certificate-contradiction",
                (*place, "tlsConfig", "insecure"),
                "is true beside a CA: kube-scheduler does not start with both",
                "Remove it.",
            )
        elif tls.get("insecure") and url.scheme == "https":
            yield self._found(
                "warning",
                "certificate-unchecked",
                (*place, "tlsConfig", "insecure"),
                "is true: no certificate is checked at all",
                "Remove it, and state tlsConfig.caFile.",
            )
        elif entry.get("enableHTTPS") and not trusted:
            yield self._found(
                "warning",
                "certificate-unchecked",
                (*place, "enableHTTPS"),
                "is true without a CA: no certificate is checked at all",
                "State tlsConfig.caFile.",
            )
        if url.scheme == "http" and not _is_loopback(url.hostname or ""):
            yield self._found(
                "warning",
                "plain-http",
                where,
                "goes over the network without TLS: pods can be read and answers forged",
                "Use https with a CA in tlsConfig (manifests/remote), or a sidecar on loopback.",
            )

    def _resources(self, entry: Mapping[str, Any], place: Place) -> Iterator[Finding]:
        where = (*place, "managedResources")
        listed = entry.get("managedResources")
        if not isinstance(listed, list) or not listed:
            yield self._found(
                "error",
                "resources-not-named",
                where,
                "is missing: every pod waits for gpu-extender, its own included, so "
                "that it cannot start again by itself",
                "List the GPU resources.",
            )
            return
        ours = [resource.name for resource in self._settings.resources]
        names = [resource.get("name") if isinstance(resource, dict) else None for resource in listed]
        for at, resource in enumerate(listed):
            if isinstance(resource, dict) and resource.get("ignoredByScheduler"):
                yield self._found(
                    "error",
                    "resource-ignored",
                    (*where, at, "ignoredByScheduler"),
                    "is true: kube-scheduler does not "
                    "count these GPUs, nor see that an eviction frees them, so preemption ends",
                    "Write false.",
                )
            if names[at] not in ours:
                yield self._found(
                    "warning",
                    "resource-not-ours",
                    (*where, at, "name"),
                    f"{names[at]!r} is none of `resources` of our "
                    f"settings, so we do not judge it{did_you_mean(str(names[at]), ours)}",
                    "Name it in both files, word for word.",
                )
        left_out = [name for name in ours if name not in names]
        if left_out:
            yield self._found(
                "info",
                "resource-not-managed",
                where,
                f"does not name {', '.join(left_out)}: pods that ask for it alone are placed without us",
                "Name it where nodes offer it.",
            )


def _names(listed: Any) -> set[Any]:
    """The names of the items of a list."""
    return (
        {resource.get("name") for resource in listed if isinstance(resource, dict)}
        if isinstance(listed, list)
        else set()
    )


def _split(text: str) -> SplitResult | None:
    """The parts of an address that kube-scheduler could ask; None where it is none."""
    try:
        url = urlsplit(text)
        return url if url.scheme in ("http", "https") and url.hostname and url.port != 0 else None
    except ValueError:  # of a port above 65535, too
        return None


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
