"""Hosts with addresses of their own on this machine: network namespaces on a bridge."""

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

import pytest


def ip(*arguments: str) -> None:
    result = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if result.returncode:
        raise OSError(f"ip {' '.join(arguments)}: {result.stderr.strip()}")


class Network:
    """A bridge with an address, at which servers are, and hosts that reach nothing else."""

    def __init__(self, names: Sequence[str]) -> None:
        self._number = os.getpid() % 100_000
        self._part = self._number % 200
        self._bridge = f"ddbr{self._number}"
        self.names = names
        self.address = f"10.77.{self._part}.1"
        self.addresses = {name: f"10.77.{self._part}.{10 + n}" for n, name in enumerate(names)}

    def make(self) -> None:
        """Raises OSError where that may not be."""
        ip("link", "add", self._bridge, "type", "bridge")
        ip("addr", "add", f"{self.address}/24", "dev", self._bridge)
        ip("link", "set", self._bridge, "up")
        for name in self.names:
            space = self._space(name)
            ip("netns", "add", space)
            ip("link", "add", self._cable(name), "type", "veth", "peer", "eth0", "netns", space)
            ip("link", "set", self._cable(name), "master", self._bridge, "up")
            ip("-n", space, "addr", "add", f"{self.addresses[name]}/24", "dev", "eth0")
            ip("-n", space, "link", "set", "lo", "up")
            ip("-n", space, "link", "set", "eth0", "up")

    def remove(self) -> None:
        for name in self.names:
            with suppress(OSError):
                ip("netns", "del", self._space(name))
        with suppress(OSError):
            ip("link", "del", self._bridge)

    def _space(self, name: str) -> str:
        return f"dedupd-{self._number}-{name}"

    def _cable(self, name: str) -> str:
        return f"dd{self._number}{name}"

    def command(self, name: str, command: Sequence[str]) -> list[str]:
        """A command, as that host runs it."""
        return ["ip", "netns", "exec", self._space(name), *command]

    def cut(self, name: str) -> None:
        """Pull the cable of a host."""
        ip("link", "set", self._cable(name), "down")

    def mend(self, name: str) -> None:
        ip("link", "set", self._cable(name), "up")


@contextmanager
def network(*names: str) -> Iterator[Network]:
    """Skips the test where no network can be made."""
    if shutil.which("ip") is None:
        pytest.skip("ip is not installed (Debian: iproute2)")
    made = Network(names)
    try:
        try:
            made.make()
        except OSError as error:
            pytest.skip(f"no network of its own can be made here ({error})")
        yield made
    finally:
        made.remove()
