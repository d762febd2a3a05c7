"""``python -m tests.suites.mounting``: a volume is mounted as mount(8) does it, by one transport.

    mounting STATE -t fuse.dedupd [-o OPTIONS] dedupd:UUID POINT

STATE is the directory of a run (:mod:`tests.suites.ground`).
"""

import getopt
import json
import logging
import os
import sys
import time
from contextlib import suppress
from pathlib import Path

from dedupd.cli import mount_helper
from dedupd_core.errors import Busy, DedupdError, error_named
from dedupd_core.system import mount_table
from dedupd_core.system.processes import show_as
from fuse_stub import process
from fuse_stub.kernel import request_pump
from fuse_stub.mounts import mount_process
from fuse_stub.mounts.mount_options import MountOptions, parse_options
from tests.suites.commands import SERVER
from tests.support.ways import RING, ring_is_offered, way

BUSY_WAIT_S = 60
"""How long the process of an earlier mount may take to end: umount(8) does not wait for it."""

MAP, LOG = "volumes.json", "mount.log"
"""In the directory of a run: the volumes by their names as sources of mounts; the mounts' log."""


def main(arguments: list[str]) -> int:
    state, *rest = arguments
    try:
        flags, (source, point) = getopt.gnu_getopt(rest, "sfnvo:t:")
        volume = json.loads((Path(state) / MAP).read_text())[source]
        words = ",".join(value for flag, value in flags if flag == "-o")
        options = parse_options(words, is_sloppy=False)
        if options.remount:
            return mount_helper.main([volume, point, "-o", words])
        serve_by_way(Path(state), volume, os.path.realpath(point), options)
    except (DedupdError, OSError, KeyError, ValueError) as error:
        print(f"mount: {error}", file=sys.stderr)
        return mount_helper.FAILED
    return mount_helper.DONE


def serve_by_way(state: Path, volume: str, point: str, options: MountOptions) -> None:
    """Mount a volume by the transport of the environment. Raises DedupdError, OSError."""
    give_up = time.monotonic() + BUSY_WAIT_S
    while True:
        try:
            if way() == RING:
                with ring_is_offered():
                    return _serve(state, volume, point, options)
            return _serve(state, volume, point, options)
        except Busy:
            with mount_process.open_volume(volume) as opened:
                is_mounted = bool(mount_table.points_of(opened.parameters.uuid))
            if is_mounted or time.monotonic() > give_up:
                raise
            time.sleep(0.1)


def _serve(state: Path, volume: str, point: str, options: MountOptions) -> None:
    """As ``mount_process.mount_in_background`` does, with the transport set."""
    receive_fd, send_fd = os.pipe()
    with mount_process.open_volume(volume) as opened:
        root, base_fd = opened.root, os.dup(opened.base_fd)
    if os.fork() == 0:
        try:
            _close_all_but(send_fd, base_fd)
            null = os.open(os.devnull, os.O_RDWR)
            log = os.open(state / LOG, os.O_WRONLY | os.O_APPEND)
            for fd, target in ((0, null), (1, null), (2, log)):  # native code panics to 2
                os.dup2(target, fd)
            os.chdir("/")
            show_as(SERVER, point)
            logging.basicConfig(
                filename=state / LOG, format=f"%(asctime)s %(process)d {point} %(message)s"
            )
            request_pump.BY_RING = way() == RING
            process.serve_for_parent(
                *(root, base_fd, point, mount_process.CACHE_BYTES, send_fd),
                options=options,
            )
        finally:
            os._exit(1)
    os.close(send_fd)
    os.close(base_fd)
    with os.fdopen(receive_fd, "rb") as answer:
        text = answer.read()
    if not text:
        raise OSError(f"{point}: the mount process died; see {state / LOG}")
    reply = json.loads(text)
    if "error" in reply:
        with suppress(ChildProcessError):
            os.wait()
        raise error_named(reply["kind"], reply["error"])


def _close_all_but(*kept: int) -> None:
    """Close what the process that serves has not opened: among it is the lock of the transport,
    and the output that somebody reads to its end."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in kept:
            with suppress(OSError):
                os.close(int(name))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
