"""A power cut of a host, as its file system has one: what was not synced is lost."""

import fcntl
import gc
import os
import struct
import subprocess
from pathlib import Path

import pytest

_SHUT_DOWN = 0x8004_587D
"""Of ext4 and XFS: nothing is written from then on."""

LOG_TOO = 1
"""The journal is written before, and no data."""
NOTHING = 2
"""Not even the journal."""


def cut_power(point: Path, how: int = NOTHING) -> None:
    """Every use of the file system at ``point`` fails from now on, until :func:`come_back`."""
    fd = os.open(point, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.ioctl(fd, _SHUT_DOWN, struct.pack("I", how))
    except OSError as error:
        pytest.skip(f"the file system of {point} cannot be shut down ({error})")
    finally:
        os.close(fd)


def come_back(point: Path) -> None:
    """As after the restart of the host: of a file system of the fixture ``loop_fs``."""
    gc.collect()  # descriptors that belong to the traceback of what has failed
    found = subprocess.run(
        ["findmnt", "-no", "FSTYPE", str(point)], capture_output=True, text=True, check=True
    )
    image, copy = point.parent / "image", point.parent / "copy"
    # The copy has the name of one that may be there still.
    options = "loop,nouuid" if found.stdout.strip() == "xfs" else "loop"
    for command in (
        ["umount", str(point)],
        # Another mount namespace may have the dead file system still, and so its device.
        ["cp", "--sparse=always", str(image), str(copy)],
        ["mv", str(copy), str(image)],
        ["mount", "-o", options, str(image), str(point)],
    ):
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        assert result.returncode == 0, f"{command}: {result.stderr}"
