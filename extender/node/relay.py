"""The relay: stands between kubelet and a vendor's device plugin, and makes kubelet take the planned GPUs.

To the plugin it is kubelet: it serves Registration in the folder that the vendor's DaemonSet mounts. To kubelet it is
the plugin: for each one that registers it serves DevicePlugin beside kubelet's own socket. Everything passes through as
bytes; only GetPreferredAllocation is answered here, where the plan is known.

1. The relay keeps one ListAndWatch to a plugin for each registration, and repeats the last list to kubelet. So a
   plugin sees one kubelet that never restarts, and a restarted kubelet has the devices at once.
2. What ends there ends here: when a plugin's ListAndWatch ends, so does kubelet's, and kubelet takes the devices as
   unhealthy until the plugin registers again, as it would without us.
3. Each registration with kubelet has a new endpoint: kubelet refuses one that it still knows.
4. A preference is never an error: kubelet would fail the pod.
"""

from __future__ import annotations

import contextlib
import os
import stat
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

import grpc

from extender.errors import BadInput
from extender.node import kubelet_api as api
from extender.node.kubelet_api import Malformed
from extender.node.plans import Asker, LivePlans, wanted, wanted_parts

OURS = "gpu-extender-"  # how the names of our endpoints begin
LOOK_SECONDS = 0.2  # between looks at kubelet's socket
KUBELET_SECONDS = 15.0  # it connects back before it answers Register, and gives that 10 s
PLUGIN_SECONDS = 5.0  # for a plugin's own preference
FRESH_SECONDS = 1.0  # for the one GET when no pod is known that may be asking
STUCK_SECONDS = 60.0
OPTIONS = (("grpc.default_authority", "localhost"), ("grpc.enable_http_proxy", 0))

Say = Callable[[str], None]
Handlers: TypeAlias = "dict[str, grpc.RpcMethodHandler[bytes, bytes]]"


class Relay:
    """Runs until it is stopped. `counts`: what it answered and did."""

    def __init__(self, plugins: Path, kubelet: Path, plans: LivePlans | None, *, say: Say) -> None:
        """`plugins`: the folder for the vendor's plugins; `kubelet`: its own; no `plans`: all is passed on."""
        self.plans = plans
        self.counts: Counter[str] = Counter()
        self.say = say
        self.folder = kubelet
        self._plugins = plugins
        self._lock = threading.Lock()
        self._relayed: dict[str, Relayed] = {}
        self._stopping = threading.Event()
        self._looked_at = time.monotonic()
        self._complaint = ""
        self._server: grpc.Server | None = None
        self._inode: tuple[int, int] | None = None
        self._thread = threading.Thread(target=self._follow_kubelet, name="kubelet", daemon=True)

    def start(self) -> None:
        """Serve. As kubelet does it, the plugins' folder is emptied of sockets first: plugins register again then."""
        _check_folders(self._plugins, self.folder)
        _remove_sockets(self._plugins, "")
        _remove_sockets(self.folder, OURS)
        server = grpc.server(ThreadPoolExecutor(4, "registration"), options=OPTIONS)
        handlers: Handlers = {"Register": grpc.unary_unary_rpc_method_handler(self._register)}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(api.REGISTRATION, handlers),))
        socket = self._plugins / api.KUBELET_SOCKET
        server.add_insecure_port(f"unix:{socket}")
        server.start()
        self._server, self._inode = server, _identity(socket)
        self._thread.start()

    def stop(self) -> None:
        """Leave: kubelet sees its connections end, the plugins their kubelet go."""
        self._stopping.set()
        if self._server is not None:
            self._server.stop(0).wait(1)
        with self._lock:
            relayed, self._relayed = list(self._relayed.values()), {}
        for plugin in relayed:
            plugin.close()

    def trouble(self) -> str:
        """Why this process should be restarted; "" while all is well. Without a kubelet all is well."""
        if time.monotonic() - self._looked_at > STUCK_SECONDS or not self._thread.is_alive():
            return "kubelet's socket is not watched"
        if self._inode is None or _identity(self._plugins / api.KUBELET_SOCKET) != self._inode:
            return "the socket for the plugins is gone, or another's"
        return ""

    def _register(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        """A plugin registers: so do we, with its words. What kubelet refuses is refused."""
        try:
            registration = api.registration(request)
        except Malformed as error:
            _abort(context, grpc.StatusCode.INVALID_ARGUMENT, str(error))
        if not registration.endpoint or "/" in registration.endpoint or registration.endpoint == api.KUBELET_SOCKET:
            _abort(context, grpc.StatusCode.INVALID_ARGUMENT, "the endpoint is no name of a socket")
        with self._lock:
            before = self._relayed.pop(registration.resource, None)
        if before is not None:
            before.close()
            # Older kubelets take a connection that ends after the new registration for the new one's end.
            time.sleep(0.1)
        relayed = Relayed(self, registration, request, self._plugins / registration.endpoint)
        with self._lock:
            self._relayed[registration.resource] = relayed
        self.counts["registrations"] += 1
        self.say(f"{registration.resource}: {registration.endpoint} registers")
        relayed.start()
        try:
            relayed.register()
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.UNAVAILABLE:  # of which the kubelet thread will see the end
                self.forget(relayed)
                _abort(context, error.code(), error.details() or "")
        return b""

    def forget(self, relayed: Relayed) -> None:
        """Its plugin has left."""
        with self._lock:
            if self._relayed.get(relayed.resource) is relayed:
                del self._relayed[relayed.resource]
        relayed.close()

    def _follow_kubelet(self) -> None:
        kubelet: tuple[int, int] | None = None
        while not self._stopping.wait(LOOK_SECONDS):
            self._looked_at = time.monotonic()
            now = _identity(self.folder / api.KUBELET_SOCKET)
            if now is not None and now != kubelet:
                if kubelet is not None and self.plans is not None:
                    self.plans.bound.kubelet_restarted()
                kubelet = now
            with self._lock:
                relayed = list(self._relayed.values())
            for plugin in relayed:
                if now is None or plugin.is_registered(now):
                    continue
                complaint = ""
                try:
                    plugin.register()
                except grpc.RpcError as error:
                    complaint = f"{plugin.resource}: kubelet: {error.code().name} {error.details()}"
                if complaint != self._complaint:
                    self._complaint = complaint
                    self.say(complaint or f"{plugin.resource}: kubelet is back")
                self._looked_at = time.monotonic()


class Relayed:
    """One registration of a plugin."""

    def __init__(self, relay: Relay, registration: api.Registration, request: bytes, socket: Path) -> None:
        self.resource = registration.resource
        self._relay = relay
        self._prefers = registration.prefers
        self._request = request
        self._channel = grpc.insecure_channel(f"unix:{socket}", options=OPTIONS)
        self._changed = threading.Condition()
        self._listed = b""
        self._lists = 0  # how often the plugin has reported its devices
        self._ended: tuple[grpc.StatusCode, str] | None = None
        self._registering = threading.Lock()
        self._with: tuple[int, int] | None = None  # the kubelet socket that we are registered at
        self._server: grpc.Server | None = None
        self._endpoint: Path | None = None
        self._stream: Any = None

    def start(self) -> None:
        """Listen to the plugin."""
        threading.Thread(target=self._listen, name=f"plugin {self.resource}", daemon=True).start()

    def is_registered(self, kubelet: tuple[int, int]) -> bool:
        """With this kubelet, which can still reach us: it empties its folder when it starts."""
        return self._with == kubelet and self._endpoint is not None and self._endpoint.exists()

    def register(self) -> None:
        """Serve at a new endpoint, and register it with kubelet. Raises grpc.RpcError."""
        with self._registering:
            socket = self._relay.folder / api.KUBELET_SOCKET
            kubelet = _identity(socket)
            if self._ended is not None or (kubelet is not None and self.is_registered(kubelet)):
                return  # the plugin has left, or another thread was faster
            self._stop_server()
            endpoint = self._relay.folder / f"{OURS}{time.time_ns():x}.sock"
            server = grpc.server(ThreadPoolExecutor(8, "kubelet"), options=OPTIONS)
            server.add_generic_rpc_handlers((self._handlers(),))
            server.add_insecure_port(f"unix:{endpoint}")
            server.start()
            self._server, self._endpoint = server, endpoint
            request = api.register_as(self._request, endpoint.name, prefers=self._relay.plans is not None)
            with grpc.insecure_channel(f"unix:{socket}", options=OPTIONS) as channel:
                _unary(channel, api.REGISTRATION, "Register")(request, timeout=KUBELET_SECONDS)
            self._with = kubelet
            self._relay.counts["registered"] += 1
            self._relay.say(f"{self.resource}: registered with kubelet as {endpoint.name}")

    def close(self) -> None:
        """End both sides."""
        self._end(grpc.StatusCode.UNAVAILABLE, "the device plugin has left")
        if self._stream is not None:
            self._stream.cancel()
        with self._registering:
            self._stop_server()
        self._channel.close()

    def _stop_server(self) -> None:
        if self._server is not None:
            self._server.stop(0).wait(1)
            self._server, self._with = None, None
        if self._endpoint is not None:
            with contextlib.suppress(OSError):
                self._endpoint.unlink()
            self._endpoint = None

    def _handlers(self) -> grpc.GenericRpcHandler:
        unary = grpc.unary_unary_rpc_method_handler
        return grpc.method_handlers_generic_handler(
            api.DEVICE_PLUGIN,
            {
                "GetDevicePluginOptions": unary(self._options),
                "ListAndWatch": grpc.unary_stream_rpc_method_handler(self._list_and_watch),
                "GetPreferredAllocation": unary(self._preferred),
                "Allocate": unary(self._allocate),
                "PreStartContainer": unary(lambda request, context: self._pass("PreStartContainer", request, context)),
            },
        )

    # ---- the plugin's devices

    def _listen(self) -> None:
        code, why = grpc.StatusCode.OK, "the device plugin ended its list"
        try:
            follow: grpc.UnaryStreamMultiCallable[bytes, bytes]
            follow = self._channel.unary_stream(f"/{api.DEVICE_PLUGIN}/ListAndWatch")
            self._stream = follow(b"")
            for listed in self._stream:
                with self._changed:
                    self._listed, self._lists = listed, self._lists + 1
                    self._changed.notify_all()
        except grpc.RpcError as error:
            code, why = error.code(), error.details() or ""
        except ValueError:  # the channel was closed
            pass
        self._end(code, why)
        self._relay.say(f"{self.resource}: the plugin has left ({code.name} {why})")
        self._relay.forget(self)

    def _end(self, code: grpc.StatusCode, why: str) -> None:
        with self._changed:
            self._ended = self._ended or (code, why)
            self._changed.notify_all()

    def _has_news(self, told: int, context: grpc.ServicerContext) -> bool:
        return self._lists > told or self._ended is not None or not context.is_active()

    def _list_and_watch(self, request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        told = 0

        def wake() -> None:
            with self._changed:
                self._changed.notify_all()

        context.add_callback(wake)
        while context.is_active():
            with self._changed:
                self._changed.wait_for(partial(self._has_news, told, context), 60)
                listed, lists, ended = self._listed, self._lists, self._ended
            if lists > told:
                told = lists
                yield listed
            elif ended is not None and context.is_active():
                if ended[0] is not grpc.StatusCode.OK:
                    _abort(context, *ended)
                return

    # ---- what passes through

    def _pass(self, method: str, request: bytes, context: grpc.ServicerContext) -> bytes:
        """The plugin's answer, or its error; kubelet's deadline is the plugin's."""
        try:
            asked = _unary(self._channel, api.DEVICE_PLUGIN, method).future(request, timeout=_timeout(context))
            context.add_callback(lambda: _ignore(asked.cancel()))
            return asked.result()
        except grpc.FutureCancelledError:
            _abort(context, grpc.StatusCode.CANCELLED, "kubelet has given up")
        except grpc.RpcError as error:
            _abort(context, error.code(), error.details() or "")
        except ValueError:  # the channel was closed a moment ago
            _abort(context, grpc.StatusCode.UNAVAILABLE, "the device plugin has left")

    def _options(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        options = self._pass("GetDevicePluginOptions", request, context)
        return options if self._relay.plans is None else api.preferring(options)

    def _allocate(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        failed = True
        try:
            answer = self._pass("Allocate", request, context)
            failed = False
            return answer
        finally:
            self._relay.counts["allocations failed" if failed else "allocations"] += 1
            if self._relay.plans is not None:
                self._note(self._relay.plans, request, failed)

    def _note(self, plans: LivePlans, request: bytes, failed: bool) -> None:
        try:
            for ids in api.allocated(request):
                graph = plans.graph()
                gpus = None if graph is None else graph.gpus(ids)
                known = None if gpus is None else frozenset(gpus)
                pod = plans.bound.allocated(self.resource, ids, gpus=known, failed=failed)
                name = "a pod not known here" if pod is None else pod.name
                self._relay.say(f"{self.resource}: {', '.join(ids)} for {name}{': failed' if failed else ''}")
        except Malformed as error:
            self._relay.say(f"{self.resource}: Allocate: {error}")

    # ---- what is answered here

    def _preferred(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        plans = self._relay.plans
        if plans is None:
            return self._pass("GetPreferredAllocation", request, context)
        try:
            return b"".join(api.prefer(self._prefer(plans, question)) for question in api.asked(request))
        except Exception as error:  # an error here would fail the pod; without a preference kubelet chooses
            self._relay.say(f"{self.resource}: GetPreferredAllocation: {error!r}")
            self._relay.counts["answers failed"] += 1
            return api.prefer([])

    def _prefer(self, plans: LivePlans, question: api.ContainerPreference) -> list[str]:
        """The planned devices; else the best by links, leaving other plans alone; else what the plugin would."""
        asker = plans.bound.asker(self.resource, question.size)
        if asker is None and plans.look(FRESH_SECONDS):
            asker = plans.bound.asker(self.resource, question.size)
        plans.bound.answered(self.resource, asker)
        graph = plans.graph()
        ids = None if graph is None else graph.gpus(question.available)
        if graph is None or ids is None:
            return self._as_the_plugin(question)
        if any("::" in device for device in question.available):  # replicas: how to share is the plugin's to say
            parts = None if asker is None else wanted_parts(asker, question.must, ids, question.size)
            self._relay.counts["answers planned"] += parts is not None
            return self._as_the_plugin(question) if parts is None else parts
        available, must = frozenset(ids), frozenset(graph.gpus(question.must) or ())
        planned = None if asker is None else wanted(asker, must, available, question.size)
        if planned is not None:
            self._relay.counts["answers planned"] += 1
            return _devices(planned, ids)
        if asker is not None and asker.pod.plan is not None:
            self._relay.counts["plans broken"] += 1
            self._say_broken(asker, available)
        promised = plans.bound.promised(but=asker)
        best = graph.best(available, must, question.size, promised)
        if best is not None:
            self._relay.counts["answers linked"] += 1
            return _devices(best, ids)
        free = [i for gpu, devices in ids.items() if gpu not in promised or gpu in must for i in devices]
        return self._as_the_plugin(question._replace(available=free) if len(free) >= question.size else question)

    def _say_broken(self, asker: Asker, available: frozenset[int]) -> None:
        missing = sorted(asker.pod.planned() - available)
        self._relay.say(f"{asker.pod.name}: its planned GPUs are not available: {missing} are held or unhealthy")

    def _as_the_plugin(self, question: api.ContainerPreference) -> list[str]:
        """What the plugin itself prefers; nothing where it has no preference, or fails."""
        if self._prefers:
            call = _unary(self._channel, api.DEVICE_PLUGIN, "GetPreferredAllocation")
            try:
                answers = api.allocated(call(api.ask(question), timeout=PLUGIN_SECONDS))
                self._relay.counts["answers the plugin's"] += 1
                return answers[0] if answers else []
            except (grpc.RpcError, ValueError) as error:
                self._relay.say(f"{self.resource}: the plugin's GetPreferredAllocation: {error!r}")
        self._relay.counts["answers none"] += 1
        return []


def _unary(channel: grpc.Channel, service: str, method: str) -> grpc.UnaryUnaryMultiCallable[bytes, bytes]:
    """A call in bytes: without serializers gRPC passes on what it gets."""
    return channel.unary_unary(f"/{service}/{method}")


def _ignore(answer: object) -> None:
    """For a callback that may return nothing."""


def _timeout(context: grpc.ServicerContext) -> float | None:
    """Seconds until kubelet gives up; without a deadline gRPC returns centuries, which would overflow."""
    remaining = context.time_remaining()
    return None if remaining is None or remaining > 86_400 else remaining


def _devices(gpus: frozenset[int], ids: dict[int, list[str]]) -> list[str]:
    """The device of each of these GPUs."""
    return [ids[gpu][0] for gpu in sorted(gpus)]


def _identity(socket: Path) -> tuple[int, int] | None:
    """Tells a socket from one of the same name that was made later; None while there is none."""
    try:
        status = os.stat(socket)
    except OSError:
        return None
    return (status.st_ino, status.st_ctime_ns) if stat.S_ISSOCK(status.st_mode) else None


def _check_folders(plugins: Path, kubelet: Path) -> None:
    for folder in (plugins, kubelet):
        if not folder.is_dir():
            raise BadInput(f"{folder} is no folder")
    # We empty the plugins' folder; kubelet's would be a catastrophe.
    if plugins.samefile(kubelet) or (plugins / "kubelet_internal_checkpoint").exists():
        raise BadInput(f"{plugins} is kubelet's own folder; the plugins need another one")


def _remove_sockets(folder: Path, beginning: str) -> None:
    for path in folder.iterdir():
        if path.name.startswith(beginning) and path.is_socket():
            with contextlib.suppress(FileNotFoundError):
                path.unlink()


def _abort(context: grpc.ServicerContext, code: grpc.StatusCode, why: str) -> NoReturn:
    context.abort(code, why)
    raise AssertionError("abort raises")
