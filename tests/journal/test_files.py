"""The files of a record: what is torn, damaged, foreign, or of another version."""

from __future__ import annotations

import json
import re
from pathlib import Path

import msgspec
import pytest

from extender.cli import main
from extender.errors import BadInput
from extender.journal import files
from extender.journal.files import BadRecord, Header, Input, Output
from tests.journal import recorded
from tests.replay import player

NAME = "cube-mesh-1"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A record of three files."""
    folder = tmp_path_factory.mktemp("record")
    settings, steps = player.read(NAME)
    recorded.drive(settings, steps, folder, every=len(steps) // 3 + 1)
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    for path in made.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    return tmp_path


def rewritten(path: Path, **changes: object) -> None:
    """The file with another header."""
    with Input(path) as old:
        blocks = list(old.blocks())
    path.unlink()
    new = Output(path, msgspec.structs.replace(old.header, **changes))
    for block in blocks:
        new.block(block)
    new.close()


def test_blocks_are_read_as_they_were_written(tmp_path: Path) -> None:
    header = Header(
        version="1", form="f", policy_hash="p", settings={"a": 1}, run="r", number=3, began=1.5, live=True, lost=2
    )
    output = Output(tmp_path / "000001.record", header)
    for text in (b"", b"one", b"two" * 100_000):
        output.block(text)
    output.close()
    with Input(tmp_path / "000001.record") as read:
        assert read.header == header
        assert list(read.blocks()) == [b"", b"one", b"two" * 100_000]
        assert read.torn == ""
    assert output.size == (tmp_path / "000001.record").stat().st_size
    assert (tmp_path / "000001.record").stat().st_mode & 0o077 == 0  # names and labels are not for everyone


def test_wherever_a_file_is_cut_off_what_is_whole_before_counts(folder: Path) -> None:
    whole = recorded.report(folder)
    last = files.files(folder)[-1]
    text = last.read_bytes()
    seen = set()
    for cut in range(len(text) - 1, 0, -max(1, len(text) // 25)):
        last.write_bytes(text[:cut])
        found = recorded.report(folder)
        if not found["warnings"]:  # the file ends with a whole block
            last.write_bytes(text[: cut - 1])
            found = recorded.report(folder)
        assert found["identical"] == found["requests"] <= whole["requests"]
        assert [one["code"] for one in found["warnings"]] == ["torn"]
        assert last.name in found["warnings"][0]["message"]
        seen.add(found["requests"])
    assert whole["requests"] not in seen


def test_a_damaged_block_ends_its_file(folder: Path) -> None:
    first = files.files(folder)[0]
    text = bytearray(first.read_bytes())
    text[-20] ^= 1
    first.write_bytes(text)
    found = recorded.report(folder)
    assert found["identical"] == found["requests"] > 0
    assert [one["message"].partition(",")[0] for one in found["warnings"]] == [f"{first.name}: a block is damaged"]


def test_a_file_stands_for_itself(folder: Path) -> None:
    every = files.files(folder)
    assert len(every) == 3
    whole = recorded.report(folder)["requests"]
    every[0].unlink()
    found = recorded.report(folder)
    assert 0 < found["requests"] < whole
    assert found["identical"] == found["requests"]


def test_a_record_of_another_version_is_an_error_that_names_it(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rewritten(files.files(folder)[1], version="0.0.9", form="another")
    assert main(["replay", str(folder), "-o", "json"]) == 1
    error = json.loads(capsys.readouterr().err)["error"]
    assert error["code"] == "bad-record"
    assert "000002.record" in error["path"]
    assert "a record of gpu-extender 0.0.9" in error["message"]
    assert "replay it with that version" in error["message"]


def test_a_gap_is_stated(folder: Path) -> None:
    rewritten(files.files(folder)[2], lost=17, cause="memory")
    message = "000003.record: 17 entries before it are lost: the queue was full (record.queueBytes)"
    assert recorded.report(folder)["warnings"] == [{"code": "gap", "message": message}]


def test_what_is_no_record_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(tmp_path / "none")]) == 1
    assert "there is no such directory" in capsys.readouterr().err
    with pytest.raises(BadInput, match="there is no record in it"):
        recorded.report(tmp_path)
    (tmp_path / "000001.record").write_bytes(b"something else entirely, and long")
    with pytest.raises(BadRecord, match=re.escape("this is no record of gpu-extender")):
        recorded.report(tmp_path)


def test_blocks_that_hold_something_else_are_an_error(folder: Path) -> None:
    path = files.files(folder)[0]
    with Input(path) as read:
        header = read.header
    for block in (b"\x93\x01\x02\x03", b"no msgpack", b"\x91\x92\xa4tick\xc0\xc0", b"\x91\x93\xa5batch\x01"):
        path.unlink()
        output = Output(path, header)
        output.block(block)
        output.close()
        with pytest.raises(BadRecord, match="an entry cannot be read"):
            recorded.report(folder)


def test_a_bomb_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MOST_BLOCK", 1_000)
    header = Header(version="", form="", policy_hash="", settings={}, run="", number=0, began=0, live=False)
    output = Output(tmp_path / "000001.record", header)
    output.block(bytes(100_000))
    output.close()
    output.close()
    with Input(tmp_path / "000001.record") as read:
        assert list(read.blocks()) == []
        assert "damaged" in read.torn
