"""Says whether gpu-extender asks this pod to save. It needs no rights, no network and no library.

kubelet keeps the file up to date, from the pod's annotation `gpu-extender.io/save-requested` (a downward API volume).
An exit with SAVED tells gpu-extender that the work is saved: copy this file beside your training script.
"""

import json
import os
import time

PATH = os.environ.get("SAVE_REQUEST_FILE", "/etc/gpu-extender/save-requested")
SAVED = 75  # EX_TEMPFAIL of sysexits.h: a Job's podFailurePolicy can ignore it


def requested():
    """The id of the request that stands, or None."""
    try:
        with open(PATH) as file:
            return json.loads(file.read() or "{}").get("id")
    except (OSError, ValueError, AttributeError):
        return None


def wait_while_requested(poll_seconds=1.0):
    """Call it first: a container that kubelet starts again after its exit has nothing to do until the pod is evicted
    or the request is withdrawn."""
    while requested():
        time.sleep(poll_seconds)
