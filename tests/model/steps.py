"""The part of the fuzzer's engine: which steps an episode has."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from structlog.testing import capture_logs

from tests.fuzz.engine import Step
from tests.model.tenants import KINDS, LATE
from tests.model.world import Model
from tests.world import JSON

MODELS = ("A100", "H100")
QUEUES = ("a", "b", "c")
STEPS = 50
SECONDS = (0.05, 0.05, 0.2, 0.2, 0.2, 0.5, 1.0, 3.0, 10.0)


def rules(rng: random.Random) -> JSON:
    """Rules of the queues."""
    found: JSON = {}
    for queue in QUEUES:
        own: JSON = {}
        if rng.random() < 0.5:
            own["limitGpus"] = {m: rng.choice((0, 4, 8, 12, 16)) for m in rng.sample(MODELS, rng.choice((1, 1, 2)))}
        if rng.random() < 0.4:
            own["guaranteedGpus"] = {
                m: min(rng.choice((4, 8)), own.get("limitGpus", {}).get(m, 8)) for m in rng.sample(MODELS, 1)
            }
        if rng.random() < 0.1:
            own["borrow"] = False
        if own:
            found[queue] = own
    return found


FEATURES = ("lose", "nodes", "rules", "replicas", "late", "plain", "stated")
"""What may happen, beside gangs that come and end."""


@dataclass(frozen=True)
class Queue:
    """The part. `features`: what happens in each episode, None: by lot."""

    features: tuple[str, ...] | None = None
    name: str = "queue"

    def steps(self, rng: random.Random) -> list[Step]:
        """The beginning, then events."""
        chosen = rng.sample(FEATURES, rng.randint(0, len(FEATURES)))
        features = set(chosen if self.features is None else self.features)
        nodes = [rng.choice(MODELS) if "rules" in features else "A100" for _ in range(rng.randint(2, 5))]
        begin: Step = {"do": "begin", "nodes": nodes, "chance": rng.randrange(1 << 20), "seconds": 2.0}
        begin["replicas"] = rng.randint(2, 3) if "replicas" in features else 1
        if "rules" in features:
            begin["queues"] = rules(rng)
        return [begin, *(self._step(rng, features) for _ in range(STEPS - 2)), {"do": "rest"}]

    def _step(self, rng: random.Random, features: set[str]) -> Step:
        choices: list[tuple[int, str]] = [(30, "gang"), (4, "remove"), (2, "rest")]
        choices += [(30, "wait")] if "stated" in features else [(10, "wait"), (14, "finish")]
        if "lose" in features:
            choices.append((10, "lose"))
        if "nodes" in features:
            choices += [(4, "cordon"), (3, "fail"), (5, "join")]
        if "rules" in features:
            choices.append((4, "rules"))
        if "replicas" in features:
            choices += [(3, "kill"), (3, "stop"), (3, "lag"), (4, "break")]
        what = rng.choices([name for _, name in choices], [weight for weight, _ in choices])[0]
        step: Step = {"do": what, "seconds": rng.choice(SECONDS)}
        if what == "gang":
            return step | self._gang(rng, features)
        if what == "rules":
            step["queues"] = rules(rng)
        if what == "join":
            step["model"] = rng.choice(MODELS) if "rules" in features else "A100"
        if what == "break":
            step["requests"] = rng.randint(1, 6)
        if what == "finish" and rng.random() < 0.4:
            step["one"] = True
        if what != "wait":
            step["pick"], step["which"] = round(rng.random(), 3), round(rng.random(), 3)
        return step

    def _gang(self, rng: random.Random, features: set[str]) -> Step:
        kinds = ("single", "label", *(KINDS if "late" in features else [one for one in KINDS if one not in LATE]))
        made: Step = {"kind": rng.choice(kinds), "queue": rng.choice(QUEUES), "gpus": rng.choice((1, 2, 4, 4, 8))}
        made |= {"pods": rng.randint(1, 4), "priority": rng.choice((0, 0, 0, 10))}
        if rng.random() < (0.9 if "stated" in features else 0.2):
            made["seconds_stated"] = rng.choice((10, 20, 40, 60, 600))
        if rng.random() < 0.2:
            made["least"] = rng.randint(1, 3)
        elif rng.random() < 0.2:
            made["mixed"] = rng.choice((1, 2, 8))
        if rng.random() < 0.1:
            made["apart"] = True
        if "rules" in features and rng.random() < 0.2:
            made["models"] = [rng.choice(MODELS)]
        if "plain" in features and rng.random() < 0.15:
            made |= {"kind": "single", "gated": False}
        return made

    @contextmanager
    def world(self) -> Iterator[Model]:
        """A fresh one."""
        with capture_logs():
            model = Model()
            try:
                yield model
            finally:
                model.close()
