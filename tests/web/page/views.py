"""The addresses of the views, for what looks at all of them: the scene has what each shows."""

from __future__ import annotations

from typing import Final

from tests.web.page.scene import ASKED, ENDED, PREEMPTOR, WAITS

VIEWS: Final = {
    "fleet": "/?holder=gang",
    "fleet-by-zone": "/?by=zone",
    "fleet-none": "/?model=none-such",
    "fleet-filtered": "/?namespace=vision&find=run-1",
    "nodes": "/nodes?in=rack-2",
    "node": "/node?node=v100-0",
    "node-cordoned": "/node?node=v100-3",
    "node-switched": "/node?node=h100-0",
    "waiting": "/waiting",
    "pod": f"/pod?pod={WAITS}",
    "pod-preempts": f"/pod?pod={PREEMPTOR}",
    "pod-fits": "/pod?pod=serving/small",
    "pod-asked": f"/pod?pod={ASKED}",
    "pod-gated": "/pod?pod=research/llm-0",
    "pod-never": "/pod?pod=speech/giant",
    "pod-ended": f"/pod?pod={ENDED}",
    "error": "/pod?pod=a/b",
    "error-link": "/no-such-page",
    "error-word": "/?by=color",
    "queue": "/queue",
    "capacity": "/capacity",
    "advice": "/advice",
    "whatif": f"/whatif?pod={WAITS}",
    "preemptions": "/preemptions",
    "prices": "/prices",
    "decisions": "/decisions",
}
"""By a name for files. Several addresses are of one view where it differs by what it is asked about."""
