"""Answer the requests of a record (`serve --record`) again. By the recorded settings and the same version every answer
has the same bytes. Exit codes: 0 all answers are the same, 10 some differ, 1 an error, 2 wrong usage.
"""

from __future__ import annotations

import argparse
import logging
from pathlib import Path

from extender import log
from extender.cli.options import add_config, add_output, settings_of, show
from extender.errors import BadInput

EXAMPLES = (
    "gpu-extender replay records",
    "gpu-extender replay records --config other-settings.yaml -o json",
)
DIFFERENT = 10


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument("directory", metavar="DIR", type=Path, help="the record")
    add_config(parser)
    add_output(parser)


def run(options: argparse.Namespace) -> int:
    """Prints the report."""
    if not options.directory.is_dir():
        raise BadInput("there is no such directory", path=str(options.directory))
    other = settings_of(options) if options.config else None
    log.configure("auto", logging.CRITICAL)  # what the server logged then is no news
    from extender.journal.report import ReplayReport, lines  # here: --help need not load the core

    report = ReplayReport(options.directory, other).make()
    show(report, options.output, lines)
    return 0 if report["identical"] == report["requests"] else DIFFERENT
