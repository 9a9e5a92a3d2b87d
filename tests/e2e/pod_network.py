"""A network for each pod that a test starts by hand: its loopback is neither the machine's nor another pod's.

A socket stays in the network namespace where it was made. So threads enter the pod's namespace only to make sockets,
and bytes pass between them and sockets of the machine.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import socket
import struct
import threading
from collections.abc import Callable
from typing import TypeVar
from urllib.parse import urlsplit

from tests.e2e.cluster import ControlPlane
from tests.e2e.proxy import pass_on

CLONE_NEWNET = 0x40000000
SIOCSIFFLAGS, IFF_UP = 0x8914, 1
_LIBC = ctypes.CDLL(None, use_errno=True)
T = TypeVar("T")


class PodNetwork:
    """Loopback alone. From inside the API server answers at its own address; `forwarded` leads to a port inside."""

    def __init__(self, api_server: tuple[str, int]) -> None:
        """`api_server`: the loopback address and the port at which it listens on the machine."""
        self._listeners: list[socket.socket] = []
        self._file = _in_a_thread(_new_namespace)
        inside = self._inside(lambda: socket.create_server(api_server))
        self._serve(inside, lambda: socket.create_connection(api_server, timeout=10))
        self.enter = ("nsenter", f"--net=/proc/{os.getpid()}/fd/{self._file}", "--")
        """The words before a command that runs inside."""

    @classmethod
    def of(cls, control_plane: ControlPlane) -> PodNetwork:
        """The network of a pod of this control plane."""
        address = urlsplit(control_plane.url)
        return cls((str(address.hostname), int(address.port or 443)))

    def forwarded(self, port: int) -> str:
        """HOST:PORT on the machine that leads to this port of the pod's loopback."""
        listener = socket.create_server(("127.0.0.1", 0))
        inside = ("127.0.0.1", port)
        self._serve(listener, lambda: self._inside(lambda: socket.create_connection(inside, timeout=10)))
        return f"127.0.0.1:{listener.getsockname()[1]}"

    def close(self) -> None:
        """The namespace ends with its last process."""
        for listener in self._listeners:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        os.close(self._file)

    def _inside(self, make: Callable[[], T]) -> T:
        def entered() -> T:
            _checked(_LIBC.setns(self._file, CLONE_NEWNET))
            return make()

        return _in_a_thread(entered)

    def _serve(self, listener: socket.socket, connect: Callable[[], socket.socket]) -> None:
        self._listeners.append(listener)
        threading.Thread(target=_accept, args=(listener, connect), daemon=True).start()


def _accept(listener: socket.socket, connect: Callable[[], socket.socket]) -> None:
    while True:
        try:
            client, _ = listener.accept()
        except OSError:
            return
        try:
            server = connect()
        except OSError:
            client.close()
            continue
        threading.Thread(target=_carry, args=(client, server), daemon=True).start()


def _carry(client: socket.socket, server: socket.socket) -> None:
    back = threading.Thread(target=pass_on, args=(server, client), daemon=True)
    with client, server:
        back.start()
        pass_on(client, server)
        back.join()


def _new_namespace() -> int:
    """A file that keeps a new network namespace; its loopback is up."""
    _checked(_LIBC.unshare(CLONE_NEWNET))
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", IFF_UP))
    return os.open(f"/proc/self/task/{threading.get_native_id()}/ns/net", os.O_RDONLY)


def _in_a_thread(make: Callable[[], T]) -> T:
    """What `make` returns, called in a thread that ends then: it may leave the machine's network."""
    made: list[T | BaseException] = []

    def run() -> None:
        try:
            made.append(make())
        except BaseException as error:
            made.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    [result] = made
    if isinstance(result, BaseException):
        raise result
    return result


def _checked(status: int) -> None:
    if status:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
