"""The process of a mount: serves a volume until it is unmounted."""

import ctypes
import json
import logging
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial

import trio

from dedupd_core import native
from dedupd_core.errors import Busy, DedupdError, ServiceUnreachable
from dedupd_core.system import mount_table
from dedupd_core.system.files import opened
from dedupd_core.system.inherited import lift_limits, take_normal_priority
from dedupd_core.system.log_queue import Datagrams, LogQueue, syslog_line
from dedupd_core.system.paths import explain
from dedupd_core.system.processes import (
    cores,
    keep_capabilities_of_all_users,
    leave_callers_in_place,
    show_as,
)
from dedupd_core.units import MIB
from dedupd_core.volume.commit import settle_noted
from dedupd_core.volume.detached_mount import detached_mount
from dedupd_core.volume.enabling.probe import require_suitable
from dedupd_core.volume.transition_log import Transitions
from dedupd_core.volume.volume import Volume
from fuse_stub.control import ControlServer
from fuse_stub.files.attributes import tell_by
from fuse_stub.files.sealing import seal_at_the_end, seal_closed
from fuse_stub.kernel.confinement import bound_capabilities, deny_calls
from fuse_stub.kernel.page_worker import ask_for_pages
from fuse_stub.kernel.request_pump import Pump
from fuse_stub.kernel.reserved_blocks import leave_group
from fuse_stub.mounted_volume import MountedVolume
from fuse_stub.mounts.handover import ServiceConnection, ServiceProxy
from fuse_stub.mounts.mount_options import NO_OPTIONS, MountOptions
from fuse_stub.mounts.mount_points import clear_dead_mount, device_of, read_ahead_more
from fuse_stub.mounts.mount_process import Mounter, ServeOptions
from fuse_stub.mounts.private_mount import private_mount
from fuse_stub.mounts.tasks import failures, kept_up
from fuse_stub.operations import StubOperations
from fuse_stub.session import session

log = logging.getLogger("dedupd.mount")

SWITCH_INTERVAL_S = 0.0005
"""The longest time that a thread can keep the interpreter from the event-loop thread. With Python's
default, a small write of a user waits 5 ms for another user's listing."""

_MALLOC_OPTIONS = {
    -8: 1,  # M_ARENA_MAX
    -3: 8 * MIB,  # M_MMAP_THRESHOLD: no separate mapping for a request's bytes
    -1: 128 * MIB,  # M_TRIM_THRESHOLD: more than the chunks of all threads
}

LOG_SOCKET = "/dev/log"

GROUP_POLL_S = 5.0

LOCK_WAIT_S = 60.0
LOCK_POLL_S = 0.02
DETACHED_WAIT_S = 1.0
"""An ordinary unmount ends within this time, unless the kernel has much data to write."""
DETACHED_POLL_S = 5.0
"""A search for the users of a detached mount examines all processes."""


def serve(volume: Volume, asked: ServeOptions) -> None:
    """Mount ``volume`` as ``asked`` and serve it until it is unmounted or SIGTERM comes.

    If the file system below is read-only, or the options request it, the mount is read-only, and
    nothing is written. Raises Busy if the volume, or a copy of it, is already mounted, UsageError,
    UnsuitableFileSystem, OSError.
    """
    set_up_process()
    # Quotas must count for the owners of files, not for root.
    native.system.give_up_capability("CAP_SYS_RESOURCE")
    keeps_rights = keep_capabilities_of_all_users()
    os.umask(0)
    # Its own mount will cover the volume: then this descriptor is the only access to it.
    below_fd = os.open(volume.base, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    make_private = private_mount if asked.outside is None else asked.outside.private_mount
    with (
        make_private(below_fd, asked.options) as private,
        Volume.at(volume.root, os.dup(private.base_fd), volume.disk) as own,
        _mount_lock(own) as transitions,
    ):
        _refuse_copy(own)
        leave_group(own.data_fd)
        bound(asked, is_read_only=transitions.is_read_only)
        if not transitions.is_read_only:
            require_suitable(own)
            settle_noted(own, transitions)
        at, cache_bytes = asked.mountpoint, asked.cache_bytes
        mount = MountedVolume(own, transitions, at, cache_bytes, cores(), private=private)
        if not own.is_read_only:
            mount.reserved_blocks.keep(own.data_fd, at, keeps_rights=keeps_rights)
        try:
            answer(mount, asked, below_fd)
        finally:
            mount.close()
            if not own.is_read_only:
                own.disk.sync_file_system(own.data_fd)
                seal_at_the_end(own, mount.files)


@contextmanager
def _mount_lock(volume: Volume) -> Iterator[Transitions]:
    """Hold the volume for this mount. Raises Busy if another mount serves it.

    A job that commits without a mount holds the lock for a batch, and an unmounted process holds it
    until all is synced: this waits for both. It does not wait for users of a detached mount.
    """
    end = time.monotonic() + LOCK_WAIT_S
    next_search = time.monotonic() + DETACHED_WAIT_S
    with ExitStack() as stack:
        while True:
            try:
                transitions = stack.enter_context(volume.mount_lock(reads_only=True))
                if not transitions.is_read_only:
                    volume.note_mount()
                break
            except Busy as busy:
                client = volume.mount_client()
                if client is not None:
                    client.close()
                # A process that answers after umount(8) is syncing users' data.
                is_mounted = client is not None and mount_table.points_of(volume.parameters.uuid)
                if is_mounted or not busy.passes:
                    raise
                if time.monotonic() > next_search:
                    next_search = time.monotonic() + DETACHED_POLL_S
                    detached = detached_mount(volume)
                    if detached is not None and (detached.users or time.monotonic() > end):
                        raise Busy(detached.message) from None
                if time.monotonic() > end:
                    raise
                time.sleep(LOCK_POLL_S)
        yield transitions


def _refuse_copy(volume: Volume) -> None:
    """Raise Busy if a copy of this volume, for example a snapshot, is already mounted.

    Jobs find a mount process by the volume's uuid, so they would commit files of one copy in the
    process of the other, whose store lacks their chunks. A process of this volume itself would hold
    its lock.
    """
    client = volume.mount_client()  # raises Busy if a copy answers
    if client is not None:
        client.close()
        raise Busy(f"{volume.root}: another process serves this volume; unmount it first")


def set_up_process() -> None:
    """Set up the process as a server for all users, independent of the shell that mounts.

    Raises UsageError if a resource limit cannot be removed.
    """
    lift_limits()
    take_normal_priority()
    allow_descriptors()
    allow_rings()
    keep_memory()


def allow_descriptors() -> None:
    """Raise the limit of descriptors as far as possible: each open file needs one here."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def allow_rings() -> None:
    """Raise the limit of locked memory as far as possible: it may include rings of a process
    without ``CAP_IPC_LOCK``."""
    with suppress(OSError, ValueError):
        resource.setrlimit(
            resource.RLIMIT_MEMLOCK, (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
        )


def bound(asked: ServeOptions, *, is_read_only: bool) -> None:
    """Drop the capabilities that the mount does not need. Call this before any thread starts.

    Raises OSError.
    """
    bound_capabilities(is_read_only=is_read_only)
    if asked.bounded is not None:
        asked.bounded()


def keep_memory() -> None:
    """Reuse the memory of old chunks for new chunks, in all threads.

    By default glibc returns memory to the kernel, which maps it again page by page. Then a read of
    a chunk of 88 KiB from the page cache takes 61 µs instead of 30.
    """
    libc = ctypes.CDLL(None)
    with suppress(AttributeError):  # another C library
        for option, value in _MALLOC_OPTIONS.items():
            libc.mallopt(option, value)


def answer(mount: MountedVolume, asked: ServeOptions, below_fd: int) -> None:
    """Answer requests until the mount ends. Raises the errors of :func:`session`."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    operations = StubOperations(mount)
    with session(operations, mount, asked, below_fd):
        deny_calls(mount.mountpoint)
        trio.run(_run, mount, operations, asked)


async def _run(mount: MountedVolume, operations: StubOperations, asked: ServeOptions) -> None:

    def use(line: native.mount.Line | None) -> None:
        mount.line = line
        tell_by(line)

    pump = Pump(mount.inodes, operations.serve, use, mount.mountpoint)
    async with trio.open_nursery() as nursery:
        if not mount.is_snapshot:
            await nursery.start(ControlServer(mount).serve)
        await nursery.start(_stop_on_signal, pump)
        nursery.start_soon(_announce, mount, asked)
        nursery.start_soon(kept_up, "closing idle files", mount.files.sweep)
        nursery.start_soon(kept_up, "watching the policy", mount.watch_policy)
        if not mount.volume.is_read_only:
            seal = partial(seal_closed, mount.volume, mount.files)
            nursery.start_soon(kept_up, "sealing stubs", seal)
            nursery.start_soon(kept_up, "syncing deletions", mount.deletions.sync)
        await pump.run()
        mount.fill_lane.end()
        await mount.bulk_commits.abandon_all()
        await mount.commit_lane.abandon_all()
        nursery.cancel_scope.cancel()


async def _announce(mount: MountedVolume, asked: ServeOptions) -> None:
    """Report that the mount is ready as soon as it answers."""
    view = asked.view
    await trio.to_thread.run_sync(os.statvfs, view)
    mount.device = await trio.to_thread.run_sync(device_of, view)
    await trio.to_thread.run_sync(ask_for_pages, mount.inodes, mount.mountpoint, view)
    with failures.noted("setting up the mount"):
        await trio.to_thread.run_sync(read_ahead_more, mount.device)
        if not mount.volume.is_read_only:
            await trio.to_thread.run_sync(_open_once, view)
    line = mount.line
    way = "io_uring" if line is not None and line.is_by_ring else "/dev/fuse"
    log.info("%s is mounted at %s, by %s", mount.volume.root, mount.mountpoint, way)
    if line is not None and line.ring_failure is not None:
        why = os.strerror(line.ring_failure)
        log.warning("%s: io_uring is offered, but cannot be used: %s", mount.mountpoint, why)
    if asked.ready is not None:
        asked.ready()
    if line is not None and line.is_by_ring:
        await kept_up("placing callers", _keep_callers_in_place)


async def _keep_callers_in_place() -> None:
    """Update the placement of callers: systemd, for example, changes the scheduler's groups.

    Only for io_uring. With ``/dev/fuse`` another processor must be woken anyway, and the placement
    made ``tar c`` of stubs 10 % slower.
    """
    while True:
        if os.getsid(0) == os.getpid():  # set up already
            leave_callers_in_place()
        await trio.sleep(GROUP_POLL_S)


def _open_once(mountpoint: str) -> None:
    """Open a file once, so that the kernel learns to send no opens.

    Before that, each new file costs a release message, which slows down unpacking an archive.
    """
    with (
        suppress(OSError),  # no space, or mounted read-only: it learns that later
        opened(os.open(mountpoint, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)) as fd,
    ):
        os.close(os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC))


async def _stop_on_signal(
    pump: Pump,
    task_status: "trio.TaskStatus[None]" = trio.TASK_STATUS_IGNORED,
) -> None:
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        task_status.started()
        async for _ in signals:
            await pump.finish_notifications()
            pump.stop()


def serve_for_parent(
    path: str,
    base_fd: int,
    mountpoint: str,
    cache_bytes: int,
    answer_fd: int,
    served: Callable[[Volume, ServeOptions], None] = serve,
    options: MountOptions = NO_OPTIONS,
    outside: Mounter | None = None,
) -> None:
    """The child's side of ``mount_process.served_in_background``. ``served``: :func:`serve`, or a
    similar function. ``outside``: mounts for this process."""
    os.set_inheritable(answer_fd, False)
    os.set_inheritable(base_fd, False)
    answered = False

    def tell(reply: dict[str, str]) -> None:
        nonlocal answered
        if not answered:
            if outside is not None:
                outside.let_go()
            # Not before: until it is mounted, an automount of systemd only admits processes of its
            # own group.
            with suppress(PermissionError):  # it already leads its group
                os.setsid()
            os.write(answer_fd, json.dumps(reply).encode())
            os.close(answer_fd)
            answered = True
            with open(os.devnull, "w") as null:
                os.dup2(null.fileno(), 2)

    bounded = _log_to_system()
    asked = ServeOptions(
        *(mountpoint, cache_bytes, options),
        ready=partial(tell, {}),
        bounded=bounded,
        outside=outside,
    )
    try:
        with Volume.at(path, base_fd) as volume:
            served(volume, asked)
    except BaseException as error:
        if isinstance(error, DedupdError):  # a refusal, with its remedy
            log.error("the mount at %s is ending: %s", mountpoint, error)
        else:
            log.exception("the mount at %s is ending", mountpoint)
        tell({"error": _reason(error), "kind": type(error).__name__})
        raise SystemExit(1) from error


def _reason(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return explain(error)


def _log_to_system() -> Callable[[], None]:
    """Collect messages for the system's log; return the function that starts to send them."""
    logger = logging.getLogger()
    logger.setLevel(logging.INFO)
    try:
        log_queue = LogQueue(Datagrams(LOG_SOCKET, _log_line))
    except OSError:  # a machine without a log
        return lambda: None
    logger.addHandler(log_queue)
    return log_queue.start


def _log_line(record: logging.LogRecord) -> bytes:
    return syslog_line(record, f"dedupd[{record.process}]: {record.getMessage()}")


def serve_in_unit(volume: str) -> None:
    """Serve the volume (a uuid) for which the service has started the unit.

    Raises ServiceUnreachable if no service waits for it, and the errors that the service reports.
    """
    try:
        line = ServiceConnection.to_service(volume)
    except OSError as error:
        raise ServiceUnreachable(
            f"{volume}: no service waits for the mount process of this volume ({error.strerror});"
            " run `dedupd mount PATH`"
        ) from error
    outside = ServiceProxy(line)
    show_as("dedupd-mount", outside.mountpoint)
    serve_for_parent(
        *(outside.path, outside.base_fd, outside.mountpoint, outside.cache_bytes),
        os.dup(line.fileno()),
        options=outside.options,
        outside=outside,
    )


def clear_after(volume: str) -> None:
    """Remove the mount of a process of the unit after a normal exit: it could not do so itself."""
    for point in mount_table.points_of(volume):
        clear_dead_mount(point)
