"""Processes of this program: their priority, their cores, and how to start another one."""

import os
import sys
from enum import StrEnum

import psutil


class IoPriority(StrEnum):
    """A job's part of the disk: idle time only, little, or a fair share."""

    IDLE = "idle"
    LOW = "low"
    NORMAL = "normal"


_IO_CLASSES = {
    IoPriority.IDLE: (psutil.IOPRIO_CLASS_IDLE, None),
    IoPriority.LOW: (psutil.IOPRIO_CLASS_BE, 7),
    IoPriority.NORMAL: (psutil.IOPRIO_CLASS_BE, 4),
}


def give_way(io_priority: IoPriority = IoPriority.IDLE) -> None:
    """Give processor and disk to all other processes first, for the rest of this process."""
    process = psutil.Process()
    process.nice(19)
    try:
        process.ionice(*_IO_CLASSES[io_priority])
    except (OSError, psutil.Error):
        pass  # a kernel without I/O classes


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0))


def child_environment() -> dict[str, str]:
    """The environment of a child process that runs this program in another directory."""
    path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path)
    return {**os.environ, "PYTHONPATH": path}
