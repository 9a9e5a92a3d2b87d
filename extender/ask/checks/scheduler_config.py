"""A KubeSchedulerConfiguration of a user: what keeps kube-scheduler from asking gpu-extender well.

Each rule is one that manifests/kube-scheduler-config.yaml explains. Unknown fields are found as kube-scheduler's strict
decoder finds them, with their lines.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from ipaddress import ip_address
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit

from extender.ask.checks.finding import ORDER, Finding, Severity, listed, mapping
from extender.ask.checks.finding import at as at_path
from extender.ask.text import count, short
from extender.errors import BadInput
from extender.objects.progress import duration
from extender.settings import Settings
from extender.settings.fields import did_you_mean
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
_VERBS: Final = {
    "filter": "GPU pods are placed on nodes that were not checked",
    "prioritize": "our order of the nodes does not count",
    "preempt": "kube-scheduler evicts by count, blind to links and to what is lost",
    "bind": "GPUs are predicted, and known once the pod runs; the relay needs it",
}
"""Verbs, and what follows where they are missing."""
_FINDINGS: Final[Mapping[str, tuple[Severity, str, str]]] = {
    "config-version": (
        "error", "is {stated!r}: Kubernetes 1.29 and newer read no other version than v1", f"Write {VERSION}.",
    ),
    "wrong-type": ("error", "is {kind}", "Correct it: kube-scheduler does not start with it."),
    "unknown-field": (
        "error", "is not a field{near}", "Correct its name, or remove it: kube-scheduler does not start with it.",
    ),
    "nodes-sampled": (
        "warning", "is {stated}: in clusters of more than 100 nodes kube-scheduler looks at a sample, and a GPU pod "
        "can wait beside a node that fits", "Write 100.",
    ),
    "backoff-long": (
        "info", "is {most}: a pod that waits may start this many seconds after GPUs have become free",
        "10 is the default; 60 relieves a cluster with many waiting pods.",
    ),
    "profile-unnamed": (
        "error", "is missing: of several profiles each needs it", "Give each profile a name of its own.",
    ),
    "profile-twice": ("error", "{name!r} is the name of two profiles", "Give each profile a name of its own."),
    "lease-shared": (
        "warning", "is that of the cluster's own scheduler: only one of the two schedules",
        "Give a second scheduler a Lease of its own, such as gpu-scheduler.",
    ),
    "scores-spread": (
        "warning", "NodeResourcesFit scores by LeastAllocated{default}: it spreads pods over nodes, which works "
        "against packing GPUs", "Write scoringStrategy.type: MostAllocated with the GPU resources.",
    ),
    "scores-without-gpus": (
        "warning", "NodeResourcesFit packs by CPU and memory, and by no GPU resource",
        "List the GPU resources in scoringStrategy.resources, with weight 10.",
    ),
    "preemption-sampled": (
        "warning", "DefaultPreemption offers {percentage} % of the nodes for a preemption, from a random place on: the "
        "cheapest victims of a part are not the cheapest", "Write minCandidateNodesPercentage: 100.",
    ),
    "plugin-disabled": ("error", "{plugin} is disabled: {effect}", "Leave it enabled."),
    "balanced-allocation": (
        "info", "NodeResourcesBalancedAllocation scores: it prefers nodes whose CPU, memory and GPUs are used in equal "
        "shares, which works against packing GPUs", "Disable it at the point score.",
    ),
    "extender-missing": (
        "error", "no entry asks gpu-extender: GPU pods are placed without it",
        "Copy the entry of manifests/kube-scheduler-config.yaml.",
    ),
    "binders-several": (
        "error", "is stated beside that of {binder}: kube-scheduler starts with one extender that binds",
        "Leave it to one of them.",
    ),
    "resource-twice": (
        "error", "{name!r} is managed at {first} already: kube-scheduler starts with one that manages it",
        "Name each resource once, in one extender.",
    ),
    "verb-missing": ("error", "is missing: {effect}", "Write {verb}Verb: {verb}."),
    "verb-missing:bind": ("info", "is missing: {effect}", "Write {verb}Verb: {verb}."),
    "verb-unknown": ("error", "is {stated!r}: gpu-extender serves /v1/{verb}", "Write {verb}Verb: {verb}."),
    "weight-missing": ("error", "is missing or not above 0: kube-scheduler rejects the file", "Write weight: 150."),
    "weight-differs": (
        "error", "is {weight}, and schedulerWeight of our settings is {ours}: filter leaves out nodes that could win",
        "Write the same number into both files.",
    ),
    "weight-low": (
        "warning", "is {weight}: the in-tree plugins can outweigh one of our points even for a pod without preferences",
        f"Write {OUTWEIGHS_USUAL} or more; 150 outweighs all of them together.",
    ),
    "whole-nodes-sent": (
        "warning", "is not true: whole nodes are sent, and since Kubernetes 1.33 the in-tree score plugins see every "
        "node as empty", "Write true.",
    ),
    "ignorable": (
        "warning", "is true: while gpu-extender does not answer, GPU pods are placed on nodes that were not checked",
        "Write false.",
    ),
    "timeout-unreadable": ("error", "is no duration", "Write 5s."),
    "timeout-short": (
        "warning", "is {stated}: a preempt call waits up to 3.6 s for an API server that is just back, and its pod "
        "would be parked for minutes", "Write 5s.",
    ),
    "url-unusable": ("error", "{what}", "Write http://127.0.0.1:8888/v1 for a sidecar."),
    "url-path": (
        "error", "kube-scheduler asks {asked}/filter, and gpu-extender serves /v1/filter", "End it with /v1.",
    ),
    "certificate-contradiction": (
        "error", "is true beside a CA: kube-scheduler does not start with both", "Remove it.",
    ),
    "certificate-unchecked": (
        "warning", "is true: no certificate is checked at all", "Remove it, and state tlsConfig.caFile.",
    ),
    "certificate-unchecked:no-ca": (
        "warning", "is true without a CA: no certificate is checked at all", "State tlsConfig.caFile.",
    ),
    "plain-http": (
        "warning", "goes over the network without TLS: pods can be read and answers forged",
        "Use https with a CA in tlsConfig (manifests/remote), or a sidecar on loopback.",
    ),
    "resources-not-named": (
        "error", "is missing: every pod waits for gpu-extender, its own included, so that it cannot start again by "
        "itself", "List the GPU resources.",
    ),
    "resource-ignored": (
        "error", "is true: kube-scheduler does not count these GPUs, nor see that an eviction frees them, so "
        "preemption ends", "Write false.",
    ),
    "resource-not-ours": (
        "warning", "{name!r} is none of `resources` of our settings, so we do not judge it{near}",
        "Name it in both files, word for word.",
    ),
    "resource-not-managed": (
        "info", "does not name {names}: pods that ask for it alone are placed without us",
        "Name it where nodes offer it.",
    ),
}  # fmt: skip
"""Severity, message and remedy of each finding, by its code. Behind a colon: of which kind of it."""


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
        if (stated := self._value.get("apiVersion")) != VERSION:
            yield self._found("config-version", ("apiVersion",), stated=stated)
        yield from self._unknown(self._value, _FIELDS, ())
        yield from self._sampling()
        yield from self._profiles()
        most = self._value.get("podMaxBackoffSeconds")
        if isinstance(most, int) and most > 60:
            yield self._found("backoff-long", ("podMaxBackoffSeconds",), most=most)
        yield from self._extenders()
        at = self._ours()
        if at is None:
            yield self._found("extender-missing", ("extenders",))
        else:
            place: Place = ("extenders", at)
            entry = self._list("extenders")[at]
            for rule in (self._verbs, self._weight, self._calls, self._url, self._resources):
                yield from rule(entry, place)

    def _found(self, key: str, place: Place, **values: object) -> Finding:
        """The finding of `_FINDINGS` about a place. `values`: of its message and its remedy."""
        severity, message, remedy = _FINDINGS[key]
        line = self._document.line(place)
        facts = () if line is None else (("line", line),)
        code = key.partition(":")[0]
        return Finding(severity, code, path_of(place), message.format(**values), remedy.format(**values), facts)

    def _list(self, key: str) -> list[Mapping[str, Any]]:
        """The objects of a list of the document."""
        return [entry if isinstance(entry, dict) else {} for entry in listed(self._value.get(key))]

    # -- fields ---------------------------------------------------------------------------------------------------

    def _unknown(self, value: Any, fields: Any, place: Place) -> Iterator[Finding]:
        """Fields that do not exist, and values of another type: kube-scheduler does not start with them."""
        wanted: Any = fields if isinstance(fields, type) else type(fields)
        if fields is None or value is None:
            return
        if not isinstance(value, wanted) or (wanted is int and isinstance(value, bool)):
            yield self._found("wrong-type", place, kind=_TYPES[wanted])
        elif isinstance(fields, list):
            for at, child in enumerate(value):
                yield from self._unknown(child, fields[0], (*place, at))
        elif isinstance(fields, dict):
            for key, child in value.items():
                if key in fields:
                    yield from self._unknown(child, fields[key], (*place, key))
                else:
                    yield self._found("unknown-field", (*place, key), near=did_you_mean(str(key), list(fields)))
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
            shown = "not stated" if stated is None else stated
            yield self._found("nodes-sampled", (*place, "percentageOfNodesToScore"), stated=shown)

    # -- profiles -------------------------------------------------------------------------------------------------

    def _profiles(self) -> Iterator[Finding]:
        names: set[str] = set()
        profiles = self._list("profiles")
        for at, profile in enumerate(profiles or [{}]):
            place: Place = ("profiles", at) if profiles else ("profiles",)
            if len(profiles) > 1 and not profile.get("schedulerName"):
                yield self._found("profile-unnamed", (*place, "schedulerName"))
                continue
            name = str(profile.get("schedulerName") or "default-scheduler")
            if name in names:
                yield self._found("profile-twice", (*place, "schedulerName"), name=name)
            names.add(name)
            yield from self._scoring(profile, place)
            yield from self._preempting(profile, place)
            yield from self._disabled(profile, place)
        election = self._value.get("leaderElection")
        lease = at_path(election, "resourceName")
        elects = not isinstance(election, dict) or election.get("leaderElect", True)
        if elects and "default-scheduler" not in names and lease in (None, "kube-scheduler"):
            yield self._found("lease-shared", ("leaderElection", "resourceName"))

    def _args(self, profile: Mapping[str, Any], name: str) -> tuple[Mapping[str, Any], Place]:
        """The arguments of a plugin, and where they are."""
        for at, entry in enumerate(listed(profile.get("pluginConfig"))):
            if isinstance(entry, dict) and entry.get("name") == name and isinstance(entry.get("args"), dict):
                return entry["args"], ("pluginConfig", at, "args")
        return {}, ("pluginConfig",)

    def _scoring(self, profile: Mapping[str, Any], place: Place) -> Iterator[Finding]:
        args, where = self._args(profile, "NodeResourcesFit")
        stated = mapping(args.get("scoringStrategy"))
        kind = stated.get("type") or "LeastAllocated"
        here: Place = (*place, *where, "scoringStrategy") if args else (*place, *where)
        if kind == "LeastAllocated":
            yield self._found("scores-spread", here, default="" if stated else " (the default)")
        ours = {resource.name for resource in self._settings.resources}
        if kind == "MostAllocated" and not _names(stated.get("resources")) & ours:
            yield self._found("scores-without-gpus", here)

    def _preempting(self, profile: Mapping[str, Any], place: Place) -> Iterator[Finding]:
        args, where = self._args(profile, "DefaultPreemption")
        percentage, absolute = (args.get(f"minCandidateNodes{name}") for name in ("Percentage", "Absolute"))
        percentage = 10 if percentage is None else percentage
        if percentage != 100 and not (isinstance(absolute, int) and absolute >= MOST_NODES):
            yield self._found("preemption-sampled", (*place, *where), percentage=percentage)

    def _disabled(self, profile: Mapping[str, Any], place: Place) -> Iterator[Finding]:
        balanced = False
        for point, plugin_set in mapping(profile.get("plugins")).items():
            again = _names(at_path(plugin_set, "enabled"))
            for at, item in enumerate(listed(at_path(plugin_set, "disabled"))):
                name = at_path(item, "name")
                balanced |= point in ("score", "multiPoint") and name in ("*", "NodeResourcesBalancedAllocation")
                if point == "score":
                    continue
                for plugin in _NEEDED if name == "*" and point in ("multiPoint", "filter", "postFilter") else (name,):
                    needed = plugin in _NEEDED and (plugin == "DefaultPreemption" or point != "postFilter")
                    if needed and plugin not in again:
                        where: Place = (*place, "plugins", point, "disabled", at)
                        yield self._found("plugin-disabled", where, plugin=plugin, effect=_NEEDED[plugin])
        if not balanced:
            yield self._found("balanced-allocation", (*place, "plugins"))

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
                yield self._found("binders-several", (*place, "bindVerb"), binder=binder)
            binder = binder or (path_of(place) if entry.get("bindVerb") else "")
            for number, resource in enumerate(listed(entry.get("managedResources"))):
                name = at_path(resource, "name")
                where: Place = (*place, "managedResources", number)
                if isinstance(name, str) and name in seen:
                    yield self._found("resource-twice", (*where, "name"), name=name, first=seen[name])
                elif isinstance(name, str):
                    seen[name] = path_of(where)

    def _verbs(self, entry: Mapping[str, Any], place: Place) -> Iterator[Finding]:
        for verb, effect in _VERBS.items():
            field = f"{verb}Verb"
            stated = entry.get(field)
            if not stated:
                key = "verb-missing:bind" if verb == "bind" else "verb-missing"
                yield self._found(key, (*place, field), effect=effect, verb=verb)
            elif stated != verb:
                yield self._found("verb-unknown", (*place, field), stated=stated, verb=verb)

    def _weight(self, entry: Mapping[str, Any], place: Place) -> Iterator[Finding]:
        where, weight, ours = (*place, "weight"), entry.get("weight"), self._settings.scheduler_weight
        if not isinstance(weight, int) or weight <= 0:
            yield self._found("weight-missing", where)
        elif ours is not None and weight != ours:
            yield self._found("weight-differs", where, weight=weight, ours=ours)
        elif weight < OUTWEIGHS_USUAL:
            yield self._found("weight-low", where, weight=weight)

    def _calls(self, entry: Mapping[str, Any], place: Place) -> Iterator[Finding]:
        if entry.get("nodeCacheCapable") is not True:
            yield self._found("whole-nodes-sent", (*place, "nodeCacheCapable"))
        if entry.get("ignorable"):
            yield self._found("ignorable", (*place, "ignorable"))
        stated = entry.get("httpTimeout")
        stated = "5s" if stated in (None, "0", "0s") else stated  # 0: kube-scheduler takes its default
        plain = not isinstance(stated, str) or stated.strip().isdigit()  # Go wants a unit
        seconds = None if plain else duration(stated)
        if seconds is None:
            yield self._found("timeout-unreadable", (*place, "httpTimeout"))
        elif seconds < SHORTEST_TIMEOUT:
            yield self._found("timeout-short", (*place, "httpTimeout"), stated=stated)

    def _url(self, entry: Mapping[str, Any], place: Place) -> Iterator[Finding]:
        where, text = (*place, "urlPrefix"), str(entry.get("urlPrefix") or "")
        url = _split(text)
        if url is None:
            yield self._found("url-unusable", where, what=f"{text!r} is no address" if text else "is missing")
            return
        if url.path.rstrip("/") != "/v1":
            yield self._found("url-path", where, asked=text.rstrip("/"))
        tls = mapping(entry.get("tlsConfig"))
        trusted = tls.get("caFile") or tls.get("caData")
        if tls.get("insecure") and trusted:
            yield self._found("certificate-contradiction", (*place, "tlsConfig", "insecure"))
        elif tls.get("insecure") and url.scheme == "https":
            yield self._found("certificate-unchecked", (*place, "tlsConfig", "insecure"))
        elif entry.get("enableHTTPS") and not trusted:
            yield self._found("certificate-unchecked:no-ca", (*place, "enableHTTPS"))
        if url.scheme == "http" and not _is_loopback(url.hostname or ""):
            yield self._found("plain-http", where)

    def _resources(self, entry: Mapping[str, Any], place: Place) -> Iterator[Finding]:
        where = (*place, "managedResources")
        managed = listed(entry.get("managedResources"))
        if not managed:
            yield self._found("resources-not-named", where)
            return
        ours = [resource.name for resource in self._settings.resources]
        names = [at_path(resource, "name") for resource in managed]
        for at, resource in enumerate(managed):
            if at_path(resource, "ignoredByScheduler"):
                yield self._found("resource-ignored", (*where, at, "ignoredByScheduler"))
            if names[at] not in ours:
                near = did_you_mean(str(names[at]), ours)
                yield self._found("resource-not-ours", (*where, at, "name"), name=names[at], near=near)
        if left_out := [name for name in ours if name not in names]:
            yield self._found("resource-not-managed", where, names=", ".join(left_out))


def _names(items: Any) -> set[Any]:
    """The names of the items of a list."""
    return {item.get("name") for item in listed(items) if isinstance(item, dict)}


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
