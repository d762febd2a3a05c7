"""A directory that the native loop serves alone, without libfuse and without a volume."""

import ctypes
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from dedupd import native
from tests.support.lab import REPOSITORY, let_others_pass
from tests.support.ways import ring_is_offered

RESERVED = b"trusted.reserved"
_MNT_DETACH = 2


@dataclass(frozen=True)
class _Answer:
    """What the process tells: requests of each kind so far, and inodes that the kernel knows."""

    requests: dict[str, int]
    inodes: int


class NativeTree:
    """A directory ``data``, mounted at ``view`` by a process of its own."""

    def __init__(self, data: Path, view: Path, ring: bool, descriptors_max: int) -> None:
        self.data = data
        self.view = view
        self._before: Counter[str] = Counter()
        command = [sys.executable, "-m", __name__, str(data), str(view), str(int(ring))]
        self.process = subprocess.Popen(
            [*command, str(descriptors_max)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=REPOSITORY,
            text=True,
        )
        self.requests()

    def requests(self) -> Counter[str]:
        """How many requests of each kind came since the last time."""
        now = Counter(self._ask().requests)
        new = now - self._before
        self._before = now
        return new

    def inodes_known(self) -> int:
        return self._ask().inodes

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def _ask(self) -> "_Answer":
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return _Answer(**json.loads(self.process.stdout.readline()))

    def end(self) -> None:
        ctypes.CDLL(None).umount2(os.fsencode(self.view), _MNT_DETACH)
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()


@contextmanager
def native_tree(
    directory: Path, *, ring: bool, descriptors_max: int = 4096
) -> Iterator[NativeTree]:
    """An empty directory, served at ``directory/view``."""
    let_others_pass(directory)
    data, view = directory / "data", directory / "view"
    data.mkdir()
    view.mkdir()
    with ring_is_offered() if ring else nullcontext():
        tree = NativeTree(data, view, ring, descriptors_max)
    try:
        yield tree
    finally:
        tree.end()


def _serve(data: str, view: str, ring: bool, descriptors_max: int) -> None:
    os.umask(0)
    device_fd = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device_fd},rootmode=40000,user_id=0,group_id=0,default_permissions,allow_other"
    libc = ctypes.CDLL(None, use_errno=True)
    arguments = (b"loop", os.fsencode(view), b"fuse.loop", 0, options.encode())
    if libc.mount(*arguments) < 0:
        raise OSError(ctypes.get_errno(), "mount")
    root_fd = os.open(data, os.O_RDONLY | os.O_DIRECTORY)
    loop = native.mount.serve_tree(device_fd, root_fd, RESERVED, ring, descriptors_max)
    os.close(device_fd)
    for _ in sys.stdin:
        answer = {"requests": loop.requests(), "inodes": loop.inodes_known()}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    _serve(sys.argv[1], sys.argv[2], sys.argv[3] == "1", int(sys.argv[4]))
