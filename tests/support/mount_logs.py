"""What the mounts of tests log: a traceback there is a failure that users see as ``EIO``."""

from collections.abc import Iterator
from pathlib import Path

TRACEBACK = b"Traceback (most recent call last)"

_read: dict[Path, int] = {}
"""The log of each mount of this process, and how much of it was examined."""


def log_of(mountpoint: str) -> Path:
    """Return the log of a mount that a test serves."""
    return Path(f"{mountpoint}.log")


def expect_log(mountpoint: str) -> None:
    """Examine the log of a mount from now on."""
    path = log_of(mountpoint)
    if path not in _read:
        _read[path] = path.stat().st_size if path.exists() else 0


def new_tracebacks() -> Iterator[str]:
    """Yield what mounts have logged since the last call, if a traceback is in it."""
    for path, start in [*_read.items()]:
        if not path.exists():  # a test removed it, or the file system that it was on
            del _read[path]
            continue
        with open(path, "rb") as file:
            file.seek(start)
            text = file.read()
        _read[path] = start + len(text)
        if TRACEBACK in text:
            yield f"{path}:\n{text.decode('utf-8', 'replace')}"
