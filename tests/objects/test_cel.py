"""What tests/e2e/test_selectors.py does not reach: devices that cannot be read, what is remembered, hostile text."""

from __future__ import annotations

import time
from random import Random

import pytest

from extender.objects import cel
from extender.objects.cel import DeviceProperties, Selector, Verdict, judge, selects
from extender.objects.devices import Attribute, Capacity, ClaimSpec, DeviceRecord, resource_claim
from tests.selector_cases import Grammar

DRIVER = "gpu.nvidia.com"
TYPE = f"device.attributes['{DRIVER}'].type == 'gpu'"
INDEX = f"device.attributes['{DRIVER}'].index"


def device(shared: bool = False, **attributes: str | int | bool) -> DeviceProperties:
    kinds = {str: "string", int: "int", bool: "bool"}
    stated = tuple((name, Attribute(kinds[type(value)], value)) for name, value in attributes.items())
    capacity = (("memory", Capacity("80Gi")),)
    return DeviceProperties(DRIVER, DeviceRecord(name="d", attributes=stated, capacity=capacity, shared=shared))


GPU = device(type="gpu", index=3)


def test_selectors_are_asked_in_their_order_up_to_the_first_that_selects_nothing() -> None:
    assert selects((), GPU) is True
    assert selects((TYPE, f"{INDEX} == 3"), GPU) is True
    assert selects((f"{INDEX} == 4", "no.such == 'thing'"), GPU) is False
    assert selects(("no.such == 'thing'", f"{INDEX} == 4"), GPU) is None


def test_a_property_that_the_device_does_not_state_is_a_failure() -> None:
    missing = f"device.attributes['{DRIVER}'].nothing == 'x'"
    assert judge((missing,), GPU) == (None, True, "no such key: nothing")
    assert judge((f"{missing} || true",), GPU).selected is True
    assert judge((f"false && {missing}",), GPU).selected is False
    assert judge((f"'nothing' in device.attributes['{DRIVER}'] && {missing}",), GPU).selected is False


@pytest.mark.parametrize(("kind", "value"), [("", ""), ("version", "1.2"), ("version", "")])
def test_nothing_is_known_of_a_device_with_a_value_that_cannot_be_read(kind: str, value: str) -> None:
    record = DeviceRecord(name="d", attributes=(("type", Attribute("string", "gpu")), ("odd", Attribute(kind, value))))
    verdict = judge((TYPE,), DeviceProperties(DRIVER, record))
    assert verdict == (None, False, "the device has a property that cannot be read")


def test_devices_that_differ_in_what_is_not_read_are_evaluated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Selector(f"{TYPE} && {INDEX} > 1")
    evaluated: list[DeviceProperties] = []
    evaluate = asked._evaluate

    def counted(one: DeviceProperties) -> Verdict:
        evaluated.append(one)
        return evaluate(one)

    monkeypatch.setattr(asked, "_evaluate", counted)
    for at in range(100):
        assert asked.judge(device(type="gpu", index=at % 4, uuid=f"GPU-{at}")).selected is (at % 4 > 1)
    assert len(evaluated) <= 5  # four kinds; the first read `type` and `index` before they were known to be read


def test_true_is_not_one_and_a_text_is_not_a_number() -> None:
    """Values that are equal in Python are different ones here."""
    asked = Selector(f"{INDEX} == 1")
    values: tuple[str | int | bool, ...] = (True, 1, "1", False, 0)
    assert [asked.judge(device(index=value)).selected for value in values] == [False, True, False, False, False]
    shared = Selector("device.allowMultipleAllocations")
    assert [shared.judge(device(shared=value)).selected for value in (True, False)] == [True, False]


def test_a_map_of_a_remainder_without_a_type_and_an_integer_is_no_expression() -> None:
    """The remainder may be a uint for Kubernetes, which takes no literal of two types."""
    assert Selector(f"{{'a': {INDEX} % {INDEX}, 'b': 1}}.a == 0").unsupported == "a list or map of dyn and others"
    assert Selector(f"{{'a': {INDEX} % 2, 'b': 1}}.a == 1").judge(GPU).selected is True
    assert Selector(f"{INDEX} % {INDEX} == 0").judge(GPU).selected is True


def test_what_it_answers_does_not_depend_on_what_it_was_asked_before() -> None:
    random = Random(7)
    devices = [device(type=kind, index=at, healthy=at > 1) for kind in ("gpu", "mig") for at in range(4)]
    for _ in range(300):
        text = Grammar(random).expression()
        asked = Selector(text)
        for one in [random.choice(devices) for _ in range(20)]:
            assert asked.judge(one) == Selector(text).judge(one), text


TEN = "[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]"
HOSTILE = {
    "brackets": "(" * 2000 + "true" + ")" * 2000,
    "lists": "[" * 2000 + "]" * 2000,
    "brackets that never close": "(" * 4_000,
    "negations": "!" * 4_000 + "true",
    "choices": "true ? true : " * 250 + "true",
    "a sum": "+".join(["1"] * 2000) + " > 1",
    "selections": "device" + ".a" * 2000,
    "indices": "device" + "[0]" * 1300,
    "calls": "'a'" + ".lowerAscii()" * 250,
    "a long text": "'" + "a" * 4_000 + "' == device.driver",
    "a text that does not end": "'" * 4_001,
    "triple quotes": "'''" + '"' * 4_000,
    "too long": "true || " * 510 + "true",
    "nested loops": "".join(f"{TEN}.all(v{at}, " for at in range(8)) + "true" + ")" * 8,
    "loops one after the other": TEN + f".map(a, {TEN}).flatten()" * 4 + ".size() > 1",
    "a text that doubles": "['aaaaaaaaaa']" + ".map(x, x + x)" * 240 + ".size() == 1",
    "bindings that double": "".join(f"cel.bind(v{at + 1}, v{at} + v{at}, " for at in range(20)).replace("v0", "'aa'")
    + "v20 == ''" + ")" * 20,
    "a list that doubles": "".join(f"cel.bind(v{at + 1}, v{at} + v{at}, " for at in range(20)).replace("v0", "[1]")
    + "v20.size() == 1" + ")" * 20,
    "a text that is replaced": "'a'" + ".replace('a', 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa')" * 20 + " == ''",
    "an empty text that is replaced": "'aaaa'" + ".replace('', '" + "b" * 1300 + "')" * 3 + " == ''",
    "a range": "lists.range(9223372036854775807).size() > 1",
    "ranges": "lists.range(4000).all(a, lists.range(4000).all(b, lists.range(4000).all(c, true)))",
    "a regular expression": "'" + "a" * 1300 + "'.matches('^(a+)+$')",
    "repetitions": "'a'.matches('((a{1,100}){1,100}){1,100}')",
    "a large regular expression": "'a'.matches('" + "(a|b|.){0,50}" * 30 + "')",
    "many regular expressions": " || ".join(f"'a'.matches('{at}(x+x+)+y')" for at in range(120)),
    "a quantity": "quantity('1" + "0" * 4000 + "').sign() == 1",
    "an exponent": "quantity('1e999999999').isInteger()",
    "a version": "isSemver('1.0.0-" + "1" * 4000 + "')",
    "an integer": "1" * 4_000 + " > 1",
    "set": "sets.contains(lists.range(4000), lists.range(4000))",
    "a join": "lists.range(4000).map(x, '" + "a" * 1000 + "').join() == ''",
    "distinct": "lists.range(4000).distinct().size() == 1",
    "flat": "[" * 60 + "1" + "]" * 60 + ".flatten(9223372036854775807) == [1]",
    "surrogates": r"'\ud800' == '\U00110000'",
    "no characters": "",
    "controls": "\x00\x01\ufeff",
}  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_text_costs_little(text: str) -> None:
    """Also asked of many devices of which no two are equal."""
    began = time.process_time()
    asked = Selector(text)
    for at in range(200):
        asked.judge(device(type="gpu", index=at, driver=f"d{at}"))
    assert time.process_time() - began < 1.0


def test_hostile_text_that_reads_the_device_is_given_up() -> None:
    """What one device costs is bounded, and what all together cost."""
    began = time.process_time()
    loops = f"{TEN}.all(a, {TEN}.all(b, {TEN}.all(c, {TEN}.all(d, a + b + c + d + {INDEX} > 0))))"
    asked = Selector(loops)
    verdicts = {asked.judge(device(type="gpu", index=at)) for at in range(5000)}
    assert verdicts == {(None, False, "it is too costly")}
    assert time.process_time() - began < 1.0


def test_expressions_that_are_not_used_any_more_are_forgotten() -> None:
    for at in range(100):
        selects((f"'{at}{'x' * 4000}' == device.driver",), GPU)
    assert sum(map(len, cel._SELECTORS.kept)) < 300_000
    for at in range(1000):
        selects((f"{INDEX} == {at}",), GPU)
    assert len(cel._SELECTORS.kept) == 512
    assert selects((f"{INDEX} == 3",), GPU) is True


def test_claims_with_too_many_selectors_are_not_evaluated() -> None:
    """What one tenant writes takes no more time than that."""

    def spec(number: int) -> ClaimSpec:
        exactly = {
            "deviceClassName": "c",
            "selectors": [{"cel": {"expression": f"{TYPE} && {'!' * 1900}false"}}] * number,
        }
        wire = {"metadata": {"name": "c", "namespace": "n", "uid": "u"}, "spec": {"devices": {"requests": [
            {"name": "r", "exactly": exactly}, {"name": "s", "exactly": {"deviceClassName": "c"}}]}}}  # fmt: skip
        return resource_claim(wire).spec

    assert [len(choice.selectors) for request in spec(8).requests for choice in request.choices] == [8, 0]
    [unread], none = (request.choices for request in spec(9).requests)
    assert unread.selectors == ("",)
    assert none[0].selectors == ()
    assert judge(unread.selectors, GPU) == (None, False, "it is not stated, or its claim has too many selectors")


def test_random_text_is_answered() -> None:
    """Pieces of expressions in any order: no other exception than those that are judged."""
    random = Random(3)
    pieces = ["device", ".", "attributes", "[", "]", "'gpu.nvidia.com'", "(", ")", "?", ":", "||", "&&", "!", "-", "in",
              "true", "x", ",", "{", "}", "1", "1.5", "'a'", ".exists(x, ", ".map(", "has(", "cel.bind(x, ", "==", "<",
              "+", "null",
              "optional.none()", ".orValue(", "quantity('1')", "semver('1.0.0')", ".compareTo(", ".?type", "[?",
              "size(", "r'\\", "\\", "`", "b'a'", "1u", "//", "\n", "%", "dyn("]  # fmt: skip
    for _ in range(20_000):
        text = "".join(random.choice(pieces) for _ in range(random.randrange(1, 14)))
        Selector(text).judge(GPU)
