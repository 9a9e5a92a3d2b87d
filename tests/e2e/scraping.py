"""What Prometheus does with the metrics of a pod: it asks over TLS, with the token of an account."""

from __future__ import annotations

import httpx

from tests.e2e.api import Api
from tests.e2e.cluster import ControlPlane
from tests.waiting import wait_for

RBAC = "rbac.authorization.k8s.io"


def check_metrics(control_plane: ControlPlane, api: Api, namespace: str, address: str) -> None:
    """Metrics are for tokens whose user may get them, health is for everybody, and nothing else is served.

    `namespace`: where the accounts are made; `address`: HOST:PORT of the metrics."""
    for name in ("prometheus", "stranger"):
        api.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": namespace}})
    role = {"apiGroup": RBAC, "kind": "ClusterRole", "name": f"metrics-{namespace}"}
    meta, rules = {"name": role["name"]}, [{"nonResourceURLs": ["/metrics"], "verbs": ["get"]}]
    api.create({"apiVersion": f"{RBAC}/v1", "kind": "ClusterRole", "metadata": meta, "rules": rules})
    subject = {"kind": "ServiceAccount", "name": "prometheus", "namespace": namespace}
    api.create({"apiVersion": f"{RBAC}/v1", "kind": "ClusterRoleBinding", "metadata": meta, "roleRef": role,
                "subjects": [subject]})  # fmt: skip
    with httpx.Client(base_url=f"https://{address}", verify=False, trust_env=False, timeout=30) as client:

        def scraped(token: str) -> httpx.Response:
            return client.get("/metrics", headers={"authorization": f"Bearer {token}"} if token else {})

        def token(name: str) -> str:
            return control_plane.account_token(namespace, name)

        assert scraped("").status_code == 401
        assert scraped("no-token").status_code == 401
        assert scraped(token("stranger")).status_code == 403
        wait_for(lambda: scraped(token("prometheus")).status_code == 200, 60, "the right counts")
        assert "gpu_extender_dark_seconds" in scraped(token("prometheus")).text
        assert client.get("/healthz").status_code == 200
        assert client.get("/debug/state").status_code == 404
        assert client.post("/v1/filter", json={}).status_code == 404
