"""A real control plane on loopback ports: etcd, kube-apiserver, kube-controller-manager, kube-scheduler.

There are no kubelets; tests.e2e.kubelet plays them. Therefore the controllers that act on silent nodes are
off: nothing renews a node's lease, and every pod would be evicted after five minutes.
"""

from __future__ import annotations

import atexit
import base64
import contextlib
import json
import secrets
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from extender.kube.client import ApiError, NoAnswer
from tests.e2e.api import Api, path_of
from tests.e2e.process import Component, Reaper, free_port, wait_until_listening
from tests.waiting import wait_for

CONTROLLERS = (
    "clusterrole-aggregation-controller",
    "deployment-controller",
    "disruption-controller",
    "garbage-collector-controller",
    "job-controller",
    "namespace-controller",
    "replicaset-controller",
    "resourceclaim-controller",
    "resourcequota-controller",
    "serviceaccount-controller",
    "statefulset-controller",
)
# TaintNodesByCondition taints each new node until the node lifecycle controller, which is off, finds it
# ready. ServiceAccount would make pod creation wait for the namespace's account, and mount tokens.
ADMISSION_OFF = ("TaintNodesByCondition", "ServiceAccount")

MASTERS = "system:masters"
FIRST_NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")
AUDITED, SYSTEM = "gpu-extender-audited", "gpu-extender-system"
"""The namespaces whose accounts' requests are in the audit log."""


class Scheduler(Component):
    """One kube-scheduler process."""

    def __init__(self, *args: Any, port: int, token: str, certificates: Path, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._certificates = certificates
        self._token = token
        self._port = port

    def start(self) -> None:
        """Starts it and waits until its informers are filled."""
        super().start()
        self.wait_ready()

    def restart(self) -> None:
        """Kills it and starts it anew with the same configuration: all its memory is lost."""
        self.kill()
        self.start()

    def wait_ready(self, timeout: float = 60) -> None:
        """Waits for /readyz, which says yes when the informers have synced."""
        deadline = time.monotonic() + timeout
        wait_until_listening(self, self._port, timeout)
        while time.monotonic() < deadline:
            self.alive_or_raise()
            with contextlib.suppress(NoAnswer, ApiError), self._api() as api:
                api.text("/readyz")
                return
            time.sleep(0.05)
        raise TimeoutError(f"{self.name} is not ready after {timeout} s:\n{self.tail()}")

    def metrics(self) -> dict[str, float]:
        """Every series of /metrics, ``name{labels}`` -> value. Times are in seconds."""
        with self._api() as api:
            return parse_metrics(api.text("/metrics"))

    def _api(self) -> Api:
        return Api(f"https://127.0.0.1:{self._port}", self._token, self._certificates / "kube-scheduler.crt", 5)


class ControlPlane:
    """Use as a context manager; everything ends with it, and with the test process at the latest."""

    def __init__(
        self,
        binaries: Path,
        *,
        controllers: Sequence[str] = CONTROLLERS,
        features: Sequence[str] = (),
        apis: Sequence[str] = (),
        limited_priorities: Sequence[str] = (),
    ) -> None:
        """``binaries`` is what tests.e2e.build.build() returned. Nothing runs before start(). ``features``: feature
        gates that are turned on in all components; ``apis``: groups with versions that are served beside the usual
        ones; ``limited_priorities``: classes that a pod may have only where a ResourceQuota of its namespace names
        them."""
        self.binaries = binaries
        self._features = [f"{feature}=true" for feature in features]
        self._apis = [f"{api}=true" for api in apis]
        self._limited_priorities = list(limited_priorities)
        self.folder = Path(tempfile.mkdtemp(prefix="gpu-extender-e2e-"))
        self.logs = self.folder / "logs"
        self.logs.mkdir()
        self.keep_logs = False
        self.reaper = Reaper()
        self.reaper.remove_in_the_end(self.folder)
        self._users = {
            "admin": (secrets.token_hex(16), (MASTERS,)),
            # Its controllers' rights belong to service accounts of their own; one almighty user is simpler.
            "system:kube-controller-manager": (secrets.token_hex(16), (MASTERS,)),
            "system:kube-scheduler": (secrets.token_hex(16), ()),
        }
        self._schedulers: list[Scheduler] = []
        self._started = 0
        self._port = free_port()
        self._etcd_port = free_port()
        self.url = f"https://127.0.0.1:{self._port}"
        self.ca = self.folder / "certificates" / "apiserver.crt"
        self._write_users()
        self._write_signing_key()
        self.etcd = self._make_etcd()
        self.apiserver = self._make_apiserver()
        self.controller_manager = self._make_controller_manager(controllers)
        self._api: Api | None = None
        atexit.register(self.close)

    def __enter__(self) -> ControlPlane:
        try:
            self.start()
        except BaseException as error:
            error.add_note(f"logs: {self.logs}")
            self.keep_logs = True
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.keep_logs = self.keep_logs or kind is not None
        self.close()

    def start(self) -> None:
        """Starts etcd, the API server and the controller manager, and waits for each."""
        self.start_etcd()
        self.start_apiserver()
        # A ready API server makes them in the background.
        wait_for(lambda: all(self.api.find("Namespace", name) for name in FIRST_NAMESPACES), 60, "the first namespaces")
        self.kubeconfig("system:kube-controller-manager")
        self.controller_manager.start()

    def close(self) -> None:
        """Ends everything. The logs stay when ``keep_logs`` is set; the data go in any case."""
        atexit.unregister(self.close)
        for component in (*self._schedulers, self.controller_manager, self.apiserver, self.etcd):
            component.kill()
        if self._api is not None:
            self._api.close()
            self._api = None
        if self.keep_logs:
            shutil.rmtree(self.folder / "etcd", ignore_errors=True)
            self.reaper.keep(self.folder)
        self.reaper.close()

    def start_etcd(self) -> None:
        """Starts it over the data that are in `folder`/etcd."""
        self.etcd.start()
        wait_until_listening(self.etcd, self._etcd_port)

    # ---- the API server

    @property
    def api(self) -> Api:
        """The administrator's client."""
        if self._api is None:
            self._api = Api(self.url, self.token("admin"), self.ca)
        return self._api

    def start_apiserver(self, timeout: float = 60) -> None:
        """Starts it on the same port, over the same etcd; returns when it is ready.

        The controller manager is started anew after an outage: its informers look for the API server once a minute
        at the latest, and until then no Job has pods."""
        away = not self.apiserver.running
        if away:
            self.apiserver.start()
        self._wait_for_apiserver(timeout)
        if away and self.controller_manager.running:
            self.controller_manager.kill()
            self.controller_manager.start()

    def _wait_for_apiserver(self, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        wait_until_listening(self.apiserver, self._port, timeout)
        while True:
            self.apiserver.alive_or_raise()
            with contextlib.suppress(NoAnswer, ApiError, OSError):
                self.api.text("/readyz")
                return
            if time.monotonic() > deadline:
                raise TimeoutError(f"the API server is not ready after {timeout} s:\n{self.apiserver.tail()}")
            time.sleep(0.05)

    def stop_apiserver(self) -> None:
        """An outage: SIGKILL. Clients see refused connections until start_apiserver()."""
        self.apiserver.kill()

    # ---- what accounts asked for

    @property
    def audit_log(self) -> Path:
        """Where the API server writes each request of an account in AUDITED and SYSTEM."""
        return self.folder / "audit.log"

    def audited(self, account: str) -> list[dict[str, Any]]:
        """The finished requests of an audited account (`system:serviceaccount:NAMESPACE:NAME`), oldest first."""
        text = self.audit_log.read_text() if self.audit_log.exists() else ""
        lines = text.rpartition("\n")[0].splitlines()  # what is being written is left out
        events: list[dict[str, Any]] = [json.loads(line) for line in lines]
        return [one for one in events if one["user"]["username"] == account]

    def _audit_policy(self) -> Path:
        file = self.folder / "audit-policy.json"
        rules = [
            {
                "level": "Metadata",
                "userGroups": [f"system:serviceaccounts:{name}" for name in (AUDITED, SYSTEM)],
                "omitStages": ["RequestReceived"],
            },
            {"level": "None"},
        ]
        file.write_text(json.dumps({"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": rules}))
        return file

    def _admission(self) -> Path:
        file = self.folder / "admission.json"
        scope = {"scopeName": "PriorityClass", "operator": "In", "values": self._limited_priorities}
        version = {"apiVersion": "apiserver.config.k8s.io/v1"}
        limits = {
            **version,
            "kind": "ResourceQuotaConfiguration",
            "limitedResources": [{"resource": "pods", "matchScopes": [scope]}],
        }
        plugins = [{"name": "ResourceQuota", "configuration": limits}]
        file.write_text(json.dumps({**version, "kind": "AdmissionConfiguration", "plugins": plugins}))
        return file

    # ---- schedulers

    def start_scheduler(
        self, config: Mapping[str, Any], *, verbosity: int = 2, name: str = "kube-scheduler"
    ) -> Scheduler:
        """A running kube-scheduler with this KubeSchedulerConfiguration.

        The connection and leader election are filled in; a test names what it is about. The client limits
        are lifted (50 requests a second would hide what the scheduling loop can do), unless given.
        """
        made = {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "leaderElection": {"leaderElect": False},
            **config,
        }
        kubeconfig = str(self.kubeconfig("system:kube-scheduler"))
        connection = {"qps": 5000, "burst": 5000, **made.get("clientConnection", {})}
        made["clientConnection"] = {**connection, "kubeconfig": kubeconfig}
        number = self._started
        self._started += 1
        file = self.folder / f"scheduler-{number}.json"
        file.write_text(json.dumps(made, indent=1))
        certificates = self.folder / f"scheduler-{number}-certificates"
        port = free_port()
        scheduler = Scheduler(
            name,
            [
                str(self.binaries / "kube-scheduler"),
                f"--config={file}",
                "--bind-address=127.0.0.1",
                f"--secure-port={port}",
                f"--cert-dir={certificates}",
                f"--authentication-kubeconfig={kubeconfig}",
                f"--authorization-kubeconfig={kubeconfig}",
                f"-v={verbosity}",
                *self._gates(),
            ],
            self.logs / f"{name}-{number}.log",
            self.reaper,
            port=port,
            token=self.token("admin"),
            certificates=certificates,
            # The extender of a test is on loopback; a proxy in the environment is not meant for it.
            env={"NO_PROXY": "127.0.0.1,localhost"},
        )
        self._schedulers.append(scheduler)
        scheduler.start()
        return scheduler

    def forget_scheduler(self, scheduler: Scheduler) -> None:
        """Kills it and leaves it out of components() from now on; its log file stays."""
        scheduler.kill()
        self._schedulers.remove(scheduler)

    # ---- users

    def token(self, user: str) -> str:
        """The bearer token of a user that exists."""
        return self._users[user][0]

    def kubeconfig(self, user: str = "admin", groups: Sequence[str] = ()) -> Path:
        """A kubeconfig file for a user; the same file for the same user.

        The API server reads its users when it starts. A user it has not seen before therefore costs a
        restart of it (about 3 seconds); use ``add_users`` before start() or kubeconfig_of_account().
        """
        if user not in self._users:
            self.add_users({user: groups})
            if self.apiserver.running:
                self.apiserver.kill()
                self.start_apiserver()
        return self._write_kubeconfig(user, self.token(user))

    def add_users(self, users: Mapping[str, Sequence[str]]) -> None:
        """Users with their groups, known from the next start of the API server on."""
        for user, groups in users.items():
            self._users[user] = (secrets.token_hex(16), tuple(groups))
        self._write_users()

    def kubeconfig_of_account(self, namespace: str, account: str, seconds: int = 3600) -> Path:
        """A kubeconfig for a service account that exists, as a pod of it would be allowed to act."""
        return self._write_kubeconfig(f"{namespace}-{account}", self.account_token(namespace, account, seconds))

    def account_token(
        self, namespace: str, account: str, seconds: int = 3600, *, pod: Mapping[str, Any] | None = None
    ) -> str:
        """A token of a service account that exists; as kubelet mounts it into `pod`, if that is given."""
        spec: dict[str, Any] = {"expirationSeconds": seconds}
        if pod is not None:
            meta = pod["metadata"]
            spec["boundObjectRef"] = {"kind": "Pod", "apiVersion": "v1", "name": meta["name"], "uid": meta["uid"]}
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        answer = self.api.request("POST", path_of("ServiceAccount", account, namespace, "token"), body)
        return str(answer["status"]["token"])

    def api_as(self, user: str, groups: Sequence[str] = ()) -> Api:
        """A client that acts as this user; the caller closes it."""
        self.kubeconfig(user, groups)
        return Api(self.url, self.token(user), self.ca)

    # ---- looking at it

    def components(self) -> list[Component]:
        """All processes, those that have ended included."""
        return [self.etcd, self.apiserver, self.controller_manager, *self._schedulers]

    def tail(self, component: str, lines: int = 30) -> str:
        """The last lines of what the component (by name; the newest of that name) has logged."""
        for candidate in reversed(self.components()):
            if candidate.name == component:
                return candidate.tail(lines)
        raise KeyError(component)

    # ---- how each is called

    def _make_etcd(self) -> Component:
        client, peer = (f"http://127.0.0.1:{port}" for port in (self._etcd_port, free_port()))
        return Component(
            "etcd",
            [
                str(self.binaries / "etcd"),
                "--name=only",
                f"--data-dir={self.folder / 'etcd'}",
                f"--listen-client-urls={client}",
                f"--advertise-client-urls={client}",
                f"--listen-peer-urls={peer}",
                f"--initial-advertise-peer-urls={peer}",
                f"--initial-cluster=only={peer}",
                # The data need not survive the machine, and a shared disk would decide every timing.
                "--unsafe-no-fsync",
                "--log-level=warn",
            ],
            self.logs / "etcd.log",
            self.reaper,
        )

    def _make_apiserver(self) -> Component:
        key = self.folder / "signing.pem"
        return Component(
            "kube-apiserver",
            [
                str(self.binaries / "kube-apiserver"),
                f"--etcd-servers=http://127.0.0.1:{self._etcd_port}",
                "--bind-address=127.0.0.1",
                f"--secure-port={self._port}",
                f"--cert-dir={self.ca.parent}",
                f"--token-auth-file={self.folder / 'users.csv'}",
                "--authorization-mode=RBAC",
                "--service-account-issuer=https://kubernetes.default.svc",
                f"--service-account-key-file={key}",
                f"--service-account-signing-key-file={key}",
                "--service-cluster-ip-range=10.0.0.0/24",
                f"--disable-admission-plugins={','.join(ADMISSION_OFF)}",
                f"--audit-policy-file={self._audit_policy()}",
                f"--audit-log-path={self.audit_log}",
                "--max-requests-inflight=3000",
                "--max-mutating-requests-inflight=1000",
                # Device ids in pod status: on by default since 1.36, named because the tests rest on it.
                *self._gates("ResourceHealthStatus=true"),
                *([f"--runtime-config={','.join(self._apis)}"] if self._apis else []),
                *([f"--admission-control-config-file={self._admission()}"] if self._limited_priorities else []),
            ],
            self.logs / "kube-apiserver.log",
            self.reaper,
            env={"GOGC": "400"},  # 100 MB more, and 8 % less of a processor for the whole control plane
        )

    def _make_controller_manager(self, controllers: Sequence[str]) -> Component:
        return Component(
            "kube-controller-manager",
            [
                str(self.binaries / "kube-controller-manager"),
                f"--kubeconfig={self._kubeconfig_file('system:kube-controller-manager')}",
                f"--controllers={','.join(controllers)}",
                f"--service-account-private-key-file={self.folder / 'signing.pem'}",
                "--leader-elect=false",
                "--secure-port=0",
                "--kube-api-qps=500",
                "--kube-api-burst=1000",
                *self._gates(),
            ],
            self.logs / "kube-controller-manager.log",
            self.reaper,
        )

    def _gates(self, *more: str) -> list[str]:
        gates = [*more, *self._features]
        return [f"--feature-gates={','.join(gates)}"] if gates else []

    def _write_users(self) -> None:
        lines = [
            f'{token},{user},{number},"{",".join(groups)}"'
            for number, (user, (token, groups)) in enumerate(self._users.items())
        ]
        _write_private(self.folder / "users.csv", "\n".join(lines) + "\n")

    def _kubeconfig_file(self, user: str) -> Path:
        return self.folder / f"kubeconfig-{user.replace(':', '-').replace('/', '-')}"

    def _write_kubeconfig(self, user: str, token: str) -> Path:
        # JSON is YAML, so no YAML writer is needed.
        cluster = {"server": self.url, "certificate-authority": str(self.ca)}
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "e2e", "cluster": cluster}],
            "users": [{"name": user, "user": {"token": token}}],
            "contexts": [{"name": "e2e", "context": {"cluster": "e2e", "user": user}}],
            "current-context": "e2e",
        }
        file = self._kubeconfig_file(user)
        _write_private(file, json.dumps(content, indent=1))
        return file

    def _write_signing_key(self) -> None:
        # An EC key is 32 random bytes in a fixed frame (RFC 5915, curve P-256); the public half follows
        # from them. The first bit is cleared to stay below the order of the curve.
        secret = bytes([secrets.randbits(7)]) + secrets.token_bytes(31)
        frame = bytes.fromhex("30310201010420") + secret + bytes.fromhex("a00a06082a8648ce3d030107")
        text = base64.encodebytes(frame).decode()
        pem = f"-----BEGIN EC PRIVATE KEY-----\n{text}-----END EC PRIVATE KEY-----\n"
        _write_private(self.folder / "signing.pem", pem)


def parse_metrics(page: str) -> dict[str, float]:
    """A page in Prometheus' text format as ``name{labels}`` -> value."""
    series = {}
    for line in page.splitlines():
        if line and not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            series[name] = float(value)
    return series


def _write_private(file: Path, content: str) -> None:
    file.touch(mode=0o600)
    file.write_text(content)
