"""Pods with several containers that ask for GPUs: what the kubelets hand out is what we count."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson
import pytest

from extender.ask.frozen import parse
from extender.cluster.cluster import Cluster
from extender.cluster.statements import NodeLedger
from extender.settings import Settings
from tests.e2e import containers_by_hand
from tests.e2e.builders import container
from tests.e2e.containers_by_hand import kept
from tests.e2e.scene import H100, Scene, SceneFactory


def our_ledgers(cluster: Scene) -> tuple[Cluster, Mapping[str, NodeLedger]]:
    """The product's own reading of the cluster as `kubectl get nodes,pods -A -o json` prints it."""
    items = [{**item, "kind": kind} for kind in ("Node", "Pod") for item in cluster.api.list(kind)]
    ours = Cluster(Settings())
    ours.apply(parse(orjson.dumps({"apiVersion": "v1", "kind": "List", "items": items}), ours.gpu_names), 0.0)
    return ours, ours.gpus.ledgers


def test_every_kind_of_container(scene: SceneFactory) -> None:
    cluster = scene({f"n{i}": H100 for i in range(3)})
    variants: dict[str, tuple[dict[str, Any], int]] = {
        "two": ({"containers": [container("a", 2), container("b", 2)]}, 4),
        "init": ({"init_containers": [container("i", 3)], "containers": [container("a", 1)]}, 3),
        "sidecar": ({"init_containers": [container("s", 1, sidecar=True)], "containers": [container("a", 2)]}, 3),
        "all": (
            {
                "init_containers": [container("i", 4), container("s", 1, sidecar=True)],
                "containers": [container("a", 2), container("b", 1)],
            },
            4,
        ),
        "idle": ({"containers": [container("a", 2), container("b", 0)]}, 2),
    }
    for name, (options, _) in variants.items():
        cluster.pod(name, 0, **options)
    where = dict(zip(variants, cluster.running(*variants), strict=True))
    cluster.kubelets.settle()
    truth = cluster.kubelets.truth
    assert truth.refusals() == []
    assert {name: len(cluster.gpus(name)) for name in variants} == {name: size for name, (_, size) in variants.items()}

    ours, ledgers = our_ledgers(cluster)
    resource = ours.resources.index("nvidia.com/gpu")
    for node, held in truth.holdings().items():
        used = ours.tables.nodes.used_of(ours.row(node))
        assert used[resource] == len(held), node
    said = {}
    for name, node in where.items():
        holding = next(h for h in ledgers[node].holdings if h.uid == cluster.uids[name])
        really = cluster.gpus(name)
        assert holding.count == len(really), name
        # Kubelet reports the GPUs of the containers, not those that init containers keep for the pod.
        assert holding.mask & ~sum(1 << gpu for gpu in really) == 0, name
        assert holding.unsure == holding.count - holding.mask.bit_count(), name
        if name in ("two", "idle"):
            assert frozenset(holding.gpus or ()) == really
            assert holding.unsure == 0
        said[name] = (holding.how, sorted(holding.gpus or ()), sorted(really))
    print("ours and the truth:", said)

    # What is left is exactly what we think is left: it fills up to the last GPU, and no further.
    left = 24 - sum(size for _, size in variants.values())
    fill = [f"f{i}" for i in range(left)]
    for name in fill:
        cluster.pod(name, 1)
    cluster.running(*fill)
    cluster.pod("one-more", 1)
    cluster.unschedulable("one-more", "nvidia.com/gpu")
    assert truth.refusals() == []
    assert truth.double_allocations == 0
    assert sum(len(held) for held in truth.holdings().values()) == 24


# -- containers that tests start by hand run wherever the clone lies; no control plane ---------------------------------


def test_programs_below_a_folder_that_the_pod_mounts_stay_where_they_are(tmp_path: Path) -> None:
    """As of a clone in /tmp, with its .venv in it, where the pod has an empty /tmp."""
    containers_by_hand.needed()
    clone, other = tmp_path / "a clone", tmp_path / "other"
    for folder in (clone / ".venv", other):
        folder.mkdir(parents=True)
        (folder / "file").touch()
    before, after = kept(0, tmp_path, "/run/stage/tmp", {clone, clone / ".venv", Path("/usr")})
    steps = [
        "mount -t tmpfs tmpfs /run",
        "mkdir -p /run/stage/tmp",
        *before,
        f"mount --bind /run/stage/tmp {tmp_path}",
        *after,
        f"cd {tmp_path} && find . -type f",
    ]
    command = ["unshare", "--mount", "--propagation", "private", "sh", "-ec", "\n".join(steps)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert done.stdout.splitlines() == ["./a clone/.venv/file"]


def test_a_clone_that_the_pod_covers_itself_is_an_error() -> None:
    with pytest.raises(ValueError, match="clone into another folder"):
        kept(0, Path("/tmp"), "/run/stage/tmp", {Path("/tmp")})
