"""Says whether this pod has to save: gpu-extender asks it to, or it is terminated. No rights and no library are needed.

kubelet keeps the file up to date, from the pod's annotation `gpu-extender.io/save-requested` (a downward API volume).
An exit with SAVED tells gpu-extender that the work is saved: copy this file beside your training script.
"""

import json
import os
import signal
import time

PATH = os.environ.get("SAVE_REQUEST_FILE", "/etc/gpu-extender/save-requested")
SAVED = 75  # EX_TEMPFAIL of sysexits.h: a Job's podFailurePolicy can ignore it
terminated = False


def requested():
    """The id of the request that stands, or None."""
    try:
        with open(PATH) as file:
            return json.loads(file.read() or "{}").get("id") or None
    except (OSError, ValueError, AttributeError):
        return None


def wait_while_requested(poll_seconds=1.0):
    """Returns when no request stands, or the pod is terminated."""
    while requested() and not terminated:
        time.sleep(poll_seconds)


def begin():
    """Call it first. From now on a SIGTERM is a reason to save. It waits while a request stands: a container that
    kubelet starts again after its exit has nothing to do until the pod is evicted, or the request is withdrawn."""
    signal.signal(signal.SIGTERM, _terminate)
    wait_while_requested()


def should_save():
    """Whether to save now, and to exit with SAVED."""
    return terminated or requested() is not None


def _terminate(*_):
    global terminated
    terminated = True
