"""What the commands that run on a GPU node have in common: which node this is, and where the API server is."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

import orjson

from extender.cli.options import host_and_port
from extender.errors import BadInput
from extender.node.apiserver import ApiEndpoint


def add(parser: argparse.ArgumentParser) -> None:
    """The options."""
    parser.add_argument(
        "--node", default=os.environ.get("NODE_NAME", ""), help="this node's name (default: $NODE_NAME)"
    )
    parser.add_argument("--api-server", metavar="URL", help="default: as a pod with its service account")
    parser.add_argument("--token-file", metavar="FILE", type=Path, help="with --api-server: read for each request")
    parser.add_argument(
        "--ca-file", metavar="FILE", type=Path, help="with --api-server: the authority of its certificate"
    )
    parser.add_argument("--probe", metavar="HOST:PORT", default="", help="serve /livez and /metrics there")


def server(options: argparse.Namespace) -> ApiEndpoint:
    """Where the API server is. BadInput outside of a pod, when nothing is named."""
    if options.api_server:
        return ApiEndpoint(options.api_server.rstrip("/"), options.token_file, options.ca_file)
    return ApiEndpoint.of_pod()


def node(options: argparse.Namespace) -> str:
    """This node's name. BadInput when it is not known."""
    if not options.node:
        raise BadInput("the name of this node is unknown; give --node or set NODE_NAME", path="node")
    return str(options.node)


def probe_address(options: argparse.Namespace) -> tuple[str, int] | None:
    """(host, port); None when no probe is served. BadInput for anything else."""
    if not options.probe:
        return None
    host, number = host_and_port(options.probe, "probe")
    return host or "0.0.0.0", number


def say(message: str) -> None:
    """One line of JSON on standard error."""
    line = orjson.dumps({"ts": round(time.time(), 3), "msg": message}) + b"\n"
    sys.stderr.buffer.write(line)
    sys.stderr.buffer.flush()
