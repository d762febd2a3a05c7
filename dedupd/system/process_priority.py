"""The priority of work that nobody waits for, and the cores that it may use."""

import os
from enum import StrEnum

import psutil


class IoPriority(StrEnum):
    """What the disk does for a job: only what nobody else wants, little, or its fair share."""

    IDLE = "idle"
    LOW = "low"
    NORMAL = "normal"


_IO_CLASSES = {
    IoPriority.IDLE: (psutil.IOPRIO_CLASS_IDLE, None),
    IoPriority.LOW: (psutil.IOPRIO_CLASS_BE, 7),
    IoPriority.NORMAL: (psutil.IOPRIO_CLASS_BE, 4),
}


def give_way(io_priority: IoPriority = IoPriority.IDLE) -> None:
    """Let everybody else go first, at the CPU and at the disk, for the rest of this process."""
    process = psutil.Process()
    process.nice(19)
    try:
        process.ionice(*_IO_CLASSES[io_priority])
    except (OSError, psutil.Error):
        pass  # a kernel without I/O classes schedules all alike


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0))
