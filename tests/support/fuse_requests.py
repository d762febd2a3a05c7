"""How many requests the kernel sends to a FUSE file system: counted by the kernel itself."""

import os
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_TRACING = Path("/sys/kernel/tracing")
_BUFFER_KIB = 32 << 10
"""For each processor: half a million requests between two looks."""

_REQUEST = re.compile(r" opcode \d+ \((?:FUSE_)?(\w+)\) len ")


class LostRequests(Exception):
    """More requests came between two looks than the kernel keeps."""


@contextmanager
def request_counter(mountpoint: Path) -> Iterator["RequestCounter"]:
    """Count the requests to the mount at ``mountpoint``, whatever serves it.

    They are traced meanwhile, which makes each dearer: what is timed should not be counted. Raises
    OSError where the kernel has no tracepoint ``fuse_request_send``, or somebody counts already.
    """
    if not _TRACING.joinpath("events").is_dir():
        subprocess.run(["mount", "-t", "tracefs", "tracefs", str(_TRACING)], check=True)
    instance = _TRACING / f"instances/dedupd-{os.getpid()}"
    event = instance / "events/fuse/fuse_request_send"
    instance.mkdir()
    try:
        instance.joinpath("buffer_size_kb").write_text(str(_BUFFER_KIB))
        # The kernel writes a device without a major number as its minor number alone.
        event.joinpath("filter").write_text(f"connection == {os.minor(mountpoint.stat().st_dev)}")
        event.joinpath("enable").write_text("1")
        yield RequestCounter(instance)
    finally:
        instance.rmdir()


class RequestCounter:
    """The requests since the last look."""

    def __init__(self, instance: Path) -> None:
        self._instance = instance

    def take(self) -> Counter[str]:
        """The requests by their kinds, as the kernel's header names them without ``FUSE_``.

        Those for which its trace has no name have their numbers (``0x35``).

        Raises LostRequests.
        """
        for stats in self._instance.glob("per_cpu/cpu*/stats"):
            if not re.search(r"^overrun: 0$", stats.read_text(), re.MULTILINE):
                raise LostRequests(f"{stats}: the kernel's buffer of {_BUFFER_KIB} KiB ran over")
        trace = self._instance / "trace"
        with open(trace) as lines:
            found = Counter(match[1] for line in lines if (match := _REQUEST.search(line)))
        trace.write_text("")
        return found
