"""The ways to the same files that the benchmarks of the mount compare."""

import shlex
import subprocess
import time
from pathlib import Path
from typing import Protocol

from fuse_stub.mounts.mount_process import mount_in_background, unmount


class Side(Protocol):
    """A way to the same files."""

    root: Path

    @property
    def pid(self) -> int | None:
        """The process that serves the files; None where the kernel does, or nothing is started."""

    def start(self) -> None: ...
    def stop(self) -> None: ...


class Below:
    """The file system that carries the volume: there is nothing to start."""

    pid = None

    def __init__(self, root: Path) -> None:
        self.root = root

    def start(self) -> None:
        pass

    def stop(self) -> None:
        pass


class OwnMount:
    """The mount of the volume."""

    def __init__(self, volume: Path, root: Path) -> None:
        self.root = root
        self.pid: int | None = None
        self._volume = volume

    def start(self) -> None:
        self.pid = mount_in_background(str(self._volume), str(self.root))

    def stop(self) -> None:
        unmount(str(self.root))
        self.pid = None


class Peer:
    """Another program's mount of the volume's tree, with plain files only."""

    def __init__(self, program: str, lower: Path, root: Path) -> None:
        self.root = root
        self._command = [*shlex.split(program), str(lower), str(root)]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def start(self) -> None:
        # As services begin: the scheduler treats each session as a group.
        self._process = subprocess.Popen(self._command, start_new_session=True)
        while not self.root.is_mount():
            if self._process.poll() is not None:
                raise RuntimeError(f"{shlex.join(self._command)} ended")
            time.sleep(0.01)

    def stop(self) -> None:
        subprocess.run(["umount", self.root], check=True)
        assert self._process is not None
        self._process.wait()
        self._process = None
