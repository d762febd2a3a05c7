"""Directories that a file in them keeps plain, with everything below: ``markers`` of the policy."""

import os
from collections.abc import Collection, Sequence

from dedupd_core import native
from dedupd_core.config.policy import Marker
from dedupd_core.system.files import opened
from dedupd_core.system.paths import open_beneath, parents
from dedupd_core.volume.volume import Volume

SIGNATURE = b"Signature: 8a477f597d28d172789f06886806bc55"
"""How a ``CACHEDIR.TAG`` begins that counts (bford.info/cachedir)."""


class MarkedDirectories:
    """What a walk comes to know of them: directories before those below them."""

    def __init__(self, volume: Volume, markers: Collection[Marker]) -> None:
        self._volume = volume
        self._markers = {marker.value.encode(): marker for marker in markers}
        self._found: set[bytes] = set()

    def begin(self, path: bytes) -> None:
        """The walk begins here: look at the directories above, which it does not come upon."""
        for directory in (b"", *parents(path)[:-1]) if path else ():
            self.meet(directory, list(self._markers))

    def meet(self, directory: bytes, names: Sequence[bytes]) -> bool:
        """Whether a directory is kept plain; ``names`` are those of marker files that it may
        have."""
        if self.has(directory):
            return True
        if any(self._counts(directory, name) for name in names if name in self._markers):
            self._found.add(directory)
            return True
        return False

    def has(self, path: bytes) -> bool:
        """Whether a file lies in a directory that is kept plain."""
        return bool(self._found) and self.above(path) is not None

    def above(self, path: bytes) -> bytes | None:
        """The directory that keeps a path plain, if one does; empty for the whole tree."""
        return next((above for above in (b"", *parents(path)) if above in self._found), None)

    def _counts(self, directory: bytes, name: bytes) -> bool:
        path = directory + b"/" + name if directory else name
        try:
            with opened(
                open_beneath(self._volume.data_fd, path, os.O_RDONLY | os.O_NONBLOCK)
            ) as fd:
                if self._markers[name] is not Marker.CACHEDIR_TAG:
                    return True
                # One that is a stub has no bytes of its own; then its name has to do.
                is_stub = native.system.fgetxattr(fd, self._volume.space.name) is not None
                return is_stub or os.pread(fd, len(SIGNATURE), 0) == SIGNATURE
        except OSError:
            return False
