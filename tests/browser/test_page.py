"""The page in a real Chromium: from a waiting pod to its way out, by mouse and by keyboard, for every reader."""

from __future__ import annotations

import json
import re
from typing import Any
from urllib.request import Request, urlopen

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from extender.ask.text import HOW, STATED, named_gpus, terms, value
from extender.web import site
from tests.web.page.scene import PREEMPTOR, WAITS
from tests.web.page.views import VIEWS
from tests.world import World

AXE = {"runOnly": {"type": "tag", "values": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]}}


def asked(url: str, path: str) -> Any:
    with urlopen(url + path, timeout=10) as answer:
        return json.load(answer)


def numbers(text: str) -> list[float]:
    return [float(one.replace(",", "")) for one in re.findall(r"\d[\d,]*(?:\.\d+)?", text)]


def test_from_a_waiting_pod_to_its_way_out(page: Page, url: str) -> None:
    """Each number that is read on the way is the one that the API answers."""
    page.goto("/")
    told = asked(url, "/debug/top")["waiting"]
    links = next(one for one in told if one["reason"] == "links-busy")
    tag = page.locator("ul.why li", has_text="links-busy").get_by_role("link")
    assert numbers(tag.inner_text()) == [links["pods"], links["gpus"]]
    tag.click()
    page.get_by_role("link", name=WAITS).click()
    explained = asked(url, f"/debug/explain?pod={WAITS}")
    expect(page.get_by_role("heading", level=1)).to_have_text(WAITS)
    assert "; ".join(page.locator("#sentence .clause").all_inner_texts()) == explained["sentence"]
    rows = page.locator("table.funnel tbody tr")
    assert [numbers(text)[-1] for text in rows.locator("td.n").all_inner_texts()] == [
        one["nodes"] for one in explained["funnel"]
    ]
    ways = page.locator("ol.ways > li")
    assert ways.count() == len(explained["ways_out"])
    for shown, way in zip(ways.all(), explained["ways_out"], strict=True):
        expect(shown.locator(".tag")).to_have_text(way["kind"])
        expect(shown.locator(".change")).to_have_text(way["change"].removeprefix(way["kind"] + " "))
        assert " ".join(shown.locator(".term").all_inner_texts()) == (
            "" if way["kind"] in STATED else terms(way["cost"] or ())
        )
    assert explained["ways_out"][0]["kind"] == "evict"


def test_from_the_fleet_to_the_pod_that_holds_a_gpu(page: Page, url: str) -> None:
    page.goto("/")
    page.get_by_role("link", name="v100-0", exact=True).click()
    told = asked(url, "/debug/map?node=v100-0")["nodes"][0]
    expect(page.locator("svg.graph g")).to_have_count(len(told["gpus"]))
    held = page.locator("section:has(#held) tbody tr")
    pods = {pod["pod"]: pod["how"] for gpu in told["gpus"] for pod in gpu["pods"]}
    for row in held.all():
        assert HOW[pods.pop(row.locator("th a").inner_text())] == row.locator("td").nth(2).inner_text()
    assert pods == {}
    name = held.first.locator("th a").inner_text()
    held.first.locator("th a").click()
    expect(page.locator("#sentence")).to_contain_text("runs on v100-0")
    expect(page.get_by_role("heading", level=1)).to_have_text(name)


def test_a_preemption_and_what_it_cost(page: Page, url: str) -> None:
    page.goto("/")
    page.get_by_role("link", name="Preemptions").click()
    decision = asked(url, f"/debug/decisions?pod={PREEMPTOR}")["decisions"][0]
    assert decision["verb"] == "preempt"
    plans = [decision["cost"], decision["certificate"]["runner_up"]["cost"]]
    differ = [(first, other) for first, other in zip(*plans, strict=True) if first["value"] != other["value"]]
    bars = page.locator(".term-bars")
    assert bars.count() == len(differ)
    for shown, (first, other) in zip(bars.all(), differ, strict=True):
        assert shown.locator("li span").all_inner_texts() == [value(first), value(other)]
    assert differ[0][0]["term"] == decision["certificate"]["lost_on"]
    expect(bars.first).to_contain_text("decides")
    expect(page.locator("section.card svg.graph")).to_have_count(2)


def test_a_pod_is_found_by_its_name(page: Page) -> None:
    page.goto("/queue")
    page.get_by_role("textbox", name="Pod").fill(WAITS)
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text(WAITS)
    assert page.url.endswith("/pod?pod=research%2Ffinetune")


def test_a_link_can_be_sent_and_has_a_json_form(page: Page, url: str) -> None:
    page.goto("/?by=model&holder=gang")
    expect(page.get_by_label("One letter for each")).to_have_value("gang")
    page.get_by_label("Group by").select_option("rack")
    page.get_by_role("button", name="Show").click()
    address = page.url
    assert "by=rack" in address
    assert "holder=gang" in address
    assert asked(url, page.locator("#json").get_attribute("href") or "")["holder_kind"] == "gang"


def test_everything_is_reached_by_keyboard(page: Page) -> None:
    page.goto("/")
    page.keyboard.press("Tab")
    expect(page.locator("a.skip")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()
    reached = set()
    for _ in range(200):
        page.keyboard.press("Tab")
        text = page.evaluate("document.activeElement.textContent.trim()")
        reached.add(text)
        if text == WAITS:
            break
    assert WAITS in reached
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text(WAITS)


def test_arrow_keys_move_in_the_map(page: Page) -> None:
    """It is one stop of the Tab key."""
    page.goto("/")
    cells = page.locator("a.cell")
    assert cells.evaluate_all("all => all.map(cell => cell.tabIndex)").count(0) == 1
    cells.first.focus()
    page.keyboard.press("ArrowRight")
    expect(cells.nth(1)).to_be_focused()
    page.keyboard.press("ArrowDown")  # to the next rack of four
    expect(cells.nth(5)).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_contain_text("a100-1")


def test_filters_work_without_scripts(browser: Browser, url: str) -> None:
    context = browser.new_context(base_url=url, java_script_enabled=False)
    page = context.new_page()
    page.goto("/")
    page.get_by_label("Model").fill("H100")
    page.get_by_label("Node or pod").fill("h100-2")
    page.get_by_role("button", name="Show").click()
    assert "model=H100" in page.url
    expect(page.locator("a.cell")).to_have_count(4)
    expect(page.locator("a.cell.marked")).to_have_text("h100-2: 0")
    page.get_by_role("link", name="Clear").click()
    expect(page.locator("a.cell")).to_have_count(12)
    context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("view", VIEWS)
def test_no_barrier(browser: Browser, url: str, view: str, scheme: Any) -> None:
    """axe-core: levels A and AA."""
    context = browser.new_context(base_url=url, color_scheme=scheme)
    page = context.new_page()
    page.goto(VIEWS[view])
    found = Axe().run(page, options=AXE)
    context.close()
    assert found.violations_count == 0, found.generate_report()


CONTRAST = r"""() => {
  const colour = (text) => text.match(/[\d.]+/g).map(Number);
  const light = (rgb) => rgb.map((part) => part / 255)
    .map((part) => part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4)
    .reduce((sum, part, at) => sum + part * [0.2126, 0.7152, 0.0722][at], 0);
  const ground = colour(getComputedStyle(document.documentElement).backgroundColor).slice(0, 3);
  return [...document.querySelectorAll(".graph line, .graph circle, .sample line")].map((drawn) => {
    let opacity = 1;
    for (let at = drawn; at instanceof Element; at = at.parentElement) opacity *= getComputedStyle(at).opacity;
    const stroke = colour(getComputedStyle(drawn).stroke).slice(0, 3);
    const seen = stroke.map((part, at) => part * opacity + ground[at] * (1 - opacity));
    const [high, low] = [light(seen), light(ground)].sort((a, b) => b - a);
    return (high + 0.05) / (low + 0.05);
  });
}"""
"""Of each line of a drawing: its contrast with the ground. axe-core looks at text alone."""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("view", ["pod", "pod-preempts", "node-switched", "preemptions"])
def test_lines_of_drawings_are_seen(browser: Browser, url: str, view: str, scheme: Any) -> None:
    """WCAG 1.4.11: 3:1."""
    context = browser.new_context(base_url=url, color_scheme=scheme)
    page = context.new_page()
    page.goto(VIEWS[view])
    contrasts = page.evaluate(CONTRAST)
    context.close()
    assert len(contrasts) > 8
    assert min(contrasts) >= 3


def test_without_scripts_everything_is_there(browser: Browser, url: str) -> None:
    context = browser.new_context(base_url=url, java_script_enabled=False)
    page = context.new_page()
    page.goto("/")
    page.get_by_role("link", name=WAITS).first.click()
    expect(page.locator("ol.ways > li").first).to_be_visible()
    expect(page.locator("#pause")).to_be_hidden()
    page.goto("/whatif")
    expect(page.locator("#whatif")).to_be_hidden()
    expect(page.get_by_text("This form needs scripts")).to_be_visible()
    context.close()


def test_the_page_follows_the_cluster(page: Page, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """And keeps the focus where it is; paused, it does not change."""
    monkeypatch.setattr(site, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(site, "LEAST_SECONDS", 0.1)
    page.goto("/waiting")
    link = page.get_by_role("link", name=WAITS)
    link.focus()
    world.pod("late", 8, namespace="vision", priority=7)
    expect(page.get_by_role("link", name="vision/late")).to_be_visible()
    expect(page.locator("#status")).to_contain_text("Updated at")
    expect(page.get_by_role("link", name=WAITS)).to_be_focused()
    page.get_by_role("button", name="Pause updates").click()
    expect(page.locator("#status")).to_have_text("Updates are paused.")
    world.gone("late")
    page.wait_for_timeout(500)
    expect(page.get_by_role("link", name="vision/late")).to_be_visible()
    page.get_by_role("button", name="Pause updates").click()
    world.node("another", 8)
    expect(page.get_by_role("link", name="vision/late")).to_have_count(0)
    world.drop("Node", {"metadata": {"name": "another", "uid": "uid-another"}})


MANIFEST = """\
apiVersion: v1
kind: Pod
metadata: {name: asked, namespace: team}
spec:
  containers:
  - name: main
    resources: {limits: {nvidia.com/gpu: 1}}
---
apiVersion: v1
kind: Pod
metadata: {name: large, namespace: team}
spec:
  containers:
  - name: main
    resources: {limits: {nvidia.com/gpu: 64}}
"""


def posted(url: str, body: dict[str, Any]) -> Any:
    request = Request(url + "/debug/whatif", json.dumps(body).encode(), {"content-type": "application/json"})
    with urlopen(request, timeout=60) as answer:
        return json.load(answer)


def test_what_if(page: Page, url: str) -> None:
    """From a pod that waits to the form, and what is answered there is what the API answers."""
    page.goto(f"/pod?pod={WAITS}")
    page.get_by_role("link", name="Ask what would happen").click()
    expect(page.get_by_label("Pods of the cluster")).to_have_value(WAITS)
    expect(page.locator("#unscripted")).to_be_hidden()
    page.get_by_label("Manifest").fill(MANIFEST)
    page.get_by_label("Drain these nodes").fill("v100-0, v100-1")
    count = page.get_by_label("Number of nodes to add")
    expect(count).to_have_value("0")
    count.fill("2")
    page.get_by_role("button", name="Ask").click()
    expect(page.locator("#asking")).to_have_text(
        "To add nodes, state how many, and a node or machine that they are like."
    )
    count.fill("0")
    page.get_by_role("button", name="Ask").click()
    expect(page.locator("#asking")).to_have_text("Answered.", timeout=60_000)
    expect(page.locator("#answer")).to_be_focused()
    told = posted(url, {"manifest": MANIFEST, "pods": [WAITS], "drain": ["v100-0", "v100-1"]})
    cards = page.locator("#answer section.card")
    assert cards.count() == len(told["results"]) == 3
    for card, one in zip(cards.all(), told["results"], strict=True):
        expect(card.locator("h2")).to_contain_text(f"{one['pod']['namespace']}/{one['pod']['name']}")
        words = {"fits": "fits on", "evict": "fits after an eviction", "cannot": "cannot be placed"}
        expect(card.locator(".verdict")).to_contain_text(words[one["verdict"]])
        assert card.locator("ol.ways > li").count() == len(one.get("ways_out", ()))
        if one["node"]:
            expect(card.locator(".verdict")).to_contain_text(f"{one['node']}, {named_gpus(one['gpus'])}")
    assert Axe().run(page, options=AXE).violations_count == 0


def test_what_if_of_a_file_and_what_is_wrong_with_it(browser: Browser, url: str) -> None:
    context = browser.new_context(base_url=url)  # its console reports the status 400
    page = context.new_page()
    page.goto("/whatif")
    content = b"kind: Pod\nmetadata: {name: <b>x</b>}\nspec: ["
    page.get_by_label("Or a file").set_input_files({"name": "pod.yaml", "mimeType": "text/yaml", "buffer": content})
    expect(page.get_by_label("Manifest")).to_have_value(content.decode())
    with page.expect_response("**/debug/whatif") as answered:
        page.get_by_role("button", name="Ask").click()
    assert answered.value.status == 400
    expect(page.get_by_role("alert")).to_contain_text("malformed YAML", timeout=60_000)
    large = {"name": "large.yaml", "mimeType": "text/yaml", "buffer": b"#" * (1 << 20) + b"#"}
    page.get_by_label("Or a file").set_input_files(large)  # type: ignore[arg-type]
    expect(page.locator("#asking")).to_contain_text("more than 1,048,576 bytes")
    context.close()


def test_advice_comes_when_the_rest_is_there(page: Page, url: str) -> None:
    told = asked(url, "/debug/capacity")["advice"]
    page.goto("/")
    shown = page.locator("#late-advice ul.advice > li")
    expect(shown.first).to_be_visible(timeout=60_000)
    expect(shown).to_have_count(len(told["nodes"]))
    assert Axe().run(page, options=AXE).violations_count == 0


def test_a_costly_view_stays_as_it_is(page: Page) -> None:
    page.goto("/capacity")
    expect(page.get_by_role("heading", level=1)).to_have_text("What could run now")
    expect(page.locator("#pause")).to_be_hidden()


def test_a_page_that_is_not_updated_states_it(browser: Browser, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site, "MOST_STREAMS", 0)
    context = browser.new_context(base_url=url)
    page = context.new_page()
    page.goto("/")
    expect(page.locator("#status")).to_contain_text("This view is not updated")
    context.close()


def test_another_site_reads_nothing(browser: Browser, url: str) -> None:
    """Neither as its own name (DNS rebinding), nor in a frame."""
    port = url.rpartition(":")[2]
    context = browser.new_context()
    page = context.new_page()
    framed = f"<iframe src='{url}/'></iframe>"
    page.route("http://evil.example/", lambda route: route.fulfill(content_type="text/html", body=framed))
    page.goto("http://evil.example/")
    assert [frame.url for frame in page.frames if frame.url.startswith(url)] == []
    answer = context.request.get(f"{url}/.json", headers={"host": f"evil.example:{port}"})
    assert answer.status == 421
    context.close()
