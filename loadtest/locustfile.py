"""The load test of gpu-extender, for locust: against a server that it starts itself, or against any deployment.

    locust -f loadtest/locustfile.py --headless --run-time 20s                    our own server, 1,000 nodes
    locust -f loadtest/locustfile.py --host http://gpu-extender:8888              a deployment; the page is on :8089
    locust -f loadtest/locustfile.py --host http://... Schedulers Readers --users 6   who asks (--list)

docs/internals/loadtest.md has the options. The exit status is 1 for any error or wrong answer; beside the null server
also where a verb takes more than so many times what the null takes (figures.LIMITS).
"""

from __future__ import annotations

import gc
import json
import os
import sys
from itertools import cycle
from pathlib import Path
from typing import Any

import gevent
from locust import events
from locust.env import Environment

# locust may be started in any folder, and the servers that it starts are modules of this repository.
ROOT = str(Path(__file__).parents[1])
sys.path.insert(0, ROOT)
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (ROOT, os.environ.get("PYTHONPATH"))))

from loadtest import recording
from loadtest.report import beside_idle, page, table
from loadtest.session import Session
from loadtest.target import Unusable
from loadtest.users import Gangs, Preemptors, Readers, Retries, Scheduler, Schedulers, WholeNodes

__all__ = ["Gangs", "Preemptors", "Readers", "Retries", "Scheduler", "Schedulers", "WholeNodes"]
RUN_SECONDS = 60
ONE_PROCESS = "exact times are kept in one process: leave out --master, --worker and --processes"


@events.init_command_line_parser.add_listener
def options(parser: Any, **more: Any) -> None:
    """Ours, beside locust's own; its page listens on loopback unless --web-host says otherwise."""
    if any(word.partition("=")[0] in ("--processes", "--master", "--worker") for word in sys.argv):
        _stop(ONE_PROCESS)  # before locust forks
    parser.set_defaults(web_host="127.0.0.1")

    def add(name: str, text: str, **kind: Any) -> None:
        parser.add_argument(name, help=text, include_in_web_ui=False, **kind)

    add("--names", "numbers of nodes in a request, as 100,1000 (default: 1000, or what a deployment has)", default="")
    add("--names-file", "the deployment's node names, one a line (default: ask its /debug/state)", default="")
    add("--churn", "our own server: watch events a second, as 0,100,1000, in turns", default="")
    add("--recording", "the watch stream for --churn (python -m loadtest.record_stream)", default=str(recording.FILE))
    add("--bind", "bind, too: it changes a live cluster", action="store_true")
    add("--preempt", "preempt, too: it reserves GPUs in a live cluster", action="store_true")
    add("--test-namespace", "with --bind and --preempt: the only namespace whose pods are asked about", default="")
    add("--pods", "with --bind and --preempt: that namespace's pods, from kubectl get pods -o json", default="")
    add("--least", "requests below which a run fails (default: 500)", type=int, default=500)
    add("--short", "what the run is too short for is a note, and no failure", action="store_true")
    add("--no-gate", "beside the null: report ratios, and judge none", action="store_true")
    add("--report", "write the report there, one HTML file", default="")
    add("--figures", "write all times there, as JSON", default="")


@events.init.add_listener
def start(environment: Environment, **more: Any) -> None:
    """The servers, before the first user; a clear line and status 1 where that cannot be."""
    chosen: Any = environment.parsed_options
    if chosen.master or chosen.worker or chosen.processes:
        _stop(ONE_PROCESS)
    session = Session(chosen)
    environment.loadtest = session  # type: ignore[attr-defined]
    try:
        if environment.host:
            session.use(environment.host)
        else:
            environment.host = session.start_own()
    except Unusable as why:
        session.close()
        _stop(str(why))
    if chosen.headless and not chosen.run_time:
        chosen.run_time = RUN_SECONDS
    if not chosen.user_classes and not chosen.class_picker:
        with_preemptors = chosen.preempt and session.own is None
        environment.user_classes[:] = [Scheduler, Preemptors] if with_preemptors else [Scheduler]
        if with_preemptors and chosen.headless and not chosen.num_users:
            chosen.num_users = 2
    if Preemptors in environment.user_classes and session.target is not None and not session.target.preempt:
        session.close()
        _stop(
            "Preemptors: against --host add --preempt and its flags; our own server needs a frozen fleet (no --churn)"
        )
    if environment.web_ui is not None:
        environment.web_ui.app.add_url_rule("/distribution", "distribution", lambda: report(session))


def _stop(why: str) -> None:
    print(f"loadtest: {why}", file=sys.stderr)
    raise SystemExit(1)


@events.test_start.add_listener
def begin(environment: Environment, **more: Any) -> None:
    """The host of locust's page may be another than before."""
    session: Session = environment.loadtest  # type: ignore[attr-defined]
    session.figures.clear()
    session.sent.clear()
    try:
        session.use(environment.host or "")
    except Unusable as why:
        session.figures.fail(str(why))
        print(f"loadtest: {why}", file=sys.stderr)
        return
    gc.collect()
    gc.freeze()  # what lives as long as the run is not looked through again: that would be counted as an answer's time
    if session.rates():
        session.churning = gevent.spawn(churn, session)


def churn(session: Session) -> None:
    """The rates of events in turns, forth and back, while the test runs."""
    rates = session.rates()
    for rate in cycle([*rates, *reversed(rates)]):
        session.turn(rate, gevent.sleep)


@events.request.add_listener
def note(
    name: str, response_time: float, exception: BaseException | None, context: dict[str, Any], **more: Any
) -> None:
    """`response_time` in ms, not rounded. Every request of ours has a session."""
    session = context.get("session")
    if session is not None:
        session.note(context, response_time, exception, name)


def report(session: Session) -> str:
    """The HTML page, of what was measured so far."""
    return page(session.figures.as_json(), _title(session))


def _title(session: Session) -> str:
    if session.has_null_beside:
        return "our own server"
    return session.target.host if session.target is not None else "nothing"


@events.test_stop.add_listener
def finish(environment: Environment, **more: Any) -> None:
    """The table, the files and the verdict: what locust's page has is rounded."""
    session: Session = environment.loadtest  # type: ignore[attr-defined]
    if session.churning is not None:
        session.churning.kill()
    if session.own is not None and not session.rates():
        session.figures.expected = {"filter", "prioritize"} if Scheduler in environment.user_classes else set()
    if session.options.preempt:
        session.figures.expected |= {"preempt"}
    gate = session.has_null_beside and not session.options.no_gate
    found = {**session.figures.as_json(), "target": _title(session), "sent": _rates(session)}
    failures = session.figures.verdict(gate)
    missing = session.figures.missing(session.options.least)
    missing += [f"no turn at {rate} events/s: the run is too short" for rate in session.unreached()]
    notes = missing if session.options.short else []
    failures += [] if session.options.short else missing
    found |= {"failures": failures, "notes": notes}
    if session.options.figures:
        Path(session.options.figures).write_text(json.dumps(found))
    if session.options.report:
        Path(session.options.report).write_text(page(found, _title(session)))
    print(table(found["rows"]))
    for line in beside_idle(found["rows"]):
        print(f"loadtest: {line}")
    if session.figures.try_again:
        print(f"loadtest: {session.figures.try_again} answers of filter state that the pod is to be tried again")
    for rate, seen in found["sent"].items():
        print(f"loadtest: {rate} events/s asked for, {seen:.0f} sent")
    for why in notes:
        print(f"loadtest: note: {why}")
    if failures:
        print(*(f"loadtest: FAILED, {why}" for why in failures), sep="\n")
        if session.own is not None:
            print(session.own.tail())
    else:
        print("loadtest: passed" + ("" if gate else "; times are reported, not judged"))
    environment.process_exit_code = 1 if failures else 0


def _rates(session: Session) -> dict[str, float]:
    return {str(rate): events / seconds for rate, (events, seconds) in session.sent.items() if seconds}


@events.quitting.add_listener
def end(environment: Environment, **more: Any) -> None:
    """Our servers end, whatever the verdict is."""
    environment.loadtest.close()  # type: ignore[attr-defined]
