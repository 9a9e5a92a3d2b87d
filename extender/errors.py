"""What can go wrong, as one tree. Every error states what to answer: a code, a place, a sentence, an HTTP status.

    ExtenderError            internal         500  a defect of ours
    ├── BadInput             bad-input        400  an input that cannot be used
    │   ├── BadRequest       bad-request      400  the body of a verb
    │   │   ├── BodyTooLarge body-too-large   413  larger than `limits.bodyBytes`
    │   │   ├── BodyTooLate  body-too-late    408  not here within `limits.requestSeconds`
    │   │   └── BodiesFull   bodies-full      503  all bodies together are larger than `limits.allBodiesBytes`
    │   ├── BadSettings      bad-settings     400  a settings file, with all of its problems
    │   ├── BadCluster       bad-cluster      400  a Kubernetes List that stands for a cluster
    │   └── BadTopology      bad-topology     400  a description of GPUs and their links
    ├── NotFound             not-found        404  a pod, a node or a decision that we do not know
    ├── Conflict             conflict         409  the world has moved on; asking again may help
    ├── Busy                 busy             429  as many questions are answered as may be at once
    │   └── NotReady         not-ready        503  what must be known first is not known for the moment
    ├── NotAnswered          too-much-work    503  a question that takes too much time or memory
    └── Unreachable          unreachable      502  the API server, or the server that `explain` asks

Codes are constants (they become metric labels and exit texts); what varies stands in `path` and `message`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


class ExtenderError(Exception):
    """The root. `code` is a constant in kebab-case, `path` states where in the input ("" when nowhere)."""

    code = "internal"
    status = 500

    def __init__(self, message: str, *, path: str = "", code: str | None = None) -> None:
        """`message`: one sentence for people; `code`: a finer code than the class has, a constant too."""
        super().__init__(message)
        self.message = message
        self.path = path
        if code is not None:
            self.code = code

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message

    def as_json(self) -> dict[str, dict[str, str]]:
        """What `-o json` prints on standard error and what our own HTTP pages answer."""
        return {"error": {"code": self.code, "path": self.path, "message": self.message}}


class BadInput(ExtenderError):
    """An input that cannot be used."""

    code = "bad-input"
    status = 400


class BadRequest(BadInput):
    """The body of a verb. filter and bind carry the message in `Error`, the other verbs have only the status.

    What it cites of the body is cut: it goes into the log and back to the client."""

    code = "bad-request"

    def __init__(self, message: str, *, path: str = "", code: str | None = None) -> None:
        super().__init__(message[:1_000], path=path[:300], code=code)


class BodyTooLarge(BadRequest):
    """A body over `limits.bodyBytes`; it is not read to its end."""

    code = "body-too-large"
    status = 413


class BodyTooLate(BadRequest):
    """A body that was not here in time."""

    code = "body-too-late"
    status = 408


class BodiesFull(BadRequest):
    """The bodies in progress are larger than allowed, and this one is of the client that has most of them."""

    code = "bodies-full"
    status = 503


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with a settings file."""

    path: str
    """As in the file: `scorers[1].weight`; "" for the file as a whole."""
    message: str
    line: int | None = None
    """Counted from 1; None where the field is missing from the file."""

    def __str__(self) -> str:
        where = ", ".join(part for part in (self.path, f"line {self.line}" if self.line else "") if part)
        return f"{where}: {self.message}" if where else self.message


class BadSettings(BadInput):
    """A settings file that is refused. `problems` has every reason at once, in the order of the file."""

    code = "bad-settings"

    def __init__(self, source: str, problems: Iterable[Problem]) -> None:
        """`source` names the file in the message; there is at least one problem."""
        self.source = source
        self.problems = tuple(problems)
        super().__init__(f"{source}: " + "; ".join(str(problem) for problem in self.problems))
        self.path = self.problems[0].path

    def __str__(self) -> str:
        return "\n  ".join([f"{self.source} is rejected:", *(str(problem) for problem in self.problems)])


class BadCluster(BadInput):
    """A file that should hold a Kubernetes List (or several) and does not."""

    code = "bad-cluster"


class BadTopology(BadInput):
    """An annotation, a file or a catalogue entry that describes no possible GPU machine."""

    code = "bad-topology"


class NotFound(ExtenderError):
    """A pod, a node or a decision that we do not know."""

    code = "not-found"
    status = 404


class Conflict(ExtenderError):
    """What was true when it was decided is no longer true; the scheduler retries the pod."""

    code = "conflict"
    status = 409


class Busy(ExtenderError):
    """As many questions are answered as may be at once."""

    code = "busy"
    status = 429


class NotReady(Busy):
    """What must be known for an answer is not known for the moment."""

    code = "not-ready"
    status = 503


class NotAnswered(ExtenderError):
    """A question whose answer takes too much time or memory."""

    code = "too-much-work"
    status = 503


class Unreachable(ExtenderError):
    """A server that we need does not answer."""

    code = "unreachable"
    status = 502
