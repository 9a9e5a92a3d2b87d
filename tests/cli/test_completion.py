"""Completion as shells ask for it: bash itself, argcomplete's interface for zsh, and kubectl's for its plugin."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from extender.cli import COMMANDS
from extender.cli.kubectl import OFFERED
from tests.installed import install

KUBECTL = """#!/bin/sh
echo "$@" >> "$0.log"
case "$*" in
  *"get pods"*--namespace=ml*) echo "train train-2 other";;
  *"get pods"*--namespace=silent*) exec sleep 600;;
  *"get pods"*--namespace=denied*) echo "forbidden" >&2; exit 1;;
  *"get pods"*) echo "here";;
  *"get namespaces"*) echo "ml default";;
  *"get nodes"*) echo "n1 n2";;
  *"get-contexts"*) echo "prod test";;
  __complete*) printf 'prod\\tits value\\n:4\\n';;
esac
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Our programs, and a kubectl that lists a few names."""
    install(tmp_path)
    (tmp_path / "kubectl").write_text(KUBECTL)
    (tmp_path / "kubectl").chmod(0o755)
    return tmp_path


def bash(folder: Path, line: str) -> list[str]:
    """What bash offers at the end of a line."""
    script = f"""
eval "$(gpu-extender completion bash)"
COMP_LINE={line!r} COMP_POINT={len(line)} COMP_TYPE=9 COMP_KEY=9
_python_argcomplete gpu-extender
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    env = {"PATH": f"{folder}:/usr/bin:/bin", "HOME": str(folder)}
    done = subprocess.run(
        ["bash", "--norc", "-c", script], env=env, cwd=folder, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stderr == ""
    return [word.strip() for word in done.stdout.split("\n") if word]


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("gpu-extender ", list(COMMANDS)),
        ("gpu-extender ex", ["explain"]),
        ("gpu-extender explain ml", ["ml/"]),
        ("gpu-extender explain ml/tr", ["ml/train", "ml/train-2"]),
        ("gpu-extender explain denied/", []),
        ("gpu-extender explain ml/train -o y", ["yaml"]),
        ("gpu-extender explain ml/train --ku", ["--kubeconfig"]),
        ("gpu-extender map n", ["n1", "n2"]),
        ("gpu-extender gates open --context ", ["prod", "test"]),
        ("gpu-extender whatif --cluster kubectl_", ["kubectl_complete-gpu_extender"]),
    ],
)
def test_bash(line: str, offered: list[str], folder: Path) -> None:
    assert bash(folder, line) == offered


def test_a_cluster_that_does_not_answer_keeps_no_shell_waiting(folder: Path) -> None:
    """The shell is given a minute, and kubectl would take ten."""
    assert plugin(folder, "explain", "silent/") == ([], ":4")


def test_a_kubeconfig_that_was_given_is_asked(folder: Path) -> None:
    bash(folder, "gpu-extender explain --kubeconfig other ml/")
    assert "--kubeconfig=other --namespace=ml" in (folder / "kubectl.log").read_text()


def test_zsh_gets_words_with_their_meaning(folder: Path) -> None:
    env = {
        "PATH": f"{folder}:/usr/bin:/bin", "_ARGCOMPLETE": "1", "_ARGCOMPLETE_SHELL": "zsh",
        "_ARGCOMPLETE_IFS": "\n", "COMP_LINE": "gpu-extender to", "COMP_POINT": "15",
        "_ARGCOMPLETE_STDOUT_FILENAME": str(folder / "said"),
    }  # fmt: skip
    subprocess.run([folder / "gpu-extender"], env=env, check=True, timeout=60)
    assert (folder / "said").read_text().splitlines() == [f"{name}:{COMMANDS[name]}" for name in ("top", "topo")]
    done = subprocess.run(
        [folder / "gpu-extender", "completion", "zsh"], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.startswith("#compdef gpu-extender")


def test_fish_gets_words_with_their_meaning(folder: Path) -> None:
    env = {
        "PATH": f"{folder}:/usr/bin:/bin", "_ARGCOMPLETE": "1", "_ARGCOMPLETE_SHELL": "fish", "_ARGCOMPLETE_DFS": "\t",
        "COMP_LINE": "gpu-extender to", "COMP_POINT": "15", "_ARGCOMPLETE_STDOUT_FILENAME": str(folder / "said"),
    }  # fmt: skip
    subprocess.run([folder / "gpu-extender"], env=env, check=True, timeout=60)
    offered = (folder / "said").read_text().split("\x0b")
    assert offered == [f"{name}\t{COMMANDS[name]}" for name in ("top", "topo")]
    done = subprocess.run(
        [folder / "gpu-extender", "completion", "fish"], capture_output=True, text=True, check=True, timeout=60
    )
    assert "complete --command gpu-extender" in done.stdout


def plugin(folder: Path, *words: str) -> tuple[list[str], str]:
    """(the words that are offered, the directive)."""
    env = {"PATH": f"{folder}:/usr/bin:/bin", "HOME": str(folder)}
    called = [str(folder / "kubectl_complete-gpu_extender"), *words]
    done = subprocess.run(called, env=env, cwd=folder, capture_output=True, text=True, check=True, timeout=60)
    assert done.stderr == ""
    *found, directive = done.stdout.splitlines()
    return [line.partition("\t")[0] for line in found], directive


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ([""], list(OFFERED)),
        (["ma"], ["map"]),
        (["serve", ""], []),
        (["explain", ""], ["here"]),
        (["-n", "ml", "explain", "tr"], ["train", "train-2"]),
        (["explain", "--namespace=ml", "ml/o"], ["ml/other"]),
        (["explain", "p", "--out"], ["--output"]),
        (["explain", "p", "--as-g"], ["--as-group"]),
        (["--clus"], ["--cluster"]),
        (["explain", "-n"], []),
        (["explain", "-n", ""], ["prod"]),
        (["--context=p"], ["prod"]),
        (["top", "-o", ""], ["text", "json", "yaml"]),
        (["explain", "a b", "'"], []),
    ],
)
def test_kubectl(words: list[str], offered: list[str], folder: Path) -> None:
    assert plugin(folder, *words) == (offered, ":4")


def test_the_value_of_a_flag_is_kubectls_to_complete(folder: Path) -> None:
    plugin(folder, "explain", "--kubeconfig=f", "p", "-n", "de")
    assert (folder / "kubectl.log").read_text() == "__complete get --kubeconfig=f -n de\n"
