"""The option --output: text for people, JSON for programs."""

from __future__ import annotations

import argparse


def add_output(parser: argparse.ArgumentParser) -> None:
    """-o: text by default."""
    parser.add_argument(
        "-o", "--output", choices=("text", "json"), default="text", help="text for people (the default), or JSON"
    )
