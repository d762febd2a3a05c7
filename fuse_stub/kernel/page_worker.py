"""The process that opens files of a mount for the mount process (``native/src/mount/pages``).

A mount process must not wait for its own mount.
"""

import os
import re
import sys

from dedupd_core import native
from dedupd_core.system.inherited import open_standard_streams
from dedupd_core.system.processes import child_environment, show_as

CONTROL_FD = 0

MODULE = __name__

CLOSES_WRITE_BACK = (6, 16)
"""Since this Linux, closing a file waits until the mount has all its pages, without a lock."""

_RELEASE = re.compile(r"(\d+)\.(\d+)")


def ask_for_pages(inodes: native.mount.Inodes, mountpoint: str, view: str = "") -> None:
    """Connect ``inodes`` to a page worker, which starts with the first question.

    ``mountpoint`` will show the mount; ``view`` shows it now, if that is another path. Raises
    OSError.
    """
    device = os.stat(view or mountpoint).st_dev
    closes_write_back = int(writes_back(os.uname().release))
    command = [sys.executable, "-P", "-m", MODULE, mountpoint, str(device)]
    command.append(str(closes_write_back))
    inodes.ask_for_pages(command, list(child_environment().items()))


def writes_back(release: str) -> bool:
    """Return whether a kernel writes a file back when it is closed, without a lock."""
    found = _RELEASE.match(release)
    return found is not None and tuple(map(int, found.groups())) >= CLOSES_WRITE_BACK


if __name__ == "__main__":
    open_standard_streams()
    point, number, flag = sys.argv[1:]
    show_as("dedupd-pages", point)
    native.mount.answer_for_pages(CONTROL_FD, point, int(number), flag == "1")
