"""A training loop in plain Python that loses no work when its pod is evicted.

python train.py DIRECTORY [STEPS]
"""

import json
import os
import sys
import time

from save_request import SAVED, begin, should_save

DIRECTORY, STEPS = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 1_000_000
CHECKPOINT = os.path.join(DIRECTORY, "checkpoint.json")


def load():
    try:
        with open(CHECKPOINT) as file:
            return json.load(file)
    except FileNotFoundError:
        return {"step": 0, "weight": 0.0}


def save(state):
    with open(CHECKPOINT + ".new", "w") as file:
        json.dump(state, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(CHECKPOINT + ".new", CHECKPOINT)  # a kill in the middle leaves the old one


def step(state):
    time.sleep(0.01)
    return {"step": state["step"] + 1, "weight": state["weight"] + 0.5}


begin()
state = load()
while state["step"] < STEPS:
    state = step(state)
    if should_save():
        save(state)
        sys.exit(SAVED)
save(state)
