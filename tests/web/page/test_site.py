"""The views: HTML and JSON of the same data, with a policy that lets nothing in, whatever tenants write."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from html import unescape
from html.parser import HTMLParser
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest

from extender.ask.capacity import growth_sentence
from extender.ask.fleet import EVERY_SECONDS, MOST_POINTS, FleetPoint
from extender.ask.node_reasons import MEANINGS, REMEDIES
from extender.ask.text import proof, value
from extender.decide.decisions import Decision
from extender.policy import pod_request
from extender.policy.labels import label
from extender.policy.reasons import REASONS
from extender.reservations.seats import Seat
from extender.settings import Settings
from extender.web import render
from extender.web.capacity_page import CHANGED_SECONDS, SAME_SECONDS
from extender.web.render import HEADERS
from tests.web.page.crawl import crawl
from tests.web.page.scene import ASKED, ASKED_SECONDS, PREEMPTOR, RACK, WAITS, scene
from tests.world import JSON, WALL, Reply, World, pairs, workload

VIEWS = {
    "/": "FleetMap",
    "/nodes?in=rack-2": "NodeMaps",
    "/node?node=v100-0": "NodeMap",
    "/waiting": "WaitingPods",
    f"/pod?pod={WAITS}": "Explanation",
    "/queue": "Queue",
    "/capacity": "Capacity",
    "/advice": "Advice",
    f"/whatif?pod={WAITS}": "WhatIfForm",
    "/preemptions": "AnsweredPreemptions",
    "/prices": "PriceList",
    "/decisions": "DecisionTimeline",
}


@pytest.fixture(scope="module")
def world() -> World:
    return scene()


def get(world: World, path: str, accept: str = "text/html") -> Reply:
    return world.call(path, method="GET", accept=accept)


def data(world: World, path: str) -> Any:
    where, _, query = path.partition("?")
    return get(world, f"{where}.json" + (f"?{query}" if query else "")).json


def html(world: World, path: str) -> str:
    reply = get(world, path)
    assert reply.status == 200, reply.body
    return reply.body.decode()


class Parsed(HTMLParser):
    """Every start tag with its attributes, and whether each element is closed where it must be."""

    VOID = ("meta", "link", "input", "br")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag


def links(world: World, path: str) -> Iterator[str]:
    for _, attributes in Parsed(html(world, path)).tags:
        for key in ("href", "src", "action"):
            if attributes.get(key):
                yield str(attributes[key])


@pytest.mark.parametrize(("path", "kind"), VIEWS.items())
def test_each_view_is_html_and_json(world: World, path: str, kind: str) -> None:
    page, answer = get(world, path), data(world, path)
    assert (page.status, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert (answer["apiVersion"], answer["kind"]) == ("gpu-extender.io/v1", kind)
    assert isinstance(answer["warnings"], list)
    accepted = get(world, path, accept="application/json, text/html;q=0.5")
    assert accepted.headers["content-type"] == "application/json"
    assert accepted.json == answer
    asked = get(world, path, accept="text/html,application/xhtml+xml,*/*;q=0.8")
    assert asked.headers["content-type"] == "text/html; charset=utf-8"


@pytest.mark.parametrize("path", VIEWS)
def test_nothing_inline_and_nothing_from_elsewhere(world: World, path: str) -> None:
    page = get(world, path)
    for key, text in HEADERS.items():
        assert page.headers[key] == text
    assert "unsafe" not in page.headers["content-security-policy"]
    for tag, attributes in Parsed(page.body.decode()).tags:
        assert tag != "style"
        assert not [key for key in attributes if key == "style" or key.startswith("on")]
        assert tag != "script" or (attributes["src"] or "").startswith("/static/")
        for key in ("href", "src", "action"):
            assert (attributes.get(key) or "/").startswith(("/", "#")), attributes
            assert not (attributes.get(key) or "/").startswith("//")


@pytest.mark.parametrize("path", VIEWS)
def test_every_link_leads_somewhere(world: World, path: str) -> None:
    for link in set(links(world, path)):
        if not link.startswith(("#", "/pod?")) and link != "/pod":
            assert get(world, link).status == 200, link


def test_ids_are_unique_and_labels_have_a_target(world: World) -> None:
    for path in VIEWS:
        tags = Parsed(html(world, path)).tags
        ids = [attributes["id"] for _, attributes in tags if attributes.get("id")]
        assert len(ids) == len(set(ids)), path
        for _, attributes in tags:
            for key in ("aria-labelledby", "for"):
                assert attributes.get(key) is None or attributes[key] in ids, (path, attributes)


def test_files_have_an_address_for_ever_and_another_one_when_they_change(world: World) -> None:
    for name, asset in render.assets().items():
        answer = get(world, asset.url)
        assert (answer.status, answer.body) == (200, asset.content)
        assert "immutable" in answer.headers["cache-control"]
        assert re.search(r"\.[0-9a-f]{12}\.", asset.url), name
    assert get(world, "/static/page.000000000000.css").status == 404
    assert get(world, "/static/../site.py").status == 404


def test_the_fleet_counts_every_gpu_once(world: World) -> None:
    fleet = data(world, "/")
    for rack, drawn in zip(fleet["racks"], fleet["maps"], strict=True):
        parts = ("held_gpus", "reserved_gpus", "free_gpus")
        assert sum(rack[part] for part in parts) == rack["gpus"]
        states = [gpu["state"] for node in drawn for gpu in node["gpus"]]
        held = [gpu["state"] for node in drawn for gpu in node["gpus"] if node["schedulable"]].count("held")
        assert held == rack["held_gpus"]
        assert states.count("unhealthy") == rack["unhealthy_gpus"]
        assert len(states) == rack["gpus"] + rack["closed"]["gpus"] + rack["unhealthy_gpus"]
    assert [rack["name"] for rack in fleet["racks"]] == ["rack-1", "rack-2", "rack-3"]
    assert fleet["racks"][0]["closed"] == {"nodes": 1, "gpus": 7, "free_gpus": 1}  # v100-3 is cordoned
    assert [rack["unhealthy_gpus"] for rack in fleet["racks"]] == [1, 0, 0]
    summary = fleet["summary"]
    assert (summary["gpus"], summary["gpus_of_closed_nodes"]) == (88, 7) == (
        sum(rack["gpus"] for rack in fleet["racks"]), sum(rack["closed"]["gpus"] for rack in fleet["racks"]),
    )  # fmt: skip
    assert "67 of 88 GPUs; 7 more on nodes that take no pods, 1 of them held by no pod" in html(world, "/")
    assert "2 of 24 GPUs free; 7 more on nodes that take no pods, 1 of them held by no pod" in html(world, "/")
    text = html(world, "/")
    for node in world.cluster.nodes:
        assert f">{node}</a>" in text


def test_a_group_is_a_rack_a_zone_or_a_model(world: World) -> None:
    assert [one["name"] for one in data(world, "/?by=model")["racks"]] == ["A100", "H100", "V100"]
    assert [one["name"] for one in data(world, "/?by=zone")["racks"]] == [""]  # no node states one
    assert len(data(world, "/nodes?by=zone")["nodes"]) == 12
    assert get(world, "/?by=holder").status == 400
    assert get(world, "/?holder=red").status == 400


def test_a_letter_is_a_pod_a_gang_or_a_queue(world: World) -> None:
    names = {what: data(world, f"/?holder={what}")["holders"] for what in ("pod", "gang", "queue")}
    assert "research/run-1" in names["gang"]
    assert set(names["queue"]) == {"research", "vision", "speech"}
    bound = {f"{pod.namespace}/{pod.name}" for pod in world.cluster.pods.values() if pod.node}
    assert set(names["pod"]) == bound


def test_a_colour_is_a_namespace_the_same_in_all_views(world: World) -> None:
    fleet = data(world, "/")
    colours = fleet["colours"]
    assert list(colours) == ["research", "speech", "vision"]
    assert len(set(colours.values())) == 3
    drawn = [node for nodes in fleet["maps"] for node in nodes] + [data(world, "/node?node=v100-3")]
    drawn += [one["picture"]["node"] for one in data(world, "/capacity")["drawings"]]
    for node in drawn:
        for gpu in node["gpus"]:
            expected = colours[gpu["pods"][0]["pod"].partition("/")[0]] if gpu["pods"] else None
            assert gpu["colour"] == expected, (node["node"], gpu["index"])
    assert set(data(world, "/?holder=queue")["colours"]) == {"research", "speech", "vision"}
    for path in ("/", "/nodes?in=rack-1", "/node?node=v100-3"):
        assert "colour of the namespace:" in html(world, path)
        assert "so they repeat" not in html(world, path)


def test_more_namespaces_than_colours_share_them() -> None:
    world = World()
    for n in range(9):
        world.node(f"n{n}", 1)
        world.pod(f"p{n}", 1, f"n{n}", namespace=f"team-{n}")
    assert data(world, "/")["colours"] == {f"team-{n}": n % 7 for n in range(9)}
    assert "there are 7 colours, so they repeat" in html(world, "/")


def test_a_node_that_takes_no_pods_states_no_free_gpus(world: World) -> None:
    for path in ("/", "/nodes?in=rack-1"):
        [row] = re.findall(r'<tr role="row">\s*<th scope="row" role="rowheader"><a href="/node\?node=v100-3".*?</tr>',
                           html(world, path), re.S)  # fmt: skip
        assert '<td role="cell" class="n">–<span class="unit"> free</span></td>' in row
    assert "0 free" not in html(world, "/node?node=v100-3")


def test_filters_are_all_stated(world: World) -> None:
    shown = " ".join(re.sub(r"<[^>]+>", "", html(world, "/?namespace=vision&find=run-1")).split())
    stated = "A heading with “(whole cluster)” or “(all namespaces)” is not filtered."
    assert f"Only namespace vision. {stated} Names with “run-1” are" in shown
    assert "Names with “run-1” are listed" in html(world, "/?find=run-1").replace("<b>", "").replace("</b>", "")
    assert "is not filtered" not in html(world, "/?find=run-1")


def test_links_of_a_namespace_lead_to_as_many_pods(world: World) -> None:
    text = html(world, "/?namespace=vision")
    for link, number in re.findall(r'<a href="(/waiting\?[^"]*)">(?:All )?(\d+) pod', text):
        assert len(data(world, unescape(link))["pods"]) == int(number), link
    assert "/waiting?namespace=vision" in text
    assert "The first 5 of 11 in order" in html(world, "/")
    assert "All 11 pods that wait" in html(world, "/")


def test_a_node_states_how_each_holding_is_known(world: World) -> None:
    node = data(world, "/node?node=v100-0")
    for one in node["holdings"]:
        assert one["how"] == "observed"
        pod = world.cluster.pod(*one["pod"].split("/"))
        assert pod is not None
        assert one["gpus"] == [int(text) for text in pod.annotations["gpu-extender.io/held-gpus"].split(",")]
    text = html(world, "/node?node=v100-0")
    assert text.count("<line ") >= 16  # the links of a DGX-1
    assert "rack-1" in text


def test_islands_are_gpus_that_links_connect(world: World) -> None:
    for name, islands in (("a100-0", [0, 0, 1, 1, 2, 2, 3, 3]), ("h100-0", [0] * 8)):
        assert [gpu["island"] for gpu in data(world, f"/node?node={name}")["gpus"]] == islands


def test_the_lines_of_a_node_are_explained(world: World) -> None:
    text = html(world, "/node?node=v100-0")
    assert re.findall(r'stroke-width="([\d.]+)"/></svg> (\d links?)', text) == [("3.0", "1 link"), ("5.0", "2 links")]
    assert "18 links between two GPUs, through a switch that all share" in html(world, "/node?node=h100-0")
    drawings = html(world, f"/pod?pod={WAITS}")
    keys = re.findall(r"</svg> \d+ links? between two GPUs</li>", drawings)
    assert len(keys) == drawings.count('aria-label="Signs"') == 2


def test_what_is_reserved_is_marked() -> None:
    world = World()
    world.node("a", 4, links=pairs(4))
    world.filter(world.pod("coming", 2))
    node = data(world, "/node?node=a")
    [kept] = node["reserved"]
    assert (kept["pod"], kept["by"], kept["count"]) == ("default/coming", "assumed", 2)
    assert [gpu["index"] for gpu in node["gpus"] if gpu["state"] == "reserved"] == kept["gpus"]
    assert data(world, "/")["racks"][0]["reserved_gpus"] == 2
    world.now += 60
    assert data(world, "/node?node=a")["reserved"] == []


def test_unhealthy_and_unknown_are_marked() -> None:
    world = World()
    world.node("a", 4, capacity=4)
    world.pod("somewhere", 1, "a", start=WALL)
    states = {gpu["state"] for gpu in data(world, "/node?node=a")["gpus"]}
    assert states == {"unknown"}
    assert "unknown which" in html(world, "/node?node=a")


def test_the_pod_is_explained_as_by_the_command(world: World) -> None:
    shown = data(world, f"/pod?pod={WAITS}")
    told = get(world, f"/debug/explain?pod={WAITS}").json
    assert {key: shown[key] for key in told if key not in ("decisions", "decisions_left_out")} == {
        key: told[key] for key in told if key not in ("decisions", "decisions_left_out")
    }
    text = unescape(html(world, f"/pod?pod={WAITS}"))
    assert all(clause in text for clause in shown["sentence"].split("; "))
    for way in shown["ways_out"]:
        assert way["change"] in text
    for reason, names in shown["nodes_by_reason"].items():
        assert len(names) == shown["reasons"][reason]
        nodes = "1 node" if len(names) == 1 else f"{len(names)} nodes"
        assert f'<summary>{nodes}: {MEANINGS[reason]} <span class="key">{reason}</span></summary>' in unescape(text)


def test_a_way_out_states_its_conditions_in_each_view() -> None:
    loose = World()
    loose.node("a", 4, links=pairs(4))
    for gpu in (0, 2):
        loose.pod(f"held-{gpu}", 1, "a", held=[gpu])
    loose.pod("waits", 2, priority=5, links="required")
    condition = "(only with evictions.enabled, which is off: kube-scheduler up to 1.37 may not ask for this eviction"
    for path in ("/pod?pod=default/waits", "/capacity"):
        assert condition in unescape(html(loose, path)), path
    never = World()
    never.node("a", 8)
    never.pod("held", 8, "a")
    never.pod("waits", 4, priority=5, spec={"preemptionPolicy": "Never"})
    for path in ("/pod?pod=default/waits", "/capacity"):
        assert "it may not evict: its preemptionPolicy is Never" in html(never, path), path


def test_each_reason_has_a_sentence() -> None:
    assert set(MEANINGS) >= set(REMEDIES) | {reason.key for reason in REASONS.values()}


def test_the_funnel_agrees_with_the_reasons(world: World) -> None:
    shown = data(world, f"/pod?pod={WAITS}")
    nodes = {stage["stage"]: stage["nodes"] for stage in shown["funnel"]}
    assert shown["reasons"] == {"node-selector": 7, "cordoned": 1, "links-busy": 3, "gpus-reserved": 1}
    assert nodes == {
        "seen": 12, "admitted": 4, "usable": 4, "enough-gpus": 4, "unreserved": 3, "linked": 0, "left": 0,
    }  # fmt: skip
    preemptor = data(world, f"/pod?pod={PREEMPTOR}")  # it asks for the same, and what is reserved is its own
    nodes = {stage["stage"]: stage["nodes"] for stage in preemptor["funnel"]}
    assert (nodes["enough-gpus"], nodes["unreserved"], nodes["linked"]) == (4, 4, 0)
    assert preemptor["reasons"] == {"node-selector": 7, "cordoned": 1, "links-busy": 4}
    assert "waits: 3 nodes have enough free GPUs, but no linked set of 2 GPUs" in shown["sentence"]
    assert shown["requires"] == ["a linked set", "nvidia.com/gpu.product=A100"]
    for path in (f"/pod?pod={WAITS}", "/capacity"):  # whose gang the eviction may break
        assert {one["code"] for one in data(world, path)["warnings"]} == {"gang-minimum-unknown"}, path
    assert "Each counts nodes as the cluster was then. Now 0 nodes fit." in html(world, f"/pod?pod={WAITS}")


def test_a_warning_stands_below_the_sentence_of_its_pod(world: World) -> None:
    shown, page = data(world, f"/pod?pod={WAITS}"), html(world, f"/pod?pod={WAITS}")
    [warning] = shown["warnings"]
    assert page.count('<p class="warning">') == 1
    assert page.index('id="sentence"') < page.index(warning["message"]) < page.index('class="pictures"')


def test_preemptions_state_what_their_search_proves_as_commands_do(world: World) -> None:
    shown, page = data(world, "/preemptions")["preemptions"], html(world, "/preemptions")
    proofs = [proof(one["certificate"], evicts=bool(one["victims"])) for one in shown if one["certificate"]]
    assert proofs
    assert all(f"{text.capitalize()}." in page for text in proofs)


def marked(picture: JSON, mark: str) -> list[int]:
    return [gpu for gpu, of_gpu in enumerate(picture["marks"]) if of_gpu == mark]


def test_an_eviction_is_drawn_before_and_after(world: World) -> None:
    waits = data(world, f"/pod?pod={WAITS}")
    eviction = next(way["spec"] for way in waits["ways_out"] if way["kind"] == "evict")
    [_, drawn] = waits["drawings"]
    assert (drawn["what"], drawn["node"]) == ("eviction", eviction["node"])
    before, after = drawn["pictures"]
    gpus = [gpu for victim in eviction["victims"] for gpu in victim["gpus"]]
    assert marked(before, "victim") == gpus
    taken = marked(after, "chosen")
    assert {gpu["pods"][0]["pod"] for gpu in after["node"]["gpus"] if gpu["index"] in taken} == {WAITS}
    assert len(taken) == 2
    assert set(gpus) <= set(taken)
    assert after["node"]["links"][taken[0]][taken[1]]
    others = set(range(8)) - set(taken)
    assert [before["node"]["gpus"][gpu] for gpu in others] == [after["node"]["gpus"][gpu] for gpu in others]


def test_what_is_evicted_for_a_pod_is_drawn(world: World) -> None:
    shown = data(world, f"/pod?pod={PREEMPTOR}")
    drawn, why = shown["drawings"]  # what happens comes first
    assert (drawn["what"], drawn["node"], why["what"]) == ("saving", "a100-1", "unlinked")
    assert "evict" not in {way["kind"] for way in shown["ways_out"]}  # nothing is evicted a second time
    assert [marked(shown, mark) for shown, mark in zip(drawn["pictures"], ("victim", "chosen"), strict=True)] == [
        [4], [4, 5],
    ]  # fmt: skip
    text = html(world, f"/pod?pod={PREEMPTOR}")
    assert "Pods that save their work before they are evicted for it" in text  # none is evicted yet
    reserved = text.partition("<b>res.</b> ")[2].partition("</li>")[0]
    takes = "which takes 2 of the node's GPUs once its victims have terminated"
    assert reserved.startswith("reserved: 4 kept free for ")
    assert f">{PREEMPTOR}</a>, {takes} (planned: GPUs 4-5)" in reserved
    for path in ("/", "/nodes?by=rack&in=rack-2", "/node?node=a100-1"):
        text = html(world, path)
        assert re.search(rf"4 kept free for <a[^>]*>{PREEMPTOR}</a>, {takes}<", text), path


def test_a_pod_that_is_asked_to_save_shows_until_when_and_for_which_pod(world: World) -> None:
    request = data(world, f"/pod?pod={ASKED}")["save_request"]
    times = {"at": WALL, "until": WALL + ASKED_SECONDS}
    assert request == {"by": PREEMPTOR, "by_pod": True, "answer": None} | times
    text = html(world, f"/pod?pod={ASKED}")
    assert "Asked to save its work until 08:10:00 UTC</b> (in 10 min), for <a href" in text
    assert "It has not answered yet." in text
    assert text.count("sked to save") == 1
    assert "unknown" not in text  # what its eviction frees beyond a request, and leaves over, depends on the preemptor
    lacks = "1 victim. How many GPUs it frees beyond those missing depends on the preemptor."
    assert f"{lacks} Once it has saved, less of its work is lost: the preemption below counts that.</p>" in text
    assert f"chosen: evict {ASKED} on a100-1 once it has saved its work" in text
    assert data(world, f"/pod?pod={WAITS}")["save_request"] is None
    assert "This pod alone, evicted now before it has saved: gangs broken 1, work lost 6.71 GPU-hours" in text
    assert f'The preemption for <a href="/pod?pod=serving%2Furgent">{PREEMPTOR}</a> and the runner-up</h2>' in text
    assert ">Its preemption and the runner-up</h2>" in html(world, f"/pod?pod={PREEMPTOR}")
    waits = data(world, f"/pod?pod={PREEMPTOR}")
    parts = "(at most 600 s, then 30 s of grace)"
    assert f"waits: for {ASKED} on a100-1, which saves its work before it is evicted {parts};" in waits["sentence"]
    assert waits["ways_out"][0]["cost"] == [{"term": "seconds", "value": 630.0, "unit": "seconds"}]
    [reservation] = data(world, "/preemptions")["reservations"]
    assert (reservation["victims_left"], reservation["saving_until"]) == ([ASKED], WALL + ASKED_SECONDS)


def test_the_node_where_a_pod_fits_is_drawn(world: World) -> None:
    fits = data(world, "/pod?pod=serving/small")
    [drawn] = fits["drawings"]
    assert drawn["what"] == "planned"
    assert marked(drawn["pictures"][0], "chosen") == fits["gpus"]
    assert data(world, "/pod?pod=speech/giant")["drawings"] == []


def test_free_gpus_without_a_link_are_drawn() -> None:
    """No pod may be evicted: the nearest node is drawn, and its free GPUs are not linked."""
    world = World()
    world.node("a", 4, links=pairs(4))
    for gpu in (0, 2):
        world.pod(f"holds-{gpu}", 1, "a", held=[gpu], priority=10)
    world.pod("two", 2, links="required", never=True)
    [drawn] = data(world, "/pod?pod=default/two")["drawings"]
    [shown] = drawn["pictures"]
    assert (drawn["what"], shown["marks"], shown["lacking"]) == ("unlinked", [None] * 4, [[1, 3]])
    assert drawn["text"] == "GPUs 1,3 are free, but no two of them are linked; the pod requires a linked set of 2 GPUs."
    text = html(world, "/pod?pod=default/two")
    assert drawn["text"] in text
    assert "without a link: 1 and 3" in text


def test_why_one_node_is_before_another() -> None:
    """Of two nodes with one free GPU beside a free pair, and with two pairs: the first keeps its linked set."""
    world = World()
    for name, held in (("broken", (0,)), ("whole", ())):
        world.node(name, 4, links=pairs(4))
        for gpu in held:
            world.pod(f"on-{name}", 1, name, held=[gpu])
    world.pod("small", 1)
    shown = data(world, "/pod?pod=default/small")
    assert shown["node"] == "broken"
    assert (
        shown["because"] == "broken beat whole: it takes no linked set of 2 GPUs from later pods, whole would take 1."
    )
    assert shown["because"] in html(world, "/pod?pod=default/small")


@pytest.mark.parametrize("graph", [pairs(8), [[18 if a != b else 0 for b in range(8)] for a in range(8)]])
def test_of_gpus_that_are_not_known_it_is_not_stated_what_they_leave(graph: list[list[int]]) -> None:
    """It is not known which three GPUs of n1 are held."""
    world = World()
    for name in ("n1", "n2"):
        world.node(name, 8, links=graph)
    world.pod("unknown", 3, "n1")
    world.pod("known", 1, "n2", held=[0])
    world.pod("small", 2)
    shown = data(world, "/pod?pod=default/small")
    assert shown["node"] == "n1"
    assert shown["because"].startswith("n1 beat n2: it ")
    assert "linked set of" not in shown["because"]


def ended() -> World:
    """The scene, where every pod that was decided about, and every victim, has ended, and a node is gone."""
    world = scene()
    names = [pod.name for pod in world.cluster.pods.values()]
    world.gone(*names)
    world.drop("Node", {"metadata": {"name": "a100-1", "uid": "uid-a100-1"}})
    return world


def test_a_pod_for_which_others_were_evicted_states_it() -> None:
    world = scene()
    world.gone("run-4-a100-1-4")
    world.pod("urgent", 2, "a100-1", namespace="serving", priority=1000, links="required", held=[4, 5])
    shown = data(world, f"/pod?pod={PREEMPTOR}")
    assert shown["sentence"].endswith("; vision/run-4-a100-1-4 was evicted for it")
    before, after = data(world, "/preemptions")["preemptions"][0]["pictures"]
    assert (marked(before, "victim"), marked(after, "chosen")) == ([4], [4, 5])
    assert before["node"]["gpus"][5]["state"] == "free"
    assert after["node"]["gpus"][4]["pods"][0]["pod"] == PREEMPTOR


def test_a_pod_that_has_ended_keeps_its_page() -> None:
    world = ended()
    shown = data(world, f"/pod?pod={PREEMPTOR}")
    assert (shown["verdict"], shown["sentence"], shown["gpus_asked"]) == (
        "ended",
        "ended: the cluster no longer has it",
        {"nvidia.com/gpu": 2},
    )
    assert {decision["verb"] for decision in shown["decisions"]} == {"filter", "preempt"}
    victim = data(world, "/preemptions")["preemptions"][0]["victims"][0]
    assert data(world, f"/pod?pod={victim['namespace']}/{victim['name']}")["pod"]["uid"] == victim["uid"]
    assert get(world, "/pod?pod=serving/never-seen").status == 404


def test_a_pod_that_was_bound_is_drawn_where_it_was() -> None:
    world = World()
    world.node("a", 4, links=pairs(4))
    pod = world.pod("job", 2, links="required")
    world.filter(pod)
    bound = Decision("bind", WALL - 60, 0, pod_request.read(world.cluster.pods["uid-job"], world.cluster))
    bound.result, bound.detail = "bound", {"node": "a", "gpus": [0, 1]}
    world.verbs.decisions.add(bound)
    world.pod("job", 2, "a", phase="Succeeded")
    shown = data(world, "/pod?pod=default/job")
    assert shown["sentence"] == "ended (Succeeded); it was bound to a 60 s ago"
    assert marked(shown["drawings"][0]["pictures"][0], "chosen") == [0, 1]


@pytest.mark.parametrize("make", [scene, ended], ids=["pods", "ended"])
def test_no_link_is_dead(make: Callable[[], World]) -> None:
    """Every link of every page, from the fleet on."""
    world = make()
    answered = crawl(lambda path: (lambda reply: (reply.status, reply.body.decode()))(get(world, path)), VIEWS)
    assert {path: status for path, status in answered.items() if status != 200} == {}
    assert {urlsplit(path).path for path in answered} >= {urlsplit(path).path for path in VIEWS if make is scene}


def test_the_fleet_in_six_numbers(world: World) -> None:
    shown = data(world, "/")
    summary, models = shown["summary"], shown["models"]
    assert summary["gpus"] == sum(model["gpus"] for model in models)
    assert summary["allocated_gpus"] + summary["reserved_gpus"] + summary["free_gpus"] == summary["gpus"]
    assert summary["allocated_percent"] == round(100 * summary["allocated_gpus"] / summary["gpus"])
    assert summary["waiting_pods"] == sum(reason["pods"] for reason in shown["waiting"])
    assert summary["waiting_gpus"] == sum(reason["gpus"] for reason in shown["waiting"])
    assert summary["oldest_wait_seconds"] == 7_000
    assert summary["largest_linked_set"] == max(part["gpus"] for model in models for part in model["linked_sets"])
    assert summary["reserved_gpus"] == 5
    rows = re.findall(r'>(v100-1|a100-1|h100-1)</a>.*?(\d)<span class="unit"> free', html(world, "/"), re.DOTALL)
    assert rows == [("v100-1", "0"), ("a100-1", "0"), ("h100-1", "2")]


def test_free_means_the_same_in_each_view(world: World) -> None:
    """Neither held nor reserved: as in the tile, by model, by rack, on each node and in the drawings. A pod that
    requires links is on its way to a100-1: what is not held there is kept for it."""
    shown, capacity = data(world, "/"), data(world, "/capacity")
    free = shown["summary"]["free_gpus"]
    drawn = [node for nodes in shown["maps"] for node in nodes]
    states = [gpu["state"] for node in drawn for gpu in node["gpus"]]
    listed = {node["node"]: node["free"] for node in get(world, "/debug/map").json["nodes"]}
    assert {
        sum(one["free_gpus"] for one in part) for part in (shown["models"], shown["racks"], capacity["models"])
    } == {free}
    assert free == sum(listed.values()) == states.count("free") == 16
    assert listed == {node["node"]: node["free"] for node in drawn}
    assert states.count("reserved") == shown["summary"]["reserved_gpus"]
    assert states.count("closed") == shown["racks"][0]["closed"]["free_gpus"] == 1
    [alone] = [one["pods"] for one in capacity["pods"] if one["pod_gpus"] == 1]
    assert free == alone


def cells(fleet: Any) -> dict[str, Any]:
    """The cells of the map by name."""
    return {cell["name"]: cell for group in fleet["heat"]["groups"] for cell in group["cells"]}


def test_the_map_has_a_cell_for_each_node(world: World) -> None:
    fleet = data(world, "/")
    assert {group["name"]: len(group["cells"]) for group in fleet["heat"]["groups"]} == dict.fromkeys(
        ("rack-1", "rack-2", "rack-3"), 4
    )
    shown = cells(fleet)
    for name, cell in shown.items():
        node = data(world, f"/node?node={name}")
        states = [gpu["state"] for gpu in node["gpus"]]
        assert cell["held_gpus"] == states.count("held") == cell["value"], name
        assert cell["reserved_gpus"] == states.count("reserved"), name
        assert sum(cell[f"{part}_gpus"] for part in ("held", "reserved", "free", "closed")) == cell["gpus"], name
        assert cell["unhealthy_gpus"] == states.count("unhealthy"), name
    assert shown["v100-3"]["closed_gpus"] > shown["v100-3"]["free_gpus"] == 0
    text = unescape(html(world, "/"))
    for name, cell in shown.items():
        assert f"{name}: {cell['held_gpus']} of {cell['gpus']} GPUs allocated" in text
    assert len(re.findall(r'<a class="cell s4"', text)) == sum(c["value"] == c["gpus"] for c in shown.values())


def test_a_cordoned_node_that_pods_hold_whole_is_drawn_as_one_that_takes_no_pods() -> None:
    world = World()
    world.node("open", 4)
    world.node("closed", 4, unschedulable=True)
    world.pod("holds", 4, "closed")
    shown = cells(data(world, "/"))
    assert (shown["closed"]["takes_pods"], shown["open"]["takes_pods"]) == (False, True)
    assert re.search(r'<a class="cell s4 closed"[^>]*title="closed: ', html(world, "/"))


def test_a_gpu_is_in_the_same_state_in_each_picture(world: World) -> None:
    """On the page of its node, in the fleet, and before an eviction, but for what the victims hold."""
    fleet = {node["node"]: node for nodes in data(world, "/")["maps"] for node in nodes}
    node = {gpu["index"]: gpu["state"] for gpu in data(world, "/node?node=a100-1")["gpus"]}
    assert node == {gpu["index"]: gpu["state"] for gpu in fleet["a100-1"]["gpus"]}
    assert [index for index, state in node.items() if state == "reserved"] == [1, 3, 5, 7]
    [drawn, _] = data(world, f"/pod?pod={PREEMPTOR}")["drawings"]
    for before, after in (drawn["pictures"], data(world, "/preemptions")["preemptions"][0]["pictures"]):
        assert {gpu["index"]: gpu["state"] for gpu in before["node"]["gpus"]} == node
        assert [gpu["index"] for gpu in after["node"]["gpus"] if gpu["state"] == "free"] == [1, 3, 7]
    assert "<b>res.</b> reserved" in html(world, "/preemptions")


def test_a_large_fleet_has_a_cell_for_each_rack(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    for n in range(12):
        world.node(f"n{n:02}", 4, labels={RACK: f"r{n // 3}"}, unschedulable=n > 7)
    world.pod("holds", 3, "n00")
    monkeypatch.setattr("extender.web.fleet_page.MOST_CELLS", 12)
    assert data(world, "/")["heat"]["cell"] == "node"
    monkeypatch.setattr("extender.web.fleet_page.MOST_CELLS", 11)
    by_rack = data(world, "/?find=n04")
    assert by_rack["heat"]["cell"] == "group"
    shown = cells(by_rack)
    assert {name: (cell["value"], cell["gpus"], cell["nodes"]) for name, cell in shown.items()} == {
        "r0": (3, 12, 3), "r1": (0, 12, 3), "r2": (0, 12, 3), "r3": (0, 12, 3),
    }  # fmt: skip
    assert [name for name, cell in shown.items() if cell["marked"]] == ["r1"]
    assert [name for name, cell in shown.items() if cell["takes_pods"]] == ["r0", "r1", "r2"]  # r2: two of its nodes
    monkeypatch.setattr("extender.web.fleet_page.MOST_CELLS", 3)
    assert (list(cells(data(world, "/"))), data(world, "/")["heat"]["groups_left_out"]) == (["r0", "r1", "r2"], 1)
    assert "And 1 more groups" in html(world, "/")


def test_filters_narrow_the_nodes_and_the_pods(world: World) -> None:
    everything, some = data(world, "/"), data(world, "/?model=A100")
    assert set(cells(some)) == {f"a100-{n}" for n in range(4)}
    assert [model["model"] for model in some["models"]] == ["A100"]
    assert [rack["name"] for rack in some["racks"]] == ["rack-2"]
    a100 = next(model for model in everything["models"] if model["model"] == "A100")
    assert some["summary"]["gpus"] == a100["gpus"]
    assert some["summary"]["waiting_pods"] == everything["summary"]["waiting_pods"]
    assert data(world, "/?rack=rack-1&model=A100")["racks"] == []
    assert set(cells(data(world, "/?rack=rack-1"))) == {f"v100-{n}" for n in range(4)}
    own = data(world, "/?namespace=vision")
    assert {pod["pod"].partition("/")[0] for pod in own["waiting_pods"]} == {"vision"}
    assert 0 < own["summary"]["waiting_pods"] < everything["summary"]["waiting_pods"]
    assert own["summary"]["gpus"] == everything["summary"]["gpus"]
    held = sum(pod.gpu_count for pod in world.cluster.pods.values() if pod.node and pod.namespace == "vision")
    assert sum(cell["value"] for cell in cells(own).values()) == held > 0
    assert everything["choices"]["models"] == ["A100", "H100", "V100"]
    assert {"research", "serving", "vision"} <= set(everything["choices"]["namespaces"])
    for path in ("/?model=none", "/?rack=none", "/?namespace=none", "/?find=none"):
        assert get(world, path).status == 200
    assert "No node with GPUs matches the filters" in html(world, "/?model=none")


def test_a_heading_states_what_a_filter_does_not_narrow(world: World) -> None:
    def scopes(path: str) -> dict[str, str]:
        text = re.sub(r' <span class="dim scope">(\(.*?\))</span>', r" \1", html(world, path))
        found = re.findall(r"<(?:dt|h2 [^>]*)>([^<]+?) \(([^)]*)\)</", text)
        return dict(found)

    assert scopes("/") == scopes("/?find=v100") == {}
    of_nodes = dict.fromkeys(("Waiting", "Oldest wait", "The last hours", "What waits", "Advice"), "whole cluster")
    assert scopes("/?model=A100") == scopes("/?rack=rack-1") == of_nodes
    shown = scopes("/?namespace=vision")
    parts = ("Free", "Whole nodes", "Largest linked set", "What is left", "GPUs by rack")
    assert {part: shown[part] for part in parts} == dict.fromkeys(parts, "all namespaces")
    assert (shown["Waiting"], shown["Advice"], shown["The last hours"]) == ("vision", "whole cluster", "whole cluster")
    own = data(world, "/?namespace=vision")
    open_nodes = [cell["value"] for cell in cells(own).values() if cell["takes_pods"]]
    assert own["summary"]["namespace_gpus"] == sum(open_nodes)
    assert "<dt>Allocated to vision</dt>" in html(world, "/?namespace=vision")


def test_filters_are_in_the_address(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("extender.web.fleet_page.GROUPS_PER_PAGE", 1)
    path = "/?by=zone&namespace=vision&model=A100&find=run-1"
    text = html(world, path)
    for name, typed in (("namespace", "vision"), ("model", "A100"), ("find", "run-1")):
        assert re.search(rf'<input [^>]*name="{name}"[^>]* value="{typed}"', text), name
    assert "<option selected>zone</option>" in text
    pages = [unescape(link) for link in links(world, "/?namespace=vision") if "page=2" in link]
    assert pages == ["/?by=rack&holder=pod&page=2&namespace=vision"]


def test_the_search_finds_nodes_and_pods(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    assert data(world, "/")["matches"] is None
    matches = data(world, "/?find=A100-2")["matches"]
    assert matches["nodes"] == ["a100-2"]
    assert matches["pods"]
    assert all("a100-2" in pod["pod"] and pod["node"] == "a100-2" for pod in matches["pods"])
    assert [name for name, cell in cells(data(world, "/?find=a100-2")).items() if cell["marked"]] == ["a100-2"]
    assert data(world, "/?find=finetune")["matches"]["pods"] == [{"pod": WAITS, "node": None}]
    assert data(world, "/?find=research/&namespace=vision")["matches"]["pods"] == []
    monkeypatch.setattr("extender.web.fleet_page.MOST_FOUND", 2)
    many = data(world, "/?find=-")["matches"]
    assert (len(many["nodes"]), many["nodes_left_out"]) == (2, 10)
    assert "and 10 nodes more" in html(world, "/?find=-")


def test_the_last_hours_are_kept_within_a_bound() -> None:
    world = World()
    world.node("a", 8)
    text = "Not known yet: this server looks every 90 seconds"
    assert text in html(world, "/")
    for n in range(MOST_POINTS + 50):
        world.core.trend.add(FleetPoint(WALL + n * 60, 8, n % 8, n, 2 * n))
    trend = data(world, "/")["trend"]
    assert len(trend["points"]) == (MOST_POINTS + 50) // 2  # those that follow too closely are left out
    for n in range(MOST_POINTS):
        world.core.trend.add(FleetPoint(WALL + 86_400 + n * EVERY_SECONDS, 8, 1, n, n))
    trend = data(world, "/")["trend"]
    assert len(trend["points"]) == MOST_POINTS
    assert trend["since"] == trend["points"][0]["at"] == WALL + 86_400
    page = html(world, "/")
    assert text not in page
    assert f"<b>{MOST_POINTS - 1}</b> now" in page


def test_what_shows_how_the_server_works_is_linked_below(world: World) -> None:
    header, _, rest = html(world, "/").partition("</header>")
    for path in ("/prices", "/decisions"):
        assert f'href="{path}"' not in header
        assert f'href="{path}"' in rest.partition("<footer>")[2]


def test_the_terms_of_a_score_add_up(world: World) -> None:
    shown = data(world, "/pod?pod=serving/small")
    assert len(shown["scores"]) == 2
    for one in shown["scores"]:
        assert sum(term["points"] for term in one["terms"]) == pytest.approx(one["points"], abs=1e-4)


def test_a_preemption_is_shown_with_its_cost_and_its_runner_up(world: World) -> None:
    [one] = data(world, "/preemptions")["preemptions"]
    assert one["pod"] == PREEMPTOR
    text = unescape(html(world, "/preemptions"))
    for term in one["cost"]:
        assert label(term["term"]) in text.lower() or label(term["term"]) in text
        assert value(term) in text
    assert one["certificate"]["lost_on"] == "work_lost_gpu_seconds"
    assert re.search(r"Work lost\s+<span class=\"tag\">decides<", text)
    assert text.count(">decides<") == 1
    assert "Chosen for its work lost: 4.87 GPU-hours, against 6.98 GPU-hours of the runner-up." in text
    before, after = one["pictures"]
    assert (marked(before, "victim"), marked(after, "chosen")) == (one["victims"][0]["gpus"], [4, 5])
    evictions = data(world, f"/pod?pod={PREEMPTOR}")["evictions"]
    assert evictions == one["plans"]
    assert any(plan["what"].startswith("runner-up: evict") for plan in evictions)


def test_waiting_pods_by_reason(world: World) -> None:
    everything = data(world, "/waiting")
    fleet = data(world, "/")
    assert everything["reasons"] == {one["reason"]: one["pods"] for one in fleet["waiting"]}
    assert [one["priority"] for one in everything["pods"]] == sorted(
        [one["priority"] for one in everything["pods"]], reverse=True
    )
    some = data(world, "/waiting?reason=links-busy")["pods"]
    assert {one["reason"] for one in some} == {"links-busy"}
    assert data(world, "/waiting?reason=nothing")["pods"] == []


def test_the_queue_is_as_the_command_shows_it(world: World) -> None:
    shown, told = data(world, "/queue"), get(world, "/debug/queue").json
    assert {key: shown[key] for key in told} == told
    assert [one["gang"] for one in shown["waiting"]] == ["research/llm", "research/sweep"]
    assert "research/llm" in html(world, "/queue")


def test_the_capacity_is_that_of_the_command(world: World) -> None:
    shown, told = data(world, "/capacity"), get(world, "/debug/capacity").json
    for key in ("largest", "gangs", "pods", "whole_nodes"):
        assert shown[key] == told[key]
    assert [one["pod"] for one in shown["unblock"]] == [one["pod"] for one in told["unblock"]]
    text = unescape(html(world, "/capacity"))
    for one in shown["unblock"]:
        assert one["sentence"].partition("; ")[0] in text
        assert all(way["change"].removeprefix(way["kind"]).strip() in text for way in one["ways_out"])
    assert "in one </span>rack" in text


def test_what_could_run_is_drawn(world: World) -> None:
    shown = data(world, "/capacity")
    assert {drawing["model"] for drawing in shown["drawings"]} == {"A100", "H100", "V100"}
    for drawing in shown["drawings"]:
        gpus, node = drawing["picture"]["node"]["gpus"], drawing["picture"]["node"]
        taken = marked(drawing["picture"], "chosen")
        if drawing["model"] == "A100" and drawing["links"] == "required":
            assert taken == []
            assert len(drawing["picture"]["lacking"]) == 6  # of four free GPUs
            continue
        assert len(taken) == drawing["gpus"]
        assert {gpus[gpu]["state"] for gpu in taken} == {"free"}
        assert drawing["model"] == "A100" or node["links"][taken[0]][taken[1]]


def test_a_model_without_room_has_no_empty_card() -> None:
    world = World()
    world.node("a", 4)
    world.node("b", 4, labels={"nvidia.com/gpu.product": "NVIDIA-H200"})
    world.pod("holds", 4, "b")
    text = html(world, "/capacity")
    assert text.count('<section class="card"') == 1
    assert "No pod with a GPU fits now on NVIDIA-H200." in text


def test_advice_is_that_of_the_command(world: World) -> None:
    told = get(world, "/debug/capacity").json["advice"]
    assert told["nodes"]
    shown = data(world, "/advice")
    assert {key: shown[key] for key in told} == told
    for path in ("/capacity", "/advice"):
        text = unescape(html(world, path))
        assert all(growth_sentence(one) in text for one in told["nodes"])


def test_the_fleet_leads_to_advice(world: World) -> None:
    assert "/advice" in links(world, "/")


def test_what_costs_much_is_kept_for_some_seconds() -> None:
    world = World()
    world.node("a", 8, links=pairs(8))
    first = data(world, "/capacity")
    world.node("b", 8, links=pairs(8))
    assert data(world, "/capacity")["as_of"] == first["as_of"]
    assert data(world, "/capacity")["largest"] == first["largest"]
    world.now += CHANGED_SECONDS
    second = data(world, "/capacity")
    assert second["largest"][0]["nodes"] == 2
    assert second["as_of"]["generation"] > first["as_of"]["generation"]
    world.now += SAME_SECONDS - 1
    assert data(world, "/capacity")["as_of"] == second["as_of"]
    world.now += 1
    assert data(world, "/capacity")["largest"] == second["largest"]


def test_prices_add_up_to_one(world: World) -> None:
    types = data(world, "/prices")["types"]
    prices = [one["price"] or 0.0 for one in types]
    assert sum(prices) == pytest.approx(1.0)
    assert prices == sorted(prices, reverse=True)


def test_a_type_without_slots_has_no_price(world: World) -> None:
    types = data(world, "/prices")["types"]
    gone = [one for one in types if not one["slots_left"]]
    assert gone
    assert {one["price"] for one in gone} == {None}
    assert all(one["price"] for one in types if one["slots_left"])
    assert html(world, "/prices").count("none left") == len(gone)


def test_types_that_differ_in_their_links_have_different_names(world: World) -> None:
    names = [one["type"] for one in data(world, "/prices")["types"]]
    assert len(set(names)) == len(names)
    assert "2 x nvidia.com/gpu, links required, 1 CPU, 1 GiB, nvidia.com/gpu.product in A100" in names
    assert "2 x nvidia.com/gpu, links preferred, 1 CPU, 1 GiB" in names
    assert "1 x nvidia.com/gpu, 1 CPU, 1 GiB" in names


def test_a_result_is_in_words(world: World) -> None:
    assert "refused" in {one["result"] for one in data(world, "/decisions")["decisions"]}
    for path in ("/decisions", f"/pod?pod={WAITS}"):
        text = html(world, path)
        assert "no node fits" in text, path
        assert "refused" not in text, path


def test_decisions_of_one_verb(world: World) -> None:
    assert {one["verb"] for one in data(world, "/decisions?verb=preempt")["decisions"]} == {"preempt"}
    newest = data(world, "/decisions")["decisions"]
    assert [one["at"] for one in newest] == sorted([one["at"] for one in newest], reverse=True)


def test_only_decisions_about_candidates_state_how_many_fit(world: World) -> None:
    row = r"<td class=\"beside\">(\w+)</td><th scope=\"row\">.*?<td class=\"n\">(.*?)</td>"
    rows = re.findall(row, html(world, "/decisions"))
    assert {"filter", "preempt"} <= {verb for verb, _ in rows}
    for verb, fit in rows:
        assert bool(re.match(r"\d+ of \d+<", fit)) == (verb in ("filter", "prioritize")), (verb, fit)


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/pod", 400, "bad-request"),
        ("/pod?pod=nobody", 400, "bad-request"),
        ("/pod?pod=a/b", 404, "not-found"),
        ("/node?node=gone", 404, "not-found"),
        ("/node", 404, "not-found"),
        ("/decisions?verb=frob", 400, "bad-request"),
        ("/nodes?page=0", 400, "bad-request"),
        ("/nodes?page=9999999999", 400, "bad-request"),
        ("/nodes?page=%D9%A1", 400, "bad-request"),
    ],
)
def test_errors_have_a_status_and_a_page(world: World, path: str, status: int, code: str) -> None:
    page = get(world, path)
    assert page.status == status
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert page.headers["content-security-policy"] == HEADERS["content-security-policy"]
    assert code in page.body.decode()
    where, _, query = path.partition("?")
    answer = get(world, f"{where}.json?{query}")
    assert (answer.status, answer.json["error"]["code"]) == (status, code)


def test_a_dead_link_has_a_page_for_browsers(world: World) -> None:
    page = get(world, "/nothing-here")
    assert (page.status, page.headers["content-type"]) == (404, "text/html; charset=utf-8")
    assert "there is no such page" in page.body.decode()
    assert get(world, "/nothing-here", "*/*").json["error"]["code"] == "not-found"


def test_a_missing_pod_is_searched_for_by_its_name(world: World) -> None:
    assert 'href="/?find=never-seen"' in get(world, "/pod?pod=serving/never-seen").body.decode()


def test_what_is_not_read_yet_is_stated() -> None:
    """Neither an empty fleet nor "no such pod" is true then."""
    world = scene()
    world.core.source.missing = lambda: ["pods: the list is read"]  # type: ignore[method-assign]
    warning = {"code": "not-ready", "message": "not known yet: pods: the list is read. This view is not complete."}
    assert data(world, "/")["warnings"][0] == warning
    assert warning["message"] in html(world, "/")
    reply = get(world, "/pod?pod=serving/never-seen")
    assert (reply.status, reply.headers["retry-after"]) == (503, "2")
    assert "not known yet: pods" in reply.body.decode()


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/waiting?reason=none-such", "No pod waits for this reason now."),
        ("/queue?queue=none-such", "The queue none-such has no pods, or does not exist."),
        ("/decisions?verb=bind", "No decision of bind is in the records"),
        ("/?model=none-such", "No node with GPUs matches the filters"),
    ],
)
def test_a_filter_without_matches_states_it(world: World, path: str, words: str) -> None:
    assert words in html(world, path)


def test_a_search_alone_is_no_filter(world: World) -> None:
    """Its names are marked, and all of the fleet counts."""
    assert ">Only" not in html(world, "/?find=v100")
    assert ">Only" in html(world, "/?find=v100&model=V100")


def test_an_empty_cluster_has_every_view() -> None:
    world = World()
    for path in (
        "/",
        "/waiting",
        "/queue",
        "/capacity",
        "/advice",
        "/whatif",
        "/preemptions",
        "/prices",
        "/decisions",
        "/nodes",
    ):
        assert get(world, path).status == 200, path
        json.dumps(data(world, path))


HOSTILE = '"><script>alert(1)</script><img src=x onerror=alert(1)>{{ 7 * 7 }}'


def test_what_tenants_write_stays_text() -> None:
    """Names come from the API server, which checks them; a cluster file's are whatever it has."""
    world = World()
    labels = {"cloud.provider.com/topology-rack": HOSTILE, "nvidia.com/gpu.product": HOSTILE}
    world.node(HOSTILE, 4, links=pairs(4), labels=labels)
    world.pod(HOSTILE, 1, HOSTILE, held=[0], labels={"gpu-extender.io/gang": HOSTILE}, start=WALL)
    world.filter(world.pod("waits", 8, namespace=HOSTILE))
    paths = ["/", "/?holder=gang", "/?by=model", "/waiting", "/capacity", "/prices", "/decisions", "/queue"]
    paths += ["/node?" + urlencode({"node": HOSTILE}), "/nodes?" + urlencode({"in": HOSTILE})]
    paths += ["/pod?" + urlencode({"pod": f"{HOSTILE}/waits"}), "/waiting?" + urlencode({"reason": HOSTILE})]
    paths += ["/advice?" + urlencode({"pod": f"{HOSTILE}/waits"}), "/advice", "/whatif?" + urlencode({"pod": HOSTILE})]
    paths += ["/?" + urlencode({"find": HOSTILE, "namespace": HOSTILE, "rack": HOSTILE, "model": HOSTILE})]
    paths += ["/decisions?" + urlencode({"verb": HOSTILE}), "/queue?" + urlencode({"queue": HOSTILE})]
    for path in paths:
        reply = get(world, path)
        text = reply.body.decode()
        assert reply.status in (200, 400, 404), path
        assert "<script>alert" not in text, path
        assert "<img" not in text, path
        assert "onerror=alert(1)>49" not in unescape(text)
        Parsed(text)


def test_large_fleets_are_summed_up_by_rack() -> None:
    world = World()
    for n in range(100):
        rack = f"r{n // 80}"
        world.node(f"n{n:03}", 8, links=pairs(8), labels={"cloud.provider.com/topology-rack": rack})
    fleet = data(world, "/")
    assert fleet["maps"] == []
    assert [(one["name"], one["nodes"], one["free_gpus"]) for one in fleet["racks"]] == [
        ("r0", 80, 640),
        ("r1", 20, 160),
    ]
    assert fleet["racks"][0]["nodes_by_free_gpus"] == [{"free_gpus": 8, "nodes": 80}]
    first, second = data(world, "/nodes?in=r0"), data(world, "/nodes?in=r0&page=2")
    assert (len(first["nodes"]), len(second["nodes"]), first["pages"]) == (72, 8, 2)
    assert 'rel="next"' in html(world, "/nodes?in=r0")
    assert 'rel="prev"' in html(world, "/nodes?in=r0&page=2")
    assert data(world, "/nodes?in=r0&page=3")["nodes"] == []


def test_more_groups_than_a_page_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("extender.web.fleet_page.GROUPS_PER_PAGE", 10)
    world = World()
    for n in range(40):
        world.node(f"n{n:02}", 1, labels={RACK: f"r{n:02}"})
    first, last = data(world, "/"), data(world, "/?page=4")
    assert (len(first["racks"]), first["pages"], last["racks"][-1]["name"]) == (10, 4, "r39")
    assert '?by=rack&amp;holder=pod&amp;page=2"' in html(world, "/")
    assert data(world, "/?page=5")["racks"] == []


def test_a_gpu_that_many_pods_share_is_short() -> None:
    world = World(Settings.model_validate({"resources": [{"name": "nvidia.com/gpu.shared", "devicePlugin": "nvidia"}]}))
    shared = "nvidia.com/gpu.shared"
    world.node("a", 64, resource=shared, labels={"nvidia.com/gpu.count": "1", "nvidia.com/gpu.replicas": "64"})
    for n in range(60):
        world.pod(f"p{n}", 1, "a", resource=shared, held=[0])
    node = data(world, "/node?node=a")
    assert [len(gpu["pods"]) for gpu in node["gpus"]] == [60]
    [sign] = re.findall(r'title="GPU 0: ([^"]*)"', html(world, "/"))
    assert sign.count(" and ") == 3
    assert "and 57 more" in sign
    assert len(node["holdings"]) == 60


def test_a_long_queue_is_cut_and_counted(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("extender.web.queue_page.MOST", 1)
    shown = data(world, "/queue")
    assert [one["gang"] for one in shown["waiting"]] == ["research/llm"]
    assert (shown["waiting_left_out"], shown["queues_left_out"]) == (1, 2)
    assert "And 1 gang more" in html(world, "/queue")
    assert data(world, "/queue?queue=nobody")["waiting"] == []


def test_what_is_released_is_shown_as_by_the_command() -> None:
    world = World()
    world.node("a", 4)
    amounts = (0, 0, 1, 2, *[0] * (len(world.cluster.resources) - 4))
    seat = Seat("uid-x", "default/x", "ours:default/g", "a", amounts, 0b11, 0, world.now)
    world.verbs.claims.seats.reserve([seat])
    assert data(world, "/queue")["releasing"] == get(world, "/debug/queue").json["releasing"] != []
    assert [gpu["state"] for gpu in data(world, "/node?node=a")["gpus"]].count("reserved") == 2


def test_a_view_changes_nothing(world: World) -> None:
    before = world.state()
    for path in VIEWS:
        html(world, path)
    assert world.state() == before


def test_more_pages_than_are_made_at_once_are_told_to_wait(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("extender.ask.forks.MOST_ASKED", 0)
    reply = get(world, "/")
    assert (reply.status, reply.headers["retry-after"]) == (429, "2")


def test_a_pod_with_many_requests_has_a_page() -> None:
    world = World()
    world.node("a", 8)
    world.set("Pod", workload("both", 2, spec={"schedulingGates": [{"name": "other/gate"}]}))
    assert "other/gate" in html(world, "/pod?pod=default/both")
