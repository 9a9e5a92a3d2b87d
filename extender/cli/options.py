"""Options that several commands share, and the settings that come of them."""

from __future__ import annotations

import argparse
import logging
from pathlib import Path

from extender import log
from extender.settings import Known, Settings, read_settings


def port(text: str) -> int:
    """An argparse type: 0..65535."""
    if not (text.isascii() and text.isdigit() and int(text) <= 65_535):
        raise argparse.ArgumentTypeError(f"{text!r} is not a port: 0 to 65535")
    return int(text)


def add_config(parser: argparse.ArgumentParser) -> None:
    """--config."""
    parser.add_argument("--config", metavar="FILE", type=Path, help="settings (default: every field's default)")


def add_address(parser: argparse.ArgumentParser) -> None:
    """--host and --port; they override the settings."""
    parser.add_argument("--host", help="address to listen on (default: server.host of the settings, 127.0.0.1)")
    parser.add_argument("--port", type=port, help="port; 0 lets the system choose (default: server.port, 8888)")


def add_logging(parser: argparse.ArgumentParser) -> None:
    """--log-format and --verbose."""
    parser.add_argument(
        "--log-format", choices=("auto", "json", "text"), default="auto", help="auto: text on a terminal, else JSON"
    )
    parser.add_argument("-v", "--verbose", action="store_true", help="log what is usually not worth a line")


def configure_logging(options: argparse.Namespace) -> None:
    """As add_logging's options say."""
    log.configure(options.log_format, logging.DEBUG if options.verbose else logging.INFO)


def settings_of(options: argparse.Namespace) -> Settings:
    """The file's settings (or the defaults) with --host and --port put in; BadSettings when the file is wrong."""
    file: Path | None = getattr(options, "config", None)
    settings = read_settings(file, _known()) if file else Settings()
    given = {field: value for field in ("host", "port") if (value := getattr(options, field, None)) is not None}
    return settings.model_copy(update={"server": settings.server.model_copy(update=given)}) if given else settings


def _known() -> Known:
    from extender.policy.costs import COSTS  # here, so that --help need not load the core
    from extender.policy.scorers import SCORERS

    return Known(scorers=SCORERS.keys(), costs=COSTS.keys())
