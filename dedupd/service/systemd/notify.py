"""Reports the state of the service to systemd: the protocol of sd_notify(3)."""

import os
import socket
import time


class Notifier:
    """Sends states to the process that started the service, if that listens."""

    def __init__(self, environment: dict[str, str] | None = None) -> None:
        values = dict(os.environ) if environment is None else environment
        self._address = values.get("NOTIFY_SOCKET", "")
        self._watchdog_usec = _watchdog_usec(values)

    @property
    def watchdog_s(self) -> float | None:
        """The interval between signs of life: half the time of the watchdog. None for never."""
        return self._watchdog_usec / 2e6 if self._watchdog_usec else None

    def ready(self, status: str) -> None:
        self._send("READY=1", f"STATUS={status}")

    def reloading(self) -> None:
        self._send("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self) -> None:
        self._send("STOPPING=1")

    def alive(self) -> None:
        self._send("WATCHDOG=1")

    def extend(self, seconds: float) -> None:
        """Ask for more time to start or to stop."""
        self._send(f"EXTEND_TIMEOUT_USEC={int(seconds * 1e6)}")

    def _send(self, *lines: str) -> None:
        if not self._address:
            return
        # A name that starts with @ is in the abstract namespace.
        address = self._address
        if address.startswith("@"):
            address = "\0" + address[1:]
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            try:
                sender.connect(address)
                sender.sendall("\n".join(lines).encode())
            except OSError:
                pass  # systemd has stopped listening; the service continues


def _watchdog_usec(values: dict[str, str]) -> int:
    if values.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return 0
    text = values.get("WATCHDOG_USEC", "0")
    return int(text) if text.isdigit() else 0
