"""The settings file: what is accepted, and that everything else is refused with its place and a way out."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from extender.errors import BadSettings
from extender.policy.costs import COSTS
from extender.policy.scorers import SCORERS
from extender.settings import ClaimBounds, Known, QueueLimits, Settings, parse_settings, read_settings
from tests.calls import calls_of

KNOWN = Known(scorers=set(SCORERS), costs=set(COSTS))
HEAD = "apiVersion: gpu-extender.io/v1\nkind: GpuExtenderConfiguration\n"


def problems_of(text: str) -> list[tuple[str, int | None, str]]:
    with pytest.raises(BadSettings) as caught:
        parse_settings(text, KNOWN)
    return [(problem.path, problem.line, problem.message) for problem in caught.value.problems]


def test_nothing_written_means_the_defaults() -> None:
    for text in ("", "# only a comment\n", HEAD):
        assert parse_settings(text, KNOWN) == Settings()


def test_json_may_write_a_character_as_two_escapes() -> None:
    text = '{"apiVersion": "gpu-extender.io/v1", "kind": "GpuExtenderConfiguration", "mix": {"modelLabels": ["%s"]}}'
    settings = parse_settings(text % r"\ud835\uded1", KNOWN)
    assert settings.mix.model_labels == ("\U0001d6d1",)
    assert settings.hash
    with pytest.raises(BadSettings, match="half of a character"):
        parse_settings(text % r"\ud835", KNOWN)


def test_preemption_by_priority_class() -> None:
    text = HEAD + "preemption:\n  minimumRunSeconds: {train: 3600}\n  intendedOrder: [serve, train]\n"
    preemption = parse_settings(text, KNOWN).preemption
    assert (preemption.minimum_run_seconds, preemption.intended_order) == ({"train": 3600}, ("serve", "train"))
    assert parse_settings(text, KNOWN).policy_hash != Settings().policy_hash
    assert problems_of(HEAD + "preemption: {minimumRunSeconds: {train: -1}}\n")
    assert problems_of(HEAD + "preemption: {intendedOrder: [a, a]}\n")


def test_claims_by_class_and_namespace() -> None:
    text = HEAD + "claims: {protectForSeconds: 0, byNamespace: {lab: {restartSeconds: 60}}, heldGpus: policy}\n"
    claims = parse_settings(text, KNOWN).claims
    assert (claims.protect_for_seconds, claims.restart_seconds, claims.held_gpus) == (0, 3600, "policy")
    assert claims.by_namespace == {"lab": ClaimBounds(restart_seconds=60)}
    assert parse_settings(text, KNOWN).policy_hash != Settings().policy_hash
    for wrong, path, said in (
        ("protectForSeconds: -1", "claims.protectForSeconds", "greater than or equal to 0"),
        ("restartSeconds: 604801", "claims.restartSeconds", "less than or equal to 604800"),
        ("restartSeconds: 1h", "claims.restartSeconds", "valid integer"),
        ("heldGpus: yes", "claims.heldGpus", "allowed: auto, kubelet, policy"),
        (
            "byNamespace: {lab: {restartSecond: 1}}",
            "claims.byNamespace.lab.restartSecond",
            "did you mean restartSeconds?",
        ),
        (
            "byPriorityClass: {a: {gangMin: 1000001}}",
            "claims.byPriorityClass.a.gangMin",
            "less than or equal to 1000000",
        ),
    ):
        ((found, _, message),) = problems_of(HEAD + f"claims: {{{wrong}}}\n")
        assert (found, said in message) == (path, True), message


def test_queues_with_their_weights_guarantees_and_limits() -> None:
    text = (
        HEAD + "queue: {queues: {lab: {weight: 2, guaranteedGpus: {H100: 8}, limitGpus: {H100: 16}, borrow: false}}}\n"
    )
    settings = parse_settings(text, KNOWN)
    assert settings.queue.queues == {
        "lab": QueueLimits(weight=2.0, guaranteed_gpus={"H100": 8}, limit_gpus={"H100": 16}, borrow=False)
    }
    assert settings.policy_hash != Settings().policy_hash
    assert parse_settings(HEAD + "queue: {enabled: false}\n", KNOWN).policy_hash == Settings().policy_hash
    for wrong, path, said in (
        ("patienceSeconds: -1", "queue.patienceSeconds", "greater than or equal to 0"),
        ("absentSeatSeconds: 0", "queue.absentSeatSeconds", "greater than or equal to 1"),
        ("seatSeconds: 0", "queue.seatSeconds", "greater than or equal to 1"),
        ("queues: {lab: {weight: 0}}", "queue.queues.lab.weight", "greater than 0"),
        ("queues: {lab: {limitGpus: {H100: -1}}}", "queue.queues.lab.limitGpus.H100", "greater than or equal to 0"),
        ("queues: {lab: {guarantedGpus: {}}}", "queue.queues.lab.guarantedGpus", "did you mean guaranteedGpus?"),
        (
            "queues: {lab: {guaranteedGpus: {H100: 9}, limitGpus: {H100: 8}}}",
            "queue.queues.lab",
            "guarantees more GPUs of model H100 than its limit allows",
        ),
    ):
        ((found, _, message),) = problems_of(HEAD + f"queue: {{{wrong}}}\n")
        assert (found, said in message) == (path, True), message


def test_the_hash_of_the_policy_is_blind_to_the_address() -> None:
    text = HEAD + "server: {port: 1}\n"
    assert parse_settings(text, KNOWN).policy_hash == Settings().policy_hash


def test_the_defaults_use_known_names_only() -> None:
    written = Settings().model_dump(mode="json", by_alias=True)
    assert parse_settings(json.dumps(written), KNOWN) == Settings()


def test_every_field_is_read() -> None:
    settings = parse_settings(
        HEAD
        + """
resources: [{name: example.com/gpu, devicePlugin: arbitrary}]
shortlist: {size: 0, retryWindowSeconds: 60}
scorers: [{name: links, weight: 2}]
costs: [victims, pdb_violations]
packingWeights: {gpu: 5, cpu: 0, memory: 0}
placement: {default: spread, byLabel: {app=trainer: pack}, byPriorityClass: {batch: pack}}
topologyLevels: [example.com/rack, example.com/row]
hold: {seconds: 2.5}
schedulerVersion: "1.38"
schedulerWeight: 20
schedulerScoreWeights: 3
preemption: {searchBudget: 1000}
decisions: {maxBytes: 0}
limits: {bodyBytes: 2048, names: 10}
server: {host: 0.0.0.0, port: 0, keepAliveSeconds: 91, allowUnprotected: true}
""",
        KNOWN,
    )
    assert settings.resources[0].device_plugin == "arbitrary"
    assert (settings.shortlist.size, settings.shortlist.retry_window_seconds) == (0, 60)
    assert [(scorer.name, scorer.weight) for scorer in settings.scorers] == [("links", 2.0)]
    assert settings.costs == ("victims", "pdb_violations")
    assert settings.placement.default == "spread"
    assert settings.placement.by_label == {"app=trainer": "pack"}
    assert settings.placement.by_priority_class == {"batch": "pack"}
    assert settings.topology_levels == ("example.com/rack", "example.com/row")
    assert (settings.packing_weights.gpu, settings.hold.seconds) == (5, 2.5)
    assert (settings.scheduler_weight, settings.scheduler_score_weights) == (20, 3)
    assert (settings.preemption.search_budget, settings.decisions.max_bytes) == (1000, 0)
    assert (settings.limits.body_bytes, settings.limits.names) == (2048, 10)
    assert (settings.server.host, settings.server.port, settings.server.keep_alive_seconds) == ("0.0.0.0", 0, 91)


@pytest.mark.parametrize(
    ("version", "failed_nodes"),
    [("1.28", False), ("1.37", False), ("1.37.9", False), ("1.38", True), ("1.38.0", True), ("1.100", True)],
)
def test_the_schedulers_version_decides_the_form_of_an_evictable_refusal(version: str, failed_nodes: bool) -> None:
    assert Settings(scheduler_version=version).evictable_as_failed_nodes is failed_nodes


def test_settings_do_not_change() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        Settings().hold = Settings().hold


def test_all_problems_are_reported_at_once_in_the_order_of_the_file() -> None:
    assert problems_of(
        """apiVersion: gpu-extender.io/v1
kind: GpuExtenderConfig
shortList: {size: 3}
scorers:
- {name: packng, weight: 1}
- {name: links, weight: -1, wieght: 2}
server:
  port: "80"
  port: 90
"""
    ) == [
        (
            "kind",
            2,
            "is 'GpuExtenderConfig'; allowed: GpuExtenderConfiguration; did you mean GpuExtenderConfiguration?",
        ),
        ("shortList", 3, "is not a field; did you mean shortlist?"),
        ("scorers[0].name", 5, "'packng' is not one of the scorers; did you mean packing?"),
        ("scorers[1].weight", 6, "should be greater than 0, not -1"),
        ("scorers[1].wieght", 6, "is not a field; did you mean weight?"),
        ("server.port", 8, "should be a valid integer, not '80'"),
        ("server.port", 9, "stands here again; it is on line 8 already"),
    ]


@pytest.mark.parametrize(
    ("text", "path", "words"),
    [
        ("kind: GpuExtenderConfiguration\n", "apiVersion", "is missing"),
        ("apiVersion: gpu-extender.io/v1\n", "kind", "is missing"),
        ("apiVersion: gpu-extender.io/v2\nkind: GpuExtenderConfiguration\n", "apiVersion", "gpu-extender.io/v1"),
        (HEAD + "retry_window: 1\n", "retry_window", "there are: apiVersion"),
        (HEAD + "shortlist: {retry_window_seconds: 1}\n", "shortlist.retry_window_seconds", "retryWindowSeconds?"),
        (HEAD + "shortlist: {size: -1}\n", "shortlist.size", "greater than or equal to 0"),
        (HEAD + "shortlist: {size: 1.5}\n", "shortlist.size", "integer"),
        (HEAD + "schedulerWeight: 0\n", "schedulerWeight", "greater than or equal to 1"),
        (HEAD + "shortlist: 16\n", "shortlist", "should be a mapping, not 16"),
        (HEAD + "hold: {seconds: .inf}\n", "hold.seconds", "finite"),
        (HEAD + "hold: {seconds: .nan}\n", "hold.seconds", "not nan"),
        (HEAD + "hold: {seconds: 61}\n", "hold.seconds", "less than or equal to 60"),
        (HEAD + "costs: victims\n", "costs", "should be a list"),
        (HEAD + "costs: [victims, victims]\n", "costs", "'victims' more than once"),
        (HEAD + "costs: [pdbs]\n", "costs[0]", "there are: "),
        (HEAD + "scorers: [{name: links}]\n", "scorers[0].weight", "is missing"),
        (
            HEAD + "scorers: [{name: links, weight: 1}, {name: links, weight: 2}]\n",
            "scorers",
            "'links' more than once",
        ),
        (HEAD + "resources: []\n", "resources", "is empty"),
        (HEAD + "resources: [{name: gpu, devicePlugin: amd}]\n", "resources[0].name", "extended resource"),
        (HEAD + "resources: [{name: kubernetes.io/x, devicePlugin: amd}]\n", "resources[0].name", "keeps for itself"),
        (HEAD + "resources: [{name: requests.a/x, devicePlugin: amd}]\n", "resources[0].name", "keeps for itself"),
        (HEAD + "resources: [{name: 'a{b}/x', devicePlugin: amd}]\n", "resources[0].name", "'a{b}/x'"),
        (HEAD + "resources: [{name: a/x, devicePlugin: AMD}]\n", "resources[0].devicePlugin", "did you mean amd?"),
        (HEAD + "packingWeights: {gpu: 0, cpu: 0, memory: 0}\n", "packingWeights", "all 0"),
        (HEAD + "schedulerVersion: 1.37\n", "schedulerVersion", 'schedulerVersion: "1.37"'),
        (HEAD + "schedulerVersion: 1.40\n", "schedulerVersion", 'schedulerVersion: "1.40"'),  # the number is 1.4
        (HEAD + "schedulerVersion: v1.37\n", "schedulerVersion", "MAJOR.MINOR"),
        (HEAD + "schedulerVersion: '1.27'\n", "schedulerVersion", "oldest"),
        (HEAD + "server: {keepAliveSeconds: 90}\n", "server.keepAliveSeconds", "greater than 90"),
        (HEAD + "server: {port: 65536}\n", "server.port", "65535"),
        (HEAD + "server: {port: true}\n", "server.port", "not True"),
        (HEAD + "reservations: {namespace: A/b}\n", "reservations.namespace", "name of a namespace"),
        (HEAD + "reservations: {name: ../x}\n", "reservations.name", "name of Kubernetes"),
        (HEAD + "evictions: {lease: Evictions}\n", "evictions.lease", "name of Kubernetes"),
        (HEAD + f"evictions: {{lease: {'a.' * 126}aa}}\n", "evictions.lease", "name of Kubernetes"),
        (HEAD + "queue: {reservations: a b}\n", "queue.reservations", "name of Kubernetes"),
        (HEAD + "queue: {queues: {'team-a ': {weight: 2}}}\n", "queue.queues.team-a ", "value of a label"),
        (HEAD + "preemption: {mostWaitSeconds: {Prod: 60}}\n", "preemption.mostWaitSeconds.Prod", "name of Kubernetes"),
        (HEAD + "claims: {byNamespace: {lab/a: {gangMin: 1}}}\n", "claims.byNamespace.lab/a", "name of a namespace"),
        (HEAD + "placement: {byLabel: {app==a: pack}}\n", "placement.byLabel.app==a", "value of a label"),
        (HEAD + "evictions: {lease: x}\nqueue: {lease: x}\n", "", "each needs its own"),
        (HEAD + "reservations: {name: gpu-extender-seats-0}\n", "", "another name"),
        ("- a list\n", "", "expected a mapping"),
        ("[1, 2", "", "flow sequence"),
        ("\x00", "", "not YAML"),
        ("[" * 3000, "", "nested deeper"),
        (HEAD + "a: &x [1]\nb: *x\n", "b", "alias"),
        (HEAD + "hold: !!python/object:os.system {}\n", "hold", "tag"),
        (HEAD + "server: {host: !!binary aGk=}\n", "server.host", "tag"),
        (HEAD + "server: {port: !!int ''}\n", "server.port", "whole number"),
        (HEAD + "server: {port: 0x_}\n", "server.port", "whole number"),
        (HEAD + "hold: {enabled: !!bool so}\n", "hold.enabled", "true or false"),
        (HEAD + "---\n" + HEAD, "", "document"),
        (HEAD + "? [a]\n: 1\n", "", "key"),
    ],
)
def test_what_is_refused(text: str, path: str, words: str) -> None:
    found = problems_of(text)
    assert any(at == path and words in message for at, _, message in found), found


def test_ceilings_without_their_term_are_one_plain_sentence() -> None:
    ((path, _, message),) = problems_of(HEAD + "costs: [victims]\npreemption: {ceilings: {batch: {gpuHours: 1}}}\n")
    assert (path, message) == ("", "preemption.ceilings needs the cost term work_lost_gpu_seconds in costs")


@pytest.mark.parametrize("text", ["a: " + "[" * 8000, "a: " + "[" * 8000 + "]" * 8000, "[{" * 4000])
def test_open_brackets_do_not_cost_their_square(text: str) -> None:
    found: list[tuple[str, int | None, str]] = []
    called = calls_of(lambda: found.extend(problems_of(text)))
    assert any("nested deeper" in message for _, _, message in found)
    assert called < 10 * len(text)  # its square takes 35 s


def test_json_is_read_with_tabs_too() -> None:
    text = (
        '{\n\t"apiVersion": "gpu-extender.io/v1",\n\t"kind": "GpuExtenderConfiguration",\n\t"hold": {"seconds": 1}\n}'
    )
    assert parse_settings(text, KNOWN).hold.seconds == 1
    assert problems_of(text.replace("seconds", "second"))[0] == (
        "hold.second",
        4,
        "is not a field; did you mean seconds?",
    )


def test_the_message_names_the_file_and_each_line(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(HEAD + "hold: {seconds: true}\n")
    with pytest.raises(BadSettings) as caught:
        read_settings(file, KNOWN)
    assert str(caught.value) == f"{file} is rejected:\n  hold.seconds, line 3: should be a valid number, not True"
    assert caught.value.as_json()["error"]["code"] == "bad-settings"
    assert caught.value.path == "hold.seconds"


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(BadSettings, match="No such file"):
        read_settings(tmp_path / "none.yaml", KNOWN)
    (tmp_path / "latin.yaml").write_bytes(b"kind: \xff")
    with pytest.raises(BadSettings, match="not UTF-8 at byte 6"):
        read_settings(tmp_path / "latin.yaml", KNOWN)
    (tmp_path / "large.yaml").write_bytes(b"#" * (1 << 21))
    with pytest.raises(BadSettings, match="larger than"):
        read_settings(tmp_path / "large.yaml", KNOWN)


def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path: Path) -> None:
    (tmp_path / "bom.yaml").write_bytes(b"\xef\xbb\xbf" + HEAD.encode())
    assert read_settings(tmp_path / "bom.yaml", KNOWN) == Settings()


def fields(part: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(path, default) of every field; a mapping without fields is a field."""
    for name, value in part.items():
        if isinstance(value, dict) and value:
            yield from fields(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def test_the_page_names_every_field_with_its_default() -> None:
    page = (Path(__file__).parent.parent / "docs" / "settings.md").read_text()
    for name, default in fields(Settings().model_dump(mode="json", by_alias=True)):
        rows = (
            line for line in page.splitlines() if f"`{name}`" in line.removeprefix("| ").partition(" | ")[0].split(", ")
        )
        row = next(rows, "")
        if "." not in name:
            assert row, name
            continue
        number = f"{default:.15g}" if isinstance(default, float) else str(default)
        if isinstance(default, bool):
            number = number.lower()  # as in YAML
        if default is None:
            number = "none"
        if isinstance(default, list):
            number = ", ".join(f"`{one}`" for one in default)
        assert number in row, f"{name} = {number}"


def test_the_message_stays_short_whatever_is_in_the_file() -> None:
    texts = {
        "a long value": '{"apiVersion": "%s"}' % ("x" * 100_000),
        "a long key": '{"%s": 1}' % ("x" * 100_000),
        "many keys": json.dumps({f"key{i}": 1 for i in range(500)}),
    }
    for name, text in texts.items():
        with pytest.raises(BadSettings) as caught:
            parse_settings(text, KNOWN)
        assert 50 < len(str(caught.value)) < 33_000, name
    assert str(caught.value).endswith("462 more problems are not shown")
