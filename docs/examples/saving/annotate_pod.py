"""Writes annotations on the pod that this runs in, for pods whose ServiceAccount has the Role in role.yaml.

annotate({"gpu-extender.io/last-checkpoint": now()})   # after each checkpoint
annotate({"gpu-extender.io/saved": request_id})        # the answer to a request, instead of an exit
"""

import datetime
import json
import os
import ssl
import urllib.request

ACCOUNT = os.environ.get("SERVICE_ACCOUNT_DIRECTORY", "/var/run/secrets/kubernetes.io/serviceaccount")
SERVER = os.environ.get("KUBERNETES_SERVER", "https://kubernetes.default.svc")


def now():
    """The time as `last-checkpoint` has it."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def of_account(name):
    """What kubelet mounts for the ServiceAccount."""
    with open(os.path.join(ACCOUNT, name)) as file:
        return file.read().strip()


def annotate(annotations):
    """Raises OSError where the API server does not answer, or rejects it."""
    namespace, token = of_account("namespace"), of_account("token")
    pod = os.environ.get("POD_NAME") or os.uname().nodename  # a pod's host name is its name
    request = urllib.request.Request(
        f"{SERVER}/api/v1/namespaces/{namespace}/pods/{pod}",
        data=json.dumps({"metadata": {"annotations": annotations}}).encode(),
        headers={"Authorization": f"Bearer {token}", "Content-Type": "application/merge-patch+json"},
        method="PATCH",
    )
    context = ssl.create_default_context(cafile=os.path.join(ACCOUNT, "ca.crt"))
    with urllib.request.urlopen(request, timeout=10, context=context):
        pass
