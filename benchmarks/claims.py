"""What filter and prioritize cost for pods with ResourceClaims, and what DRA costs a cluster without it.

    python -m benchmarks.claims [--nodes 1000] [--rounds 8] [--calls 240]

The same cluster twice: nodes of eight GPUs, of which one to seven are held, offered by a device plugin (kubelet reports
which ones a pod holds), and by NVIDIA's DRA driver (ResourceSlices, allocated claims). The arms ask in turns, in both
orders, each call about another pod of 1, 2 or 4 GPUs:

limits         pods with limits, device plugin: what the others are compared with
claims         pods with a claim from a template, which the claim controller has created
chosen         the same with a selector, so that each node's devices are allocated for the claim
served         pods with limits, of which a DeviceClass makes claims (extendedResourceName)
linked         as `limits`, with `links: required`: what the next one is compared with
linked claims  as `claims`, with `links: required`
no code        pods with limits, device plugin, and a server without the code for DRA (benchmarks.dra_free_server)
again          as `limits`, by another process: what two equal servers differ by

Each round starts all servers anew, in both orders: two processes of one program differ by some per cent. Printed is the
CPU time of the server, read while it waits, as the median of the rounds with the lowest and the highest.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from benchmarks import fleet, say
from benchmarks.serving import Connection, Served, Servers, request
from benchmarks.spread import Line, Spread, at_most, ratios, table, targets_table
from benchmarks.verbs import FEWEST, SETTINGS, SHORTLIST
from extender.sim import claims as dra
from extender.sim.machines import gpu_uuids, machine, topology_annotation
from tests.e2e import builders

Object = dict[str, Any]
BLOCK: Final = 15
WARM_UP: Final = 3  # blocks of each case
SIZES: Final = (1, 2, 4)
NAMESPACE: Final = "work"
MACHINES: Final = ("dgx-h100", "dgx-h100", "dgx1-v100", "dgx-h100", "dgx-a100")  # as fleet.PRODUCTS
SELECTOR: Final = f"device.attributes['{dra.DRIVER}'].uuid != 'none'"


class Pods(NamedTuple):
    """The pods of an arm. `claims`: how their claims end, "" for limits."""

    claims: str = ""
    linked: bool = False


PODS: Final = (Pods(), Pods("gpus"), Pods("chosen"), Pods(linked=True), Pods("gpus", linked=True))
LIMITS, CLAIMS, CHOSEN, LINKED, LINKED_CLAIMS = PODS


class Arm(NamedTuple):
    """`server`: which one is asked; `against`: the arm that it is compared with."""

    server: str
    pods: Pods = LIMITS
    against: str = "limits"


FIRST: Final = "limits"
ARMS: Final = {
    "limits": Arm("plugin"), "claims": Arm("driver", CLAIMS), "chosen": Arm("driver", CHOSEN), "served": Arm("driver"),
    "linked": Arm("plugin", LINKED), "linked claims": Arm("driver", LINKED_CLAIMS, "linked"), "no code": Arm("bare"),
    "again": Arm("twin"),
}  # fmt: skip


# ---- the cluster


def cluster(nodes: int, numbers: range, *, by_driver: bool) -> bytes:
    """The cluster, with the claims of the pods of these numbers. The first half of the pods wait in it; the others are
    not known yet."""
    items: list[Object] = []
    if by_driver:
        items.append(dra.device_class(extended_resource=fleet.GPU))
        items += [dra.claim(template(size), NAMESPACE, size, template=True) for size in SIZES]
        items += [claim_of(number, pods) for number in numbers for pods in PODS if pods.claims]
    for i in range(nodes):
        items += _node(i, by_driver=by_driver)
    for number in numbers[: len(numbers) // 2]:
        for pods in PODS:
            if by_driver or not pods.claims:
                items.append({"apiVersion": "v1", "kind": "Pod", **asking(number, pods)})
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": items}).encode()


def _node(i: int, *, by_driver: bool) -> Iterator[Object]:
    what, name = machine(MACHINES[i % len(MACHINES)]), fleet.name(i)
    uuids = gpu_uuids(name, what)
    notes = {"gpu-extender.io/topology": topology_annotation(what, uuids)}
    yield builders.node(
        name, 0 if by_driver else fleet.SIZE, annotations=notes, labels=fleet.label_gpus(fleet.PRODUCTS[i % 5])
    )
    if by_driver:
        yield from dra.resource_slices(name, what)
    for j in range(fleet.taken(i)):
        pod = fleet.running(i, j)
        if by_driver:
            [container] = pod["spec"]["containers"]
            for amounts in container["resources"].values():
                amounts.pop(fleet.GPU, None)
            made = dra.claim(f"{pod['metadata']['name']}-gpus", NAMESPACE, 1)
            results = [{"request": "gpus", "driver": dra.DRIVER, "pool": name, "device": f"gpu-{j}"}]
            user = {"resource": "pods", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
            made["status"] = {"allocation": {"devices": {"results": results}}, "reservedFor": [user]}
            _claiming(pod, 1, made["metadata"]["name"])
            yield made
        else:
            held = {"name": fleet.GPU, "resources": [{"resourceID": uuids[j], "health": "Healthy"}]}
            pod["status"]["containerStatuses"] = [{"name": "main", "allocatedResourcesStatus": [held]}]
        yield pod


def template(size: int) -> str:
    """The name of the template of claims for so many GPUs."""
    return f"gpus-{size}"


def claim_of(number: int, pods: Pods) -> Object:
    """The claim that was created for a pod."""
    made = dra.claim(f"trainer-{_uid(number, pods)}-{pods.claims}", NAMESPACE, SIZES[number % len(SIZES)])
    if pods.claims == CHOSEN.claims:
        made["spec"]["devices"]["requests"][0]["exactly"]["selectors"] = [{"cel": {"expression": SELECTOR}}]
    return made


def asking(number: int, pods: Pods) -> Object:
    """A pod that waits."""
    size = SIZES[number % len(SIZES)]
    text = json.dumps(fleet.asking_pod(0 if pods.claims else size))
    pod: Object = json.loads(text.replace(fleet.HOLE_UID, _uid(number, pods)))
    if pods.linked:
        pod["metadata"]["annotations"] = {"gpu-extender.io/links": "required"}
    if pods.claims:
        _claiming(pod, size, claim_of(number, pods)["metadata"]["name"])
    return pod


def _claiming(pod: Object, size: int, claim: str) -> None:
    pod["spec"]["resourceClaims"] = [{"name": "gpus", "resourceClaimTemplateName": template(size)}]
    pod["spec"]["containers"][0]["resources"]["claims"] = [{"name": "gpus"}]
    pod["status"]["resourceClaimStatuses"] = [{"name": "gpus", "resourceClaimName": claim}]


def _uid(number: int, pods: Pods) -> str:
    return (fleet.UID % (len(PODS) * number + PODS.index(pods))).decode()


# ---- the measurement


@dataclass(frozen=True)
class Case:
    """One kind of call. `cpu`: microseconds of a call, by arm, of each round."""

    verb: str
    names: tuple[str, ...]
    known: bool
    cpu: dict[str, list[float]] = field(default_factory=lambda: {arm: [] for arm in ARMS})

    @property
    def what(self) -> str:
        """In words."""
        return f"{self.verb}, {len(self.names)} names, pod {'' if self.known else 'not '}known"

    def request(self, number: int, pods: Pods) -> bytes:
        """A call about the pod of this number."""
        asked = {"Pod": asking(number, pods), "Nodes": None, "NodeNames": self.names}
        return request("POST", f"/v1/{self.verb}", json.dumps(asked, separators=(",", ":")).encode())


def cases(nodes: int) -> list[Case]:
    """What is asked. SHORTLIST names are those of the emptiest nodes."""
    every = tuple(fleet.name(i) for i in range(nodes))
    few = tuple(fleet.name(i) for i in sorted(range(nodes), key=fleet.taken)[:SHORTLIST])
    asked = (("filter", every), ("filter", few), ("prioritize", few))
    return [Case(verb, names, known) for verb, names in asked for known in (True, False)]


class Round:
    """The servers of one round. Use as a context manager."""

    def __init__(self, plugin: bytes, driver: bytes, *, backwards: bool) -> None:
        """`backwards`: which server starts first."""
        self._servers = servers = Servers()
        bare = ("-m", "benchmarks.dra_free_server")
        starts: dict[str, Callable[[], Served]] = {
            "plugin": lambda: servers.ours(plugin, SETTINGS),
            "driver": lambda: servers.ours(driver, SETTINGS),
            "bare": lambda: servers.launched(bare, plugin, SETTINGS, {}),
            "twin": lambda: servers.ours(plugin, SETTINGS),
        }
        self._served = {name: starts[name]() for name in list(starts)[:: -1 if backwards else 1]}
        self._connections = {name: Connection(served.port) for name, served in self._served.items()}

    def __enter__(self) -> Round:
        return self

    def __exit__(self, *error: object) -> None:
        for connection in self._connections.values():
            connection.close()
        self._servers.close()

    def measure(self, case: Case, numbers: Sequence[int]) -> None:
        """Call all arms in turns about these pods. The first blocks warm up."""
        spent = dict.fromkeys(ARMS, 0.0)
        for turn, start in enumerate(range(0, len(numbers), BLOCK)):
            for arm in list(ARMS)[:: 1 if turn % 2 == 0 else -1]:
                took = self._block(case, arm, numbers[start : start + BLOCK])
                spent[arm] += took if turn >= WARM_UP else 0.0
        for arm, seconds in spent.items():
            case.cpu[arm].append(seconds / (len(numbers) - WARM_UP * BLOCK) * 1e6)

    def _block(self, case: Case, arm: str, numbers: Sequence[int]) -> float:
        made = [case.request(number, ARMS[arm].pods) for number in numbers]
        served, connection = self._served[ARMS[arm].server], self._connections[ARMS[arm].server]
        before = served.cpu()
        replies = [connection.send(one) for one in made]
        spent = served.cpu() - before
        for reply in replies:
            if reply.status != 200 or not _right(case, json.loads(reply.body)):
                raise RuntimeError(f"{arm}, {case.what}: {reply.status} {reply.body[:300]!r}\n{self._servers.tail()}")
        return spent


def _right(case: Case, answer: Any) -> bool:
    """Whether prioritize prefers some of the nodes, and filter names some, and not all that it was asked about. So the
    server knows that the pod asks for GPUs."""
    if case.verb == "prioritize":
        points = {one["Host"]: one["Score"] for one in answer}
        return points.keys() == {*case.names} and max(points.values()) == 10
    names = set(answer["NodeNames"])
    return not answer["Error"] and FEWEST <= len(names) <= SHORTLIST and names.issubset(case.names)


def measure(nodes: int, rounds: int, calls: int) -> list[Case]:
    """All cases."""
    asked = cases(nodes)
    each = (WARM_UP + max(1, calls // BLOCK)) * BLOCK
    half = each * len(asked) // 2
    numbers = range(2 * half)
    say(f"making the clusters of {nodes} nodes")
    plugin, driver = (cluster(nodes, numbers, by_driver=by_driver) for by_driver in (False, True))
    for number in range(rounds):
        with Round(plugin, driver, backwards=number % 2 == 1) as servers:
            left = {True: numbers[:half], False: numbers[half:]}
            for case in asked:
                servers.measure(case, left[case.known][:each])
                left[case.known] = left[case.known][each:]
        say(f"round {number + 1} of {rounds}")
    return asked


# ---- what is printed


def report(found: Sequence[Case]) -> str:
    """The table: microseconds with limits, and the ratio of each other arm."""
    others = {arm: ARMS[arm].against for arm in ARMS if arm != FIRST}
    rows = []
    for case in found:
        ratio = [ratios(case.cpu[arm], case.cpu[against]).text() for arm, against in others.items()]
        rows.append([case.what, Spread.of(case.cpu[FIRST]).text(0), *ratio])
    columns = [f"{arm} / {against}" for arm, against in others.items()]
    return table(["call", "limits, us of CPU", *columns], rows, words=1)


def targets(found: Sequence[Case]) -> list[Line]:
    """Of each verb the case with the highest ratio; what DRA costs without it, over all cases."""
    lines = []
    for arm in ("claims", "chosen", "served", "linked claims"):
        against = ARMS[arm].against
        for verb, most in (("filter", 1.2), ("prioritize", 1.3)):
            highest = max(ratios(case.cpu[arm], case.cpu[against]) for case in found if case.verb == verb)
            lines.append(at_most(f"CPU of {verb}, pods of the arm `{arm}`", f"<= {most} x {against}", highest, most))
    lines.append(
        at_most("CPU of both verbs without DRA objects", "<= 1.02 x no code", whole(found, "no code"), 1.02, 3)
    )
    lines.append(Line("two equal servers", "what noise is", whole(found, "again").text(3), None))
    return lines


def whole(found: Sequence[Case], arm: str) -> Spread:
    """`limits` / the arm, of the CPU of all cases of a round."""
    sums = [
        [sum(of_round) for of_round in zip(*(case.cpu[one] for case in found), strict=True)] for one in (FIRST, arm)
    ]
    return ratios(*sums)


def main(arguments: list[str] | None = None) -> int:
    """Prints the figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.claims", description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--calls", type=int, default=240, help="of each arm, case and round")
    asked = parser.parse_args(arguments)
    found = measure(asked.nodes, asked.rounds, asked.calls)
    print(f"{report(found)}\n\nTargets\n\n{targets_table(targets(found))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
