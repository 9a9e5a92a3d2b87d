"""`gpu-extender fit`: against brute force on a DGX-1V, and what it answers programs."""

from __future__ import annotations

import json
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from extender.cli import main
from extender.cli.fit import Fit
from extender.topologies import load
from tests.cli.canned import Cli
from tests.oracles.rings import ring_links

SAMPLES = Path(__file__).parent.parent / "topologies" / "samples"
DGX = load.from_catalogue("dgx1-v100")
LINKS = DGX.known_links()
assert LINKS is not None


@cache
def ring(gpus: tuple[int, ...]) -> int:
    """In thousandths, rounded half up, by the oracle; a single GPU has no ring."""
    assert LINKS is not None
    return int(ring_links(LINKS, gpus) * 1000 + 1 / 2) if len(gpus) > 1 else 0


@cache
def left(gpus: tuple[int, ...]) -> int:
    """The best ring of each size in what stays, summed."""
    return sum(max(map(ring, combinations(gpus, size))) for size in range(2, len(gpus) + 1))


def brute(free: tuple[int, ...], count: int) -> list[tuple[tuple[int, ...], int, int]]:
    """(set, ring, left) of all sets."""
    return [
        (some, ring(some), left(tuple(gpu for gpu in free if gpu not in some))) for some in combinations(free, count)
    ]


@pytest.mark.parametrize("count", range(1, 9))
def test_every_free_set_of_a_dgx_1v_against_brute_force(count: int) -> None:
    for size in range(count, 9):
        for free in combinations(range(8), size):
            answer = Fit(DGX, list(free), count, "nvidia").as_json()
            sets = brute(free, count)
            best = max((ring_, left_) for _, ring_, left_ in sets)
            mine = {some: (ring_, left_) for some, ring_, left_ in sets}
            equals = [tuple(one) for one in answer["equals"]]
            assert mine[tuple(answer["chosen"])] == best, free
            assert equals[0] == tuple(answer["chosen"])  # the smallest ids of those that are as good
            assert equals == sorted(equals)
            assert {mine[one] for one in equals} == {best}
            assert answer["ring_gbps"] == round(best[0] * 25 / 1000, 3)
            terms = {term["term"]: term["value"] for term in answer["objective"]}
            assert (terms["ring_links"], terms["left_ring_links"]) == (best[0] / 1000, best[1] / 1000)
            other = answer["runner_up"]
            assert (other is None) == (len(sets) == len(equals))
            if other is not None:
                rest = [value for some, value in mine.items() if some not in equals]
                assert mine[tuple(other["chosen"])] == max(rest)
            stays = tuple(gpu for gpu in free if gpu not in answer["chosen"])
            assert answer["left"] == {
                "free": list(stays),
                "best_ring_gbps_by_size": {
                    str(k): round(max(map(ring, combinations(stays, k))) * 25 / 1000, 3)
                    for k in range(2, len(stays) + 1)
                },
            }


def test_the_plugin_takes_another_pair(cli: Cli) -> None:
    said = cli.json(["fit", "--topo", "catalogue:dgx1-v100", "--free", "0,2,4,5", "--gpus", "2", "-o", "json"])
    assert set(said) == {
        *("apiVersion", "kind", "warnings", "chosen", "ring_gbps", "equals", "runner_up"),
        *("left", "objective", "plugin"),
    }
    assert (said["apiVersion"], said["kind"], said["warnings"]) == ("gpu-extender.io/v1", "Fit", [])
    assert (said["chosen"], said["ring_gbps"]) == ([0, 4], 50)
    assert (said["runner_up"]["chosen"], said["runner_up"]["ring_gbps"]) == ([4, 5], 25)
    assert set(said["runner_up"]) == set(said) - {"apiVersion", "kind", "warnings", "plugin", "runner_up"}
    # Its rule takes the best split of all four into pairs: {4,5} and {0,2} have links, {2,5} has none.
    assert said["plugin"] == {
        "model": "nvidia",
        "sets": [{"gpus": [4, 5], "probability": 1.0}],
        "expected_ring_gbps": 25.0,
        "worst_ring_gbps": 25.0,
        "panics": False,
    }


def test_a_free_set_that_crashes_the_plugin() -> None:
    a100 = load.from_catalogue("dgx-a100")
    answers = [Fit(a100, list(free), 3, "nvidia").as_json()["plugin"] for free in combinations(range(8), 5)]
    assert any(answer["panics"] for answer in answers)
    for answer in answers:
        total = sum(one["probability"] for one in answer["sets"])
        assert answer["panics"] == (total < 0.999)
        assert (answer["worst_ring_gbps"] == 0) == answer["panics"]


def test_what_cannot_be_predicted_is_null() -> None:
    plugin = Fit(DGX, [0, 1, 2, 7], 2, "arbitrary").as_json()["plugin"]
    assert plugin["model"] == "arbitrary"
    if plugin["sets"] is None:
        assert (plugin["expected_ring_gbps"], plugin["worst_ring_gbps"], plugin["panics"]) == (None, 0.0, None)


def test_unknown_speed_is_null_and_warned_of(cli: Cli) -> None:
    file = str(SAMPLES / "dgx1-v100-8gpu-4ib.txt")
    words = ["fit", "--topo", file, "--gpus", "2", "-o", "json"]
    said = cli.json(words)
    assert (said["ring_gbps"], said["objective"][0]["value"]) == (None, 2)
    assert [warned["code"] for warned in said["warnings"]] == ["gbps-unknown", "plugin-unpredictable"]
    said = cli.json([*words, "--product", "Tesla-V100-SXM2-16GB"])
    assert (said["ring_gbps"], len(said["warnings"])) == (50, 1)
    assert said["plugin"]["sets"] is None  # behind NVLink the text hides the PCIe paths that the plugin counts


def test_links_and_paths_in_one_text_predict_the_plugin(tmp_path: Path, cli: Cli) -> None:
    names = ("dgx1-v100-8gpu-4ib.txt", "dgx1-topo-mp-8gpu-4nic.txt")
    (tmp_path / "both").write_text("".join((SAMPLES / name).read_text() for name in names))
    answers = []
    for file in (str(tmp_path / "both"), "catalogue:dgx1-v100"):
        words = ["fit", "--topo", file, "--free", "0,2,4,5", "--gpus", "2", "--gbps", "25", "-o", "json"]
        answers.append(cli.json(words))
    assert answers[0] == answers[1]
    assert answers[0]["warnings"] == []


def test_all_forms_of_one_machine_give_one_answer(tmp_path: Path, cli: Cli) -> None:
    text = str(SAMPLES / "dgx1-v100-8gpu-4ib.txt")
    annotation = tmp_path / "annotation"
    annotation.write_text(cli.out(["topo", text, "-o", "annotation", "--gbps", "25"]))
    words = ["--free", "0-5", "--gpus", "3", "--gbps", "25", "-o", "json"]
    assert cli.json(["fit", "--topo", text, *words]) == cli.json(["fit", "--topo", str(annotation), *words])


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--topo", "catalogue:dgx1-v100", "--free", "0,1", "--gpus", "3"], "too-few-free"),
        (["--topo", "catalogue:dgx1-v100", "--free", "", "--gpus", "1"], "too-few-free"),
        (["--topo", "catalogue:dgx1-v100", "--free", "8", "--gpus", "1"], "bad-input"),
        (["--topo", "catalogue:nothing", "--gpus", "1"], "not-found"),
        (["--topo", "/nowhere", "--gpus", "1"], "unreadable"),
        (["--topo", str(SAMPLES / "dgx1-topo-mp-8gpu-4nic.txt"), "--gpus", "2"], "links-unknown"),
    ],
)
def test_errors_are_json_on_standard_error(words: list[str], code: str, cli: Cli) -> None:
    status, out, err = cli.run(["fit", *words, "-o", "json"])
    assert (status, out) == (1, "")
    error: dict[str, Any] = json.loads(err)["error"]
    assert error["code"] == code
    assert set(error) == {"code", "path", "message"}


@pytest.mark.parametrize(
    "words",
    [
        ["--gpus", "1"],
        ["--topo", "x"],
        ["--topo", "x", "--gpus", "0"],
        ["--topo", "x", "--gpus", "1", "--free", "a"],
        ["--topo", "x", "--gpus", "1", "--free", "0,0"],
        ["--topo", "x", "--gpus", "1", "--plugin", "intel"],
        ["--topo", "x", "--gpus", "1", "--gbps", "nan"],
    ],
)
def test_wrong_usage_is_2(words: list[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["fit", *words])
    assert end.value.code == 2


@pytest.mark.parametrize("machine", ["dgx1-v100", "dgx-a100", "a100-pcie-4", "rtxa6000-3", "l4-8", "mi250-16gcd"])
def test_text_for_people(machine: str, cli: Cli) -> None:
    said = cli.out(["fit", "--topo", f"catalogue:{machine}", "--free", "0-2", "--gpus", "2", "-o", "text"])
    assert "ring" in said
    assert "device plugin" in said
    assert "it has less " in said or machine == "l4-8"
