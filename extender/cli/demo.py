"""Start the server over a simulated cluster, play a scheduler against it over HTTP, show how a mixed day goes, and
keep serving until Ctrl-C."""

from __future__ import annotations

import argparse

from extender.cli import options as shared
from extender.errors import ExtenderError


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--once", action="store_true", help="end after the day instead of serving on")
    parser.add_argument("--seed", type=int, default=0, help="decides the ties of the simulated device plugins")
    shared.add_address(parser)


def run(options: argparse.Namespace) -> int:
    """Plays the day; 0 when all went as it was told."""
    raise ExtenderError("the demo is not written yet", code="not-implemented")
