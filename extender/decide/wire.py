"""The only file that knows the field names of extender/v1.

kube-scheduler writes Go's exported names (`Pod`, `NodeNames`, …) and `null` for what is not there. Requests are read
exactly; answers are complete and in the same spelling.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Iterator, KeysView, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import msgspec
import orjson

from ext_core import encode, scan
from extender.cluster.cluster import ClusterView
from extender.errors import BadRequest
from extender.objects import records
from extender.objects.pods import NOT_PLACED
from extender.objects.records import PodRecord
from extender.preemption.preemption import Offered, Offers

LONGEST_NAME: Final = 253
"""Characters: no object of Kubernetes has a longer name."""


class CandidateNodes(msgspec.Struct, gc=False):
    """What ExtenderArgs states beside the pod."""

    rows: array[int]  # the candidates' rows, -1 where a name is not known
    unknown: list[tuple[int, str]]  # (position, name) of those
    body: bytes
    names: tuple[int, int] | None  # byte range of NodeNames
    nodes: list[tuple[int, int]] | None  # byte ranges of whole Node objects (nodeCacheCapable: false)


class Args(CandidateNodes):
    """ExtenderArgs."""

    pod: PodRecord


@dataclass(frozen=True, slots=True)
class PreemptionArgs:
    """ExtenderPreemptionArgs."""

    pod: PodRecord
    offers: Offers
    """Where kube-scheduler wrote the plain form: victims of known nodes only, read when they are asked for."""
    whole: Callable[[], Mapping[str, Offered]]  # the offers of all nodes


class _Lazy(Mapping[str, Offered]):
    """The offered victims of known nodes, still bytes."""

    def __init__(self, body: bytes, cluster: ClusterView, plain: tuple[array[int], array[int]], path: str) -> None:
        self._body, self._cluster, self._path = body, cluster, path
        self._rows, self._spans = plain
        self._found: dict[str, int] | None = None
        self._is_read = False

    @property
    def _places(self) -> dict[str, int]:
        """Few requests look at several nodes."""
        if self._found is None:
            names = self._cluster.names
            self._found = {names[row]: i for i, row in enumerate(self._rows) if row >= 0}
        return self._found

    def _place(self, node: str) -> int:
        """The first look makes no index of all nodes."""
        if self._is_read:
            return self._places[node]
        self._is_read, row = True, self._cluster.row(node)
        if row < 0 or row not in self._rows:
            raise KeyError(node)
        return self._rows.index(row)

    def __getitem__(self, node: str) -> Offered:
        at = 2 * self._place(node)
        start, end = self._spans[at : at + 2]
        try:
            offered = _offered(node, orjson.loads(self._body[start:end]), self._path, _meta_uid)
        except orjson.JSONDecodeError as error:
            raise BadRequest(f"malformed JSON: {error}", path=self._path) from error
        assert offered is not None
        return offered

    def keys(self) -> KeysView[str]:
        return self._places.keys()

    def __contains__(self, node: object) -> bool:
        return node in self._places

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._rows) - self._rows.count(-1)


@dataclass(frozen=True, slots=True)
class Binding:
    """The body of a bind call: which pod, and to which node."""

    namespace: str
    name: str
    uid: str
    node: str


def _null(body: bytes, span: tuple[int, int] | None) -> bool:
    return span is None or (span[1] - span[0] == 4 and body[span[0] : span[1]] == b"null")  # a slice is a copy


def _pod(body: bytes, keys: Keys, identity: Identity, cluster: ClusterView) -> PodRecord:
    """The pod of the request: its record in the cluster, where that is of the same version, else decoded. One version
    of an object has one content. Only nominatedNodeName is compared too: kube-scheduler knows it before it writes it.
    """
    if identity is not None:
        uid, version, nominated = identity
        known = cluster.pods.get(uid)
        if known is not None and known.resource_version == version and _same(known, nominated):
            return known
    span = keys.get("Pod")
    if span is None or _null(body, span):
        raise BadRequest("the request names no Pod", path="Pod")
    try:
        pod = records.pod(body[span[0] : span[1]], cluster.gpu_names)
    except records.RecordError as error:
        raise BadRequest(f"{error.message}; the pod {NOT_PLACED}", path=f"Pod.{error.path}".rstrip(".")) from error
    if pod.unread:
        raise BadRequest(pod.unread_text, path="Pod")
    if not pod.uid:
        raise BadRequest("the pod has no uid", path="Pod.metadata.uid")
    for key, text in (("uid", pod.uid), ("namespace", pod.namespace), ("name", pod.name)):
        _short(text, f"Pod.metadata.{key}")
    return cluster.dra.read(pod)


def _same(pod: PodRecord, nominated: str) -> bool:
    """Whether a record of the same version has all that the request states, and nothing else: a cluster file may leave
    versions and priorities out, and have names that no API server admits."""
    return (
        pod.resource_version != ""
        and pod.nominated_node == nominated
        and not pod.unread
        and (pod.priority_given or not pod.priority_class)
        and len(pod.uid) <= LONGEST_NAME
        and len(pod.namespace) <= LONGEST_NAME
        and len(pod.name) <= LONGEST_NAME
    )


def _short(text: str, path: str) -> None:
    """What names an object is kept for minutes; the API server admits none that is longer."""
    if len(text) > LONGEST_NAME:
        raise BadRequest(f"{len(text)} characters, the limit is {LONGEST_NAME}", path=path)


def _split(body: bytes) -> dict[str, tuple[int, int]]:
    try:
        return scan.split(body)
    except scan.ScanError as error:
        raise BadRequest(f"malformed JSON: {error}", path="") from error


Keys: TypeAlias = dict[str, tuple[int, int]]
Identity: TypeAlias = "tuple[str, str, str] | None"
"""(uid, resourceVersion, nominatedNodeName) of the pod; None: only a JSON decoder can read them."""
Read: TypeAlias = "tuple[array[int], list[tuple[int, str]]] | None"
Spans: TypeAlias = list[tuple[int, int]]
Candidates: TypeAlias = "tuple[array[int], list[tuple[int, str]], bytes, tuple[int, int] | None, Spans | None]"


def read_args(body: bytes, cluster: ClusterView, most: int) -> Args:
    """Parse a filter or prioritize request. At most `most` candidates."""
    keys, identity, read = _split_names(body, cluster)
    pod = _pod(body, keys, identity, cluster)
    return Args(*_candidates(body, keys, read, cluster, most), pod)


def read_candidates(body: bytes, cluster: ClusterView, most: int) -> CandidateNodes:
    """The candidates of a filter or prioritize request, whatever its pod is. At most `most`."""
    keys, _, read = _split_names(body, cluster)
    return CandidateNodes(*_candidates(body, keys, read, cluster, most))


def _split_names(body: bytes, cluster: ClusterView) -> tuple[Keys, Identity, Read]:
    try:
        return scan.split_names(body, "NodeNames", cluster.rows.index)
    except scan.ScanError as error:
        raise BadRequest(f"malformed JSON: {error}", path="") from error


def _candidates(body: bytes, keys: Keys, read: Read, cluster: ClusterView, most: int) -> Candidates:
    """The fields of CandidateNodes."""
    index = cluster.rows.index
    names, nodes = keys.get("NodeNames"), keys.get("Nodes")
    try:
        if names is not None and not _null(body, names):
            rows, unknown = read or scan.rows(body, names[0], names[1], index)
            _bounded(len(rows), most, "NodeNames")
            return rows, unknown, body, names, None
        if nodes is not None and not _null(body, nodes):
            items = scan.items(body, nodes[0], nodes[1])
            _bounded(len(items), most, "Nodes.items")
            rows, unknown = array("i"), []
            for i, (start, end) in enumerate(items):
                name = scan.node_name(body, start, end)
                row = index.get(name)
                rows.append(row)
                if row < 0:
                    unknown.append((i, name))
            return rows, unknown, body, None, items
    except scan.ScanError as error:
        raise BadRequest(str(error), path="NodeNames" if nodes is None or _null(body, nodes) else "Nodes") from error
    raise BadRequest("both NodeNames and Nodes are missing", path="NodeNames")


def _bounded(count: int, most: int, path: str) -> None:
    if count > most:
        raise BadRequest(f"{count} candidates, the limit is {most} (settings: limits.names)", path=path)


def untouched(args: Args | CandidateNodes) -> bytes:
    """The filter answer that passes every candidate as it came."""
    if args.names is not None:
        names = args.body[args.names[0] : args.names[1]]
        return b'{"Nodes":null,"NodeNames":' + names + b',"FailedNodes":{},"FailedAndUnresolvableNodes":{},"Error":""}'
    items = b",".join(args.body[start:end] for start, end in args.nodes or ())
    return (
        b'{"Nodes":{"metadata":{},"items":[' + items + b']},"NodeNames":null,'
        b'"FailedNodes":{},"FailedAndUnresolvableNodes":{},"Error":""}'
    )


def named_node(name: str) -> bytes:
    """A Node object that has a name and nothing else."""
    return orjson.dumps({"metadata": {"name": name}})


def also_failed(body: bytes, node: str, text: str) -> bytes:
    """A filter answer with one more entry in FailedNodes. `body`: an answer of ours; whole nodes in it are as they were
    sent, and need not be what a JSON library reads. `node`: not in FailedNodes yet."""
    key = b'"FailedNodes":{'
    at = body.rindex(key) + len(key)  # what follows the nodes is text of ours, with its quotes escaped
    more = b"" if body[at : at + 1] == b"}" else b","
    return body[:at] + orjson.dumps(node) + b":" + orjson.dumps(text) + more + body[at:]


def filter_error(message: str) -> bytes:
    """A filter answer that states an error: kube-scheduler tries the pod again."""
    return encode.filter_error(message)


def flat_priorities(args: Args | CandidateNodes) -> bytes:
    """A prioritize answer without an opinion."""
    if args.names is not None:
        names = orjson.loads(args.body[args.names[0] : args.names[1]])
    else:
        names = [scan.node_name(args.body, start, end) for start, end in args.nodes or ()]
    return orjson.dumps([{"Host": name, "Score": 0} for name in names])


def read_preemption(body: bytes, cluster: ClusterView) -> PreemptionArgs:
    """Parse a preempt request."""
    index = cluster.rows.index
    try:
        keys, identity, plain = scan.split_offers(body, "NodeNameToMetaVictims", index)
    except scan.ScanError as error:
        raise BadRequest(f"malformed JSON: {error}", path="") from error
    pod = _pod(body, keys, identity, cluster)
    stated = _stated(body, keys)
    if stated is None:
        return PreemptionArgs(pod, Offers(), dict)
    path, span, uid_of = stated

    def whole() -> Mapping[str, Offered]:
        return _offers(body, span, path, uid_of)

    if plain is None or uid_of is not _meta_uid:
        offered = whole()
        return PreemptionArgs(pod, Offers(array("i", [index.get(name) for name in offered]), offered), whole)
    return PreemptionArgs(pod, Offers(plain[0], _Lazy(body, cluster, plain, path)), whole)


def read_offers(body: bytes) -> Mapping[str, Offered]:
    """What a preempt request offers, by node, whatever its pod is."""
    stated = _stated(body, _split(body))
    return {} if stated is None else _offers(body, stated[1], stated[0], stated[2])


def _stated(body: bytes, keys: Keys) -> tuple[str, tuple[int, int], Callable[[Any, str], str]] | None:
    """The field with the offers, its byte range, and what reads the uid of a victim; None where nothing is offered."""
    meta, full = keys.get("NodeNameToMetaVictims"), keys.get("NodeNameToVictims")
    if meta is not None and not _null(body, meta):
        return "NodeNameToMetaVictims", meta, _meta_uid
    if full is not None and not _null(body, full):
        return "NodeNameToVictims", full, _full_uid
    return None


def _offers(body: bytes, span: tuple[int, int], path: str, uid_of: Callable[[Any, str], str]) -> dict[str, Offered]:
    try:
        raw = orjson.loads(body[span[0] : span[1]])
    except orjson.JSONDecodeError as error:
        raise BadRequest(f"malformed JSON: {error}", path=path) from error
    if not isinstance(raw, dict):
        raise BadRequest("not an object", path=path)
    offers = {node: _offered(node, victims, path, uid_of) for node, victims in raw.items()}
    return {node: offer for node, offer in offers.items() if offer is not None}


def _offered(node: str, victims: Any, path: str, uid_of: Callable[[Any, str], str]) -> Offered | None:
    if victims is None:
        return None
    if not isinstance(victims, dict):
        raise BadRequest("not an object", path=f"{path}[{node!r}]")
    pods, violations = victims.get("Pods"), victims.get("NumPDBViolations")
    pods = [] if pods is None else pods
    violations = 0 if violations is None else violations
    # A bool is an int to Python, and orjson reads up to 2**64: neither decodes in Go when it is echoed.
    if not isinstance(pods, list) or type(violations) is not int or abs(violations) >= 1 << 63:
        raise BadRequest("Pods is not a list, or NumPDBViolations not an integer", path=f"{path}[{node!r}]")
    return Offered(tuple(uid_of(pod, f"{path}[{node!r}].Pods") for pod in pods), violations)


def preempt_request(body: bytes) -> bytes:
    """A preempt request without candidates, for the pod of a filter or prioritize request."""
    start, end = _split(body)["Pod"]
    return b'{"Pod":' + body[start:end] + b"}"


def _meta_uid(pod: Any, path: str) -> str:
    uid = pod.get("UID") if isinstance(pod, dict) else None
    if not isinstance(uid, str):
        raise BadRequest("a victim without UID", path=path)
    return uid


def _full_uid(pod: Any, path: str) -> str:
    metadata = pod.get("metadata") if isinstance(pod, dict) else None
    uid = metadata.get("uid") if isinstance(metadata, dict) else None
    if not isinstance(uid, str):
        raise BadRequest("a victim without metadata.uid", path=path)
    return uid


def preemption(node: str | None, uids: Collection[str] = (), violations: int = 0) -> bytes:
    """The preempt answer: one node with its victims, or none. Always the meta form."""
    if node is None:
        return b'{"NodeNameToMetaVictims":{}}'
    victims = {"Pods": [{"UID": uid} for uid in uids], "NumPDBViolations": violations}
    return orjson.dumps({"NodeNameToMetaVictims": {node: victims}})


def echo(offers: Mapping[str, Offered]) -> bytes:
    """The preempt answer that leaves everything as it was offered (nodes without victims cannot be named)."""
    return orjson.dumps(
        {
            "NodeNameToMetaVictims": {
                node: {"Pods": [{"UID": uid} for uid in offer.uids], "NumPDBViolations": offer.violations}
                for node, offer in offers.items()
                if offer.uids
            }
        }
    )


def read_binding(body: bytes) -> Binding:
    """The body of a bind call. Raises BadRequest where a field is missing, or is no string."""
    try:
        raw = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise BadRequest(f"malformed JSON: {error}", path="") from error
    if not isinstance(raw, dict):
        raise BadRequest("not an object", path="")
    values = [raw.get(key) for key in ("PodNamespace", "PodName", "PodUID", "Node")]
    for key, value in zip(("PodNamespace", "PodName", "PodUID", "Node"), values, strict=True):
        if not isinstance(value, str) or not value:
            raise BadRequest("missing, or not a string", path=key)
        _short(value, key)
    namespace, name, uid, node = values
    return Binding(str(namespace), str(name), str(uid), str(node))


def binding(error: str = "") -> bytes:
    """A bind answer; "" states success."""
    return orjson.dumps({"Error": error})
