"""Machines of a small network on this one: network namespaces, each with an address of its own and a bad line.

A line is a pair of TUN devices, and a thread that carries packets from one to the other: late, not all of them, and
none while it is cut.  That is what ``tc netem`` does in the kernel; not every kernel has it.  It needs Linux and root.
"""

from __future__ import annotations

import ctypes
import fcntl
import heapq
import os
import random
import selectors
import struct
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

CLONE_NEWNET = 0x40000000
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
HUB = "10.77.0.1"  # the address of the machine in the middle


def missing() -> str:
    """Say what is missing for namespaces; nothing if all is there."""
    if os.name != "posix" or os.geteuid() != 0:
        return "root"
    if not Path("/dev/net/tun").exists():
        return "/dev/net/tun"
    name = f"protea-probe-{os.getpid()}"
    try:
        ip("netns", "add", name)
        ip("netns", "del", name)
    except (OSError, subprocess.CalledProcessError):
        return "network namespaces"
    return ""


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


def enter(name: str) -> None:
    """Move this thread, and what it starts from now on, to a namespace."""
    with Path(f"/run/netns/{name}").open() as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"setns {name}")


def open_tun(namespace: str, device: str) -> int:
    """Make a TUN device in a namespace, and give the file by which its packets are read and written."""
    here = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        enter(namespace)
        file = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(file, TUNSETIFF, struct.pack("16sH22x", device.encode(), IFF_TUN | IFF_NO_PI))
        return file
    finally:
        ctypes.CDLL(None).setns(here, CLONE_NEWNET)
        os.close(here)


class Machines:
    """A machine in the middle, ``hub``, and others with a line to it."""

    def __init__(self, names: Sequence[str], delay: float, loss: float) -> None:
        self.delay, self.loss = delay, loss  # seconds each way; share of packets
        self.spaces = {name: f"protea-{os.getpid()}-{name}" for name in ["hub", *names]}
        self.ends: dict[int, tuple[int, str]] = {}  # the other end of a line, and whose line it is
        self.cut: set[str] = set()  # machines that are cut off
        self.carried, self.lost = 0, 0  # packets
        self.draws = random.Random(1)
        self.due: list[tuple[float, int, int, bytes]] = []  # packets on their way: when, number, to where, what
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._carry, daemon=True)
        try:
            self._make(names)
        except BaseException:
            self.close()
            raise
        self.thread.start()

    def address(self, name: str) -> str:
        return f"10.77.{list(self.spaces).index(name)}.2"

    def _make(self, names: Sequence[str]) -> None:
        for space in self.spaces.values():
            ip("netns", "add", space)
            ip("-n", space, "link", "set", "lo", "up")
        hub = self.spaces["hub"]
        ip("-n", hub, "address", "add", f"{HUB}/32", "dev", "lo")
        for number, name in enumerate(names, 1):
            near, far = open_tun(hub, f"to{number}"), open_tun(self.spaces[name], "net")
            self.ends[near], self.ends[far] = (far, name), (near, name)
            own, other = f"10.77.{number}.1", f"10.77.{number}.2"
            for space, device, mine, theirs in (
                (hub, f"to{number}", own, other),
                (self.spaces[name], "net", other, own),
            ):
                ip("-n", space, "address", "add", mine, "peer", theirs, "dev", device)
                ip("-n", space, "link", "set", device, "up")
            ip("-n", self.spaces[name], "route", "add", HUB, "via", own)

    def _carry(self) -> None:
        with selectors.DefaultSelector() as watched:
            for file in self.ends:
                watched.register(file, selectors.EVENT_READ)
            while not self.over.is_set():
                rest = self.due[0][0] - time.monotonic() if self.due else 0.1
                for key, _ in watched.select(min(max(rest, 0.0), 0.1)):
                    self._take(key.fd)
                while self.due and self.due[0][0] <= time.monotonic():
                    *_, file, packet = heapq.heappop(self.due)
                    with suppress(OSError):
                        os.write(file, packet)

    def _take(self, file: int) -> None:
        """Take the packets that have come to one end of a line."""
        other, name = self.ends[file]
        with suppress(BlockingIOError):
            while True:
                packet = os.read(file, 2**16)
                self.carried += 1
                if name in self.cut or self.draws.random() < self.loss:
                    self.lost += 1
                else:
                    heapq.heappush(self.due, (time.monotonic() + self.delay, self.carried, other, packet))

    def close(self) -> None:
        self.over.set()
        if self.thread.is_alive():
            self.thread.join()
        for file in self.ends:
            os.close(file)
        for space in self.spaces.values():
            with suppress(subprocess.CalledProcessError):
                ip("netns", "del", space)


@contextmanager
def machines(names: Sequence[str], delay: float, loss: float) -> Iterator[Machines]:
    found = Machines(names, delay, loss)
    try:
        yield found
    finally:
        found.close()
