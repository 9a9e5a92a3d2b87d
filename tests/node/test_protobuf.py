"""The wire format, against examples of its specification and against itself."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.node import kubelet_api
from extender.node import kubelet_api as api


def test_the_specifications_examples() -> None:
    """protobuf.dev/programming-guides/encoding: field 1 = 150, field 2 = "testing"."""
    assert kubelet_api.field(1, 150) == bytes.fromhex("089601")
    assert kubelet_api.field(2, "testing") == bytes.fromhex("120774657374696e67")
    assert list(kubelet_api.fields(bytes.fromhex("089601120774657374696e67"))) == [(1, 150), (2, b"testing")]


def test_kinds_that_we_do_not_use_are_passed_over() -> None:
    """8 bytes (kind 1) and 4 bytes (kind 5) before a text."""
    message = bytes([3 << 3 | 1]) + bytes(8) + bytes([4 << 3 | 5]) + bytes(4) + kubelet_api.field(1, "id")
    assert kubelet_api.text(message, 1) == "id"


@given(st.lists(st.tuples(st.integers(1, 2**20), st.integers(0, 2**63) | st.binary(max_size=300))))
def test_what_was_written_is_read(values: list[tuple[int, int | bytes]]) -> None:
    message = b"".join(kubelet_api.field(number, value) for number, value in values)
    assert list(kubelet_api.fields(message)) == values


@given(st.binary(max_size=40))
def test_no_bytes_break_the_reader(message: bytes) -> None:
    try:
        list(kubelet_api.fields(message))
        kubelet_api.texts(message, 1)
    except kubelet_api.Malformed:
        pass


@pytest.mark.parametrize("message", [b"\x08", b"\x0a\x05abc", b"\xff" * 11, b"\x0b", b"\x0a\x02\xff\xfe"])
def test_what_is_no_message(message: bytes) -> None:
    """No value, too short a text, a number without end, a group, no UTF-8."""
    with pytest.raises(kubelet_api.Malformed):
        kubelet_api.texts(message, 1)


def test_a_registration_is_changed_by_appending() -> None:
    """The endpoint is ours, the preference ours to answer; the rest is the plugin's, an unknown field too."""
    options = kubelet_api.field(1, 1)  # pre_start_required
    request = (
        kubelet_api.field(1, "v1beta1")
        + kubelet_api.field(2, "nvidia-gpu.sock")
        + kubelet_api.field(3, "nvidia.com/gpu")
    )
    request += kubelet_api.field(4, options) + kubelet_api.field(9, "of a later version")
    assert api.registration(request) == ("nvidia-gpu.sock", "nvidia.com/gpu", False)
    changed = api.register_as(request, "ours.sock", prefers=True)
    assert api.registration(changed) == ("ours.sock", "nvidia.com/gpu", True)
    assert kubelet_api.integer(b"".join(kubelet_api.messages(changed, 4)), 1) == 1
    assert kubelet_api.text(changed, 9) == "of a later version"
    assert api.registration(api.register_as(request, "ours.sock", prefers=False)).prefers is False


def test_a_preference_and_its_answer() -> None:
    question = api.ContainerPreference(["GPU-a", "GPU-b", "GPU-c"], ["GPU-b"], 2)
    assert api.asked(api.ask(question)) == [question]
    assert api.allocated(api.prefer(["GPU-a"]) + api.prefer([])) == [["GPU-a"], []]


def test_devices_and_their_health() -> None:
    one = kubelet_api.field(1, "GPU-a") + kubelet_api.field(2, "Healthy") + kubelet_api.field(3, b"")
    other = kubelet_api.field(1, "GPU-b") + kubelet_api.field(2, "Unhealthy")
    assert api.devices(kubelet_api.repeated(1, [one, other])) == {"GPU-a": True, "GPU-b": False}
