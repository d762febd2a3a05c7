"""``mount.dedupd``: the helper that mount(8) runs for ``mount -t dedupd`` and ``/etc/fstab``.

    mount.dedupd VOLUME MOUNTPOINT [-sfnv] [-o OPTIONS] [-t TYPE]

VOLUME is the directory of the volume; MOUNTPOINT is often the same. The exit status is as for
mount(8).
"""

import getopt
import os
import sys
from collections.abc import Sequence

from dedupd.cli.common import message_of
from dedupd.cli.mounting import MountRequest, bring_up
from dedupd_core.errors import DedupdError, UsageError
from dedupd_core.system.inherited import open_standard_streams
from dedupd_core.system.paths import show_text
from fuse_stub.mounts.mount_options import MountOptions, parse_options
from fuse_stub.mounts.mount_process import CACHE_BYTES, open_volume

_USAGE = "usage: mount.dedupd VOLUME MOUNTPOINT [-sfnv] [-o OPTIONS] [-t TYPE]"

DONE, WRONG_USAGE, FAILED = 0, 1, 32
"""Exit statuses of mount(8)."""

_TYPES = ("dedupd", "fuse.dedupd")


def main(arguments: Sequence[str] | None = None) -> int:
    """Mount a volume. Returns the exit status."""
    open_standard_streams()
    try:
        _run(sys.argv[1:] if arguments is None else list(arguments))
    except (DedupdError, OSError) as error:
        print(f"mount.dedupd: {show_text(message_of(error))}", file=sys.stderr)
        return WRONG_USAGE if isinstance(error, UsageError) else FAILED
    return DONE


def _run(arguments: list[str]) -> None:
    try:
        flags, places = getopt.gnu_getopt(arguments, "sfnvo:t:N:")
    except getopt.GetoptError as error:
        raise UsageError(f"{error}; {_USAGE}") from error
    given = {flag for flag, _ in flags}
    if len(places) != 2:
        raise UsageError(_USAGE)
    kinds = [value for flag, value in flags if flag == "-t"]
    if any(kind not in _TYPES for kind in kinds):
        raise UsageError(f"{kinds[-1]}: not a file system type of dedupd; use `dedupd`")
    if "-N" in given:
        raise UsageError(
            "-N: mounting in another namespace is not supported; run mount(8) there with nsenter(1)"
        )
    words = ",".join(value for flag, value in flags if flag == "-o")
    asked = _mounting(places, parse_options(words, is_sloppy="-s" in given))
    if "-f" in given:
        _look(asked)
        return
    mounted = bring_up(asked)
    if "-v" in given and mounted is not None:
        print(f"mount.dedupd: {places[0]} is mounted at {mounted.point}.")


def _mounting(places: list[str], options: MountOptions) -> MountRequest:
    path, point = places
    is_same = not options.snapshot and os.path.realpath(path) == os.path.realpath(point)
    return MountRequest(
        path,
        None if is_same else point,
        options,
        options.cache_bytes or CACHE_BYTES,
        is_snapshot=options.snapshot,
        is_forced=options.force,
        is_complete=True,
    )


def _look(asked: MountRequest) -> None:
    """Check that the volume and the mount point exist (``mount -f``)."""
    point = asked.mountpoint or asked.path
    if not os.path.isdir(point):
        raise UsageError(f"{point}: no such directory to mount at")
    if not asked.options.remount:
        open_volume(asked.path).close()


if __name__ == "__main__":
    sys.exit(main())
