"""A frozen cluster from a file: what kubectl prints, JSON or YAML; and what is no cluster."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from extender.ask import frozen
from extender.ask.whatif import question
from extender.errors import BadCluster
from extender.objects.records import PodRecord
from tests.calls import calls_of
from tests.world import AMD, GPU, JSON, World, machine, workload

GPUS = frozenset({GPU, AMD})


def whole() -> JSON:
    """As `kubectl get nodes,pods,pdb,priorityclasses,configmaps -A -o json` prints it."""
    return {
        "apiVersion": "v1",
        "kind": "List",
        "metadata": {"resourceVersion": ""},
        "items": [
            {"apiVersion": "v1", "kind": "Node"} | machine("n", 8),
            {"apiVersion": "v1", "kind": "Pod"} | workload("r", 3, node="n", phase="Running", start=1.0),
            {
                "kind": "PodDisruptionBudget",
                "metadata": {"name": "b", "namespace": "default"},
                "spec": {"selector": {"matchLabels": {"a": "b"}}},
                "status": {"disruptionsAllowed": 2},
            },
            {"kind": "PriorityClass", "metadata": {"name": "high"}, "value": 1000},
            {"kind": "DeviceClass", "metadata": {"name": "d"}, "spec": {"extendedResourceName": "example.com/x"}},
            {"kind": "ConfigMap", "metadata": {"name": "not ours"}, "data": {"a": "b"}},
        ],
    }


def yaml(*documents: JSON) -> bytes:
    from io import BytesIO

    stream = BytesIO()
    YAML(typ="safe", pure=True).dump_all(documents, stream)
    return stream.getvalue()


FORMS = {
    "one JSON List": json.dumps(whole()).encode(),
    "JSON after spaces": b"\n  " + json.dumps(whole(), indent=2).encode(),
    "one YAML List": yaml(whole()),
    "YAML documents": yaml(*whole()["items"]),
    "YAML with an empty document": b"---\n" + yaml(*whole()["items"]) + b"\n---\n",
}


@pytest.mark.parametrize("raw", FORMS.values(), ids=FORMS)
def test_every_form_is_the_same_cluster(raw: bytes, tmp_path: Path) -> None:
    path = tmp_path / "cluster"
    path.write_bytes(raw)
    events = frozen.read(path, GPUS)
    assert [event.kind for event in events] == ["Node", "Pod", "PodDisruptionBudget", "PriorityClass", "DeviceClass"]
    world = World()
    world.cluster.apply(events, world.now)
    cluster = world.cluster
    assert (list(cluster.nodes), [pod.name for pod in cluster.pods.values()]) == (["n"], ["r"])
    assert cluster.budgets.records[("default", "b")].disruptions_allowed == 2
    assert cluster.priority_classes["high"].value == 1000
    assert world.filter(workload("p", 5))["NodeNames"] == ["n"]
    assert world.filter(workload("q", 6))["NodeNames"] == []


def test_a_typed_list_leaves_the_kind_of_its_items_out() -> None:
    raw = json.dumps({"kind": "NodeList", "items": [machine("a"), machine("b")]}).encode()
    assert [event.record.name for event in frozen.parse(raw, GPUS)] == ["a", "b"]


@pytest.mark.parametrize("raw", [b'{"kind":"List"}', b'{"kind":"List","items":null}', b'{"kind":"List","items":[]}'])
def test_an_empty_list_is_an_empty_cluster(raw: bytes) -> None:
    assert frozen.parse(raw, GPUS) == []


@pytest.mark.parametrize("raw", [b"", b" \n", b"---\n", b"# nothing\n", b"null"])
def test_an_empty_file_is_no_cluster(raw: bytes) -> None:
    with pytest.raises(BadCluster, match="file: is empty: expected Kubernetes objects"):
        frozen.parse(raw, GPUS, "file")
    with pytest.raises(BadCluster, match="is empty"):
        frozen.documents(raw, "file")


def test_a_large_dump_of_yaml_is_read_in_c() -> None:
    """2.3 MB took 35 s with a parser in Python, which calls several functions for each character."""
    item = json.dumps({"apiVersion": "v1", "kind": "Pod"} | workload("r", 1, node="n", phase="Running", start=1.0))
    raw = yaml(json.loads(item))
    lines = [b"  " + line for line in raw.splitlines()]
    lines[0] = b"- " + lines[0].strip()
    dump = b"kind: List\nitems:\n" + b"\n".join(lines * 300)
    found: list[object] = []
    called = calls_of(lambda: found.extend(frozen.documents(dump, "dump")))
    assert len(found) == 300
    assert called < 3 * len(dump)  # 1.5 here; a parser in Python calls 24


def test_scalars_mean_what_they_mean_in_yaml_1_2() -> None:
    raw = b"kind: List\nitems:\n- {kind: X, a: yes, b: 0777, c: 1:30, d: 1e3, e: ~, f: '1', g: !!str 1, <<: {h: 16}}\n"
    (document,) = frozen.documents(raw, "file")
    assert document.item == {
        "kind": "X", "a": "yes", "b": 777, "c": "1:30", "d": 1000.0, "e": None, "f": "1", "g": "1", "h": 16,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (
            b"kind: List\nkind: List\n",
            'line 2, column 1: found duplicate key "kind"',
        ),
        (b"kind: X\nmetadata:\n  name: a\n  name: b\n", 'line 4, column 3: found duplicate key "name"'),
        (b"kind: X\nmetadata:\n  name: a\n  name: b\n", "line 4, column 3"),
        (b"kind: X\na: *b\n", "line 2, column 4: found undefined alias 'b'"),
        (b"kind: X\na: !b c\n", "line 2, column 4: could not determine a constructor for the tag '!b'"),
        (b"kind: X\na: !!set {b}\n", "line 2, column 4"),
        (b"kind: X\n? [a]\n: b\n", "line 2, column 3"),
        (b"kind: X\na: 2024-13-45\n", "line 2, column 4"),
        (b"kind: List\n items: [", "line 2, column 7"),
        (b"- " * 300_000 + b"x", "nested too deep"),
        (b"[" * 3000, "malformed JSON"),
        (b"a: " + b"[" * 300, "nested too deep"),
    ],
)
def test_malformed_yaml_is_rejected_with_its_line(raw: bytes, said: str) -> None:
    with pytest.raises(BadCluster) as caught:
        frozen.parse(raw, GPUS, "file.yaml")
    assert said in str(caught.value)


def test_nesting_beyond_every_limit_is_rejected() -> None:
    """By our limit, or by the parser's own: PyYAML has one since 6.0.4, with a sentence of its own."""
    with pytest.raises(BadCluster, match=r"^file\.yaml: \S"):
        frozen.parse(b"a: " + b"[" * 3000, GPUS, "file.yaml")


BAD: dict[str, tuple[bytes, str]] = {
    "malformed JSON": (b'{"kind": "List", ', "malformed JSON"),
    "malformed YAML": (b"kind: List\n items: [", "malformed YAML"),
    "two values for a key": (b"kind: List\nkind: List\n", "malformed YAML"),
    "not UTF-8": (b"kind: \xff\xfe", "malformed YAML"),
    "a list": (b"[]", "expected a Kubernetes object"),
    "a word": (b"hello", "expected a Kubernetes object"),
    "no kind": (b"{}", "expected a Kubernetes object"),
    "items of a wrong type": (b'{"kind":"List","items":3}', "items is not a list"),
    "an item without kind": (b'{"kind":"List","items":[{"metadata":{"name":"n"}}]}', "items[0]"),
    "an item that is no object": (b'{"kind":"List","items":[3]}', "items[0]"),
    "a null item": (b'{"kind":"NodeList","items":[null]}', "items[0]"),
    "a node without name": (b'{"kind":"List","items":[{"kind":"Node"}]}', "items[0].metadata.name"),
}


@pytest.mark.parametrize(("raw", "said"), BAD.values(), ids=BAD)
def test_what_is_no_cluster_is_refused_with_the_place(raw: bytes, said: str) -> None:
    with pytest.raises(BadCluster) as caught:
        frozen.parse(raw, GPUS, "file.json")
    assert said in str(caught.value)
    assert str(caught.value).startswith("file.json")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    for path in (tmp_path / "absent", tmp_path):
        with pytest.raises(BadCluster, match="cannot be read"):
            frozen.read(path, GPUS)


def test_several_documents_of_json() -> None:
    """As several calls of kubectl print them into one file, and with YAML's line between them."""
    nodes, rest = {"kind": "NodeList", "items": whole()["items"][:1]}, {"kind": "List", "items": whole()["items"][1:]}
    one = frozen.parse(json.dumps(whole()).encode(), GPUS)
    for between in ("", "\n", "\n---\n", "\n\n---  \n"):
        raw = f"{json.dumps(nodes, indent=1)}{between}{json.dumps(rest)}\n".encode()
        assert frozen.parse(raw, GPUS) == one
    for wrong in (b'{"kind": "List"}{', b'{"kind": "List"} x {"kind": "List"}', b'{"kind": "List"}\n{"kind": NaN}'):
        with pytest.raises(BadCluster, match="malformed JSON"):
            frozen.parse(wrong, GPUS)


def test_a_pod_without_priority_has_that_of_its_class() -> None:
    classes: list[JSON] = [{"kind": "PriorityClass", "metadata": {"name": "high"}, "value": 1000}]
    expected = {"high": 1000, "system-node-critical": 2_000_001_000, "": 0, "gone": 0}
    for name, value in expected.items():
        pod = workload("r", 1, node="n", spec={"priorityClassName": name})
        del pod["spec"]["priority"]
        events = frozen.parse(json.dumps({"kind": "List", "items": [{"kind": "Pod"} | pod, *classes]}).encode(), GPUS)
        assert isinstance(events[0].record, PodRecord)
        assert events[0].record.priority == value


@pytest.mark.parametrize(
    ("annotations", "owners", "daemon", "mirror"),
    [
        ({"kubernetes.io/config.source": "file"}, [], False, True),
        ({"kubernetes.io/config.source": "api"}, [], False, False),
        ({"kubernetes.io/config.mirror": "x"}, [], False, True),
        ({}, [{"kind": "DaemonSet", "name": "d"}], True, False),
        ({}, [{"kind": "Node", "name": "n"}], False, True),
        ({}, [{"kind": "DaemonSet", "name": "d", "controller": False}], False, False),
    ],
)
def test_who_belongs_to_the_node(annotations: JSON, owners: list[JSON], daemon: bool, mirror: bool) -> None:
    pod: JSON = {"kind": "Pod"} | workload("r", 1, node="n", annotations=annotations)
    pod["metadata"]["ownerReferences"] = owners
    (record,) = question.read(frozen.documents(json.dumps(pod).encode(), "file"), GPUS).pods
    assert (record.daemon, record.mirror) == (daemon, mirror)


def test_an_empty_text_with_the_tag_of_a_number_is_malformed() -> None:
    with pytest.raises(BadCluster, match="malformed YAML"):
        frozen.documents(b"kind: !!int ''\n", "file")


def test_of_a_repeated_key_of_a_manifest_the_last_one_counts_and_is_named() -> None:
    repeated: list[str] = []
    (document,) = frozen.documents(b"kind: X\na: 1\na: 2\n", "file", repeated)
    assert document.item == {"kind": "X", "a": 2}
    assert repeated == ["file: line 3 repeats the key a: the last one counts"]


def test_yaml_in_flow_style_is_read() -> None:
    (document,) = frozen.documents(b"{kind: X, a: [1, 'b'],}", "file")
    assert document.item == {"kind": "X", "a": [1, "b"]}
