"""The priority of work that nobody waits for."""

import psutil


def give_way() -> None:
    """Let everybody else go first, at the CPU and at the disk, for the rest of this process."""
    process = psutil.Process()
    process.nice(19)
    try:
        process.ionice(psutil.IOPRIO_CLASS_IDLE)
    except (OSError, psutil.Error):
        pass  # a kernel without I/O classes schedules all alike
