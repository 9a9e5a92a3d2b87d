"""What holds for all tests."""

from __future__ import annotations

import gc
import logging
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest
import structlog
from hypothesis import settings

from extender import log

if TYPE_CHECKING:
    from tests.world import World

# In CI the same examples every time: a change fails on what it broke. By hand, new ones each time.
settings.register_profile("ci", derandomize=True, deadline=None)
settings.register_profile("by-hand", deadline=None)
settings.register_profile("checked", derandomize=True, deadline=None, max_examples=25)  # .ci/checked chooses it
settings.register_profile("fuzz", derandomize=False, deadline=None, max_examples=500, print_blob=True)  # tests.fuzz
settings.load_profile("ci" if os.environ.get("CI") else "by-hand")


def _plain_lines() -> None:
    """What a test logs is captured, and seldom read. structlog's own lines for people take as long as a decision, and
    its table of all local variables 0.1 s for each traceback."""
    rendered = structlog.processors.KeyValueRenderer(key_order=["level", "event"])
    processors = (structlog.contextvars.merge_contextvars, structlog.processors.add_log_level)
    structlog.configure([*processors, structlog.processors.format_exc_info, rendered])


_plain_lines()


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """A run of an hour says at once what failed, where its output is kept and not looked at."""
    if os.environ.get("CI") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_AtOnce(config.get_terminal_writer().line))


def pytest_collection_finish() -> None:
    """What all 11,000 tests are made of stays until the end: a full collection over it takes 0.3 s each time."""
    gc.freeze()


class _AtOnce:
    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._say(f"\nFAILED {report.nodeid} ({report.when})\n{report.longreprtext}")


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    """A test that starts the command line sets logging up on a stream that pytest closes after it."""
    handlers, level = logging.getLogger().handlers[:], logging.getLogger().level
    straight = log._straight
    yield
    structlog.reset_defaults()
    _plain_lines()
    log._straight = straight
    logging.getLogger().handlers[:] = handlers
    logging.getLogger().setLevel(level)


@pytest.fixture
def world() -> World:
    """An empty cluster, and the server over it."""
    from tests.world import World  # tests of the core alone need no server

    return World()
