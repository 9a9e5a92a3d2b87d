"""The command line: exit codes, and errors where other programs look for them."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from extender import cli
from extender.cli import COMMANDS, kubectl, main
from extender.server.certificates import self_signed
from tests.cli.canned import Cli, answer, serving
from tests.world import machine


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_every_command(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main([command, "--help"])
    assert end.value.code == 0
    assert f"usage: gpu-extender {command}" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words",
    [
        ["nope"],
        ["serve", "--port", "65536"],
        ["serve", "--port", "x"],
        ["serve", "--kubeconfig", "a", "--cluster", "b"],
        ["explain"],
        ["explain", "a/b", "-o", "xml"],
        ["explain", "a/b", "--cluster", "f", "--kubeconfig", "g"],
        ["decisions", "a/b", "-o", "annotation"],
        ["version", "--out", "json"],
    ],
)
def test_wrong_usage_is_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(words)
    assert end.value.code == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "usage: gpu-extender" in said.err


def test_no_command_shows_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert all(command in said.err for command in COMMANDS)


def test_version(cli: Cli) -> None:
    said = cli.json(["version", "-o", "json"])
    assert (said["apiVersion"], said["kind"], said["warnings"]) == ("gpu-extender.io/v1", "Version", [])
    assert cli.out(["version"]) == f"gpu-extender {said['version']}\n"


def test_version_is_an_option_too(cli: Cli) -> None:
    assert cli.out(["--version"]).startswith("gpu-extender ")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["serve", "--port", "x"], "'x' is not a port: 0 to 65535"),
        (["serve", "--port", "65536"], "'65536' is not a port: 0 to 65535"),
        (["demo", "--pace", "x"], "'x' is not a number of seconds, 0 to 3600"),
        (["fit", "--topo", "-", "--gpus", "0"], "'0' is not a whole number from 1 on"),
        (["fit", "--topo", "-", "--gpus", "1", "--free", "1,x"], "'x' is not a GPU index or range, as in 0,2,4-7"),
        (["fit", "--topo", "-", "--gpus", "1", "--free", "0,5-2"], "the range 5-2 is empty; write 2-5"),
        (["topo", "-", "--gbps", "much"], "'much' is not a number of GB/s, above 0 and up to 10000"),
        (["topo", "-", "--gbps", "nan"], "'nan' is not a number of GB/s, above 0 and up to 10000"),
    ],
)
def test_a_wrong_value_is_told_with_what_is_right(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(words)
    assert end.value.code == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize("words", [["agent", "--once"], ["relay", "--plugins", "p"]])
def test_without_what_only_nodes_need_it_is_named(words: list[str]) -> None:
    """As after `pip install gpu-extender`: --help works, and the command says what to install."""
    for ends, code, says in ((["--help"], 0, "usage:"), ([], 1, "install gpu-extender[node]")):
        script = (
            f"import sys; sys.modules['grpc'] = None; from extender.cli import main; sys.exit(main({words + ends}))"
        )
        command = [sys.executable, "-c", script]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        assert (done.returncode, "Traceback" in done.stderr) == (code, False), done.stderr
        assert says in done.stdout + done.stderr


def spelled(parser: argparse.ArgumentParser) -> Iterator[tuple[list[str], list[str]]]:
    """Each option with a value of the parser, and a word for each positional argument."""
    actions = [action for action in parser._actions if action.nargs != 0]
    positional = [[*(action.choices or ["x"])][-1] for action in actions if not action.option_strings]
    for action in actions:
        if action.option_strings and not action.required and action.nargs is None and action.type in (None, Path):
            yield [action.option_strings[-1], next(iter(action.choices or ["x"]))], positional


@pytest.mark.parametrize("command", COMMANDS)
def test_options_stand_before_between_and_behind_arguments(command: str) -> None:
    """argparse of Python 3.11 itself rejects `config explain -o json queue`."""
    for parser in (cli.parser_of(command), *([kubectl.parser_of(command)] if command in kubectl.OFFERED else [])):
        groups = [group._group_actions for group in parser._mutually_exclusive_groups if group.required]
        required = [action for action in parser._actions if action.required] + [actions[0] for actions in groups]
        needed = [word for action in required if action.option_strings for word in (action.option_strings[-1], "1")]
        others = {option for actions in groups for action in actions for option in action.option_strings}
        for option, words in spelled(parser):
            if others.intersection(option):
                continue
            read = [
                vars(cli.parsed(parser, [*needed, *words[:at], *option, *words[at:]])) for at in range(len(words) + 1)
            ]
            assert all(one == read[0] for one in read), option


def test_a_word_behind_two_dashes_is_no_option(tmp_path: Path, cli: Cli) -> None:
    assert "-none" in cli.err(["topo", "-o", "json", "--", "-none"], 1)


@pytest.mark.parametrize("at", [1, 2, 3])
def test_config_with_its_output_form_anywhere(at: int, cli: Cli) -> None:
    words = ["config", "explain", "queue.strict"]
    assert [one["field"] for one in cli.json([*words[:at], "-o", "json", *words[at:]])["fields"]] == ["queue.strict"]


def test_refused_settings_are_an_error(tmp_path: Path, cli: Cli) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("apiVersion: gpu-extender.io/v1\nkind: GpuExtenderConfiguration\ncosts: [victim]\n")
    error = cli.err(["serve", "--config", str(file)], 1)
    assert "costs[0], line 3: 'victim' is not one of the costs; did you mean victims?" in error


def test_a_reader_that_leaves_early_is_no_traceback() -> None:
    command = f"{sys.executable} -m extender version -o json | true"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False, timeout=60)
    assert done.stderr == ""


@pytest.mark.parametrize(("word", "near"), [("explian", "explain"), ("whatiff", "whatif"), ("quue", "queue")])
def test_a_command_that_does_not_exist_gets_the_nearest(
    word: str, near: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main([word, "--help"])
    assert end.value.code == 2
    assert f"{word!r} is not a command. Did you mean {near!r}?" in capsys.readouterr().err


def test_a_word_that_is_like_no_command_gets_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["kubectl"])
    assert capsys.readouterr().err.endswith("'kubectl' is not a command. gpu-extender --help lists all\n")


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["explain", "ns/pod", "--clutser", "cluster.yaml"], "Did you mean --cluster?"),
        (["map", "--kubeconfg=config"], "Did you mean --kubeconfig?"),
        (["whatif", "pod.yaml"], "A file is named by -f: -f pod.yaml"),
        (["map", "--nothing-like-it"], "unrecognized arguments: --nothing-like-it\n"),
    ],
)
def test_a_misspelt_option_gets_the_nearest(words: list[str], hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(words)
    assert end.value.code == 2
    assert hint in capsys.readouterr().err


def test_an_ascii_output_shows_what_it_can() -> None:
    """Drawings have characters that such a terminal lacks."""
    done = subprocess.run(
        [sys.executable, "-m", "extender", "map", "h100-0", "--cluster", "docs/examples/cluster.yaml"],
        capture_output=True, check=False, timeout=60, env=os.environ | {"PYTHONIOENCODING": "ascii"},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"?" in done.stdout


@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize(
    ("redirected", "code", "says"),
    [(">/dev/full", 1, ("standard output", "No space left on device")), (">&-", 0, ()), ("<&- 2>&-", 0, ())],
)
def test_an_output_that_cannot_be_written_is_no_defect(
    redirected: str, code: int, says: tuple[str, ...], form: str
) -> None:
    command = f"{sys.executable} -m extender top --cluster docs/examples/cluster.yaml -o {form} {redirected}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == code
    if form == "json" and says:
        error = json.loads(done.stderr)["error"]
        assert (error["path"], error["message"], error["code"]) == (*says, "unwritable")
    else:
        assert done.stderr == (f"gpu-extender: {': '.join(says)}\n" if says else "")


def test_log_lines_stand_beside_no_error_that_a_program_reads(tmp_path: Path) -> None:
    notes = {"gpu-extender.io/topology": "no topology"}
    file = tmp_path / "cluster.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "Node"} | machine("n", 8, annotations=notes)))

    def error(*words: str) -> str:
        command = [sys.executable, "-m", "extender", *words, "--cluster", str(file)]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60).stderr

    line = "does not fit together"
    assert line in error("explain", "ns/none")
    assert json.loads(error("explain", "ns/none", "-o", "json"))["error"]["code"] == "not-found"
    assert line in error("top", "-o", "json")


def test_http_and_https_mixed_up(tmp_path: Path, cli: Cli) -> None:
    """One sentence says which one to write."""
    with serving() as url:
        assert "it does not speak TLS: write http://127.0.0.1:" in cli.err(["top", "--server", f"https{url[4:]}"], 1)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate = tmp_path / "certificate-and-key"
    certificate.write_bytes(self_signed(time.time(), 3_600))
    tls.load_cert_chain(certificate)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            for _ in range(2):
                connection, _ = listener.accept()
                with contextlib.suppress(ssl.SSLError, ConnectionError), tls.wrap_socket(connection, server_side=True):
                    pass

        threading.Thread(target=answer, daemon=True).start()
        port = listener.getsockname()[1]
        said = cli.err(["top", "--server", f"http://127.0.0.1:{port}"], 1)
        assert f"If it speaks TLS, write https://127.0.0.1:{port}" in said
        said = cli.err(["top", "--server", f"https://127.0.0.1:{port}"], 1)
    assert "its certificate is not trusted (self-signed certificate): SSL_CERT_FILE names" in said


def test_a_server_that_is_not_ready_or_not_there_names_the_way_out(monkeypatch: pytest.MonkeyPatch, cli: Cli) -> None:
    monkeypatch.setattr("extender.cli.sources.TRIES", 1)
    with serving() as url:
        for body in (b"not ready", {"error": {"code": "not-ready", "path": "", "message": "not known yet: pods"}}):
            answer(body, 503)
            said = cli.err(["top", "--server", url], 1)
            assert "try again, `gpu-extender check --live` shows what it waits for" in said
        answer(b"nothing here", 404)
        assert "HTTP status 404; is this a gpu-extender?" in cli.err(["top", "--server", url], 1)
    said = cli.err(["top", "--server", "http://127.0.0.1:9"], 1)
    assert "Connection refused: no gpu-extender serves there; --server names another address" in said
    assert "Errno" not in said
