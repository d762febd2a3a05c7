"""Making a directory a volume, and a volume a plain directory again (docs/design/format.md,
"Enabling").

Both are sequences of renames on one file system that can stop anywhere and be run again. The
marker files ``enabling`` and ``disabling`` say which way to go on. Enabling that fails half way
goes back by itself.
"""

import errno
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress

from dedupd_core.config.policy_file import policy_text
from dedupd_core.errors import Busy, DedupdError, NotAVolume, UnsuitableFileSystem, UsageError
from dedupd_core.failpoint import define, reach
from dedupd_core.format.store_kinds import MEMBERSHIP_FILE
from dedupd_core.format.volume_parameters import (
    DEFAULT_PRESET,
    FINGERPRINTS,
    Parameters,
    new_parameters,
)
from dedupd_core.stores.local_store import make_store_dirs
from dedupd_core.stores.membership import put_membership
from dedupd_core.stores.shared_directory import (
    SharedDirectory,
    join,
    leave,
    refuse_other_store,
    refuse_overlap,
)
from dedupd_core.stub.instance import instance_of, record_instance
from dedupd_core.system.disk import Disk
from dedupd_core.system.file_system import SUPPORTED
from dedupd_core.system.files import is_there, locked, names_in, opened, read_if_there
from dedupd_core.system.paths import explain, named, show_path
from dedupd_core.volume.base_directory import BASE_NAME, DISABLING, ENABLING, VOLUME_FILE
from dedupd_core.volume.enabling.base import (
    RESERVED_NAME,
    LockedBase,
    base_lock,
    left_in_place,
)
from dedupd_core.volume.enabling.place import (
    collision,
    in_the_way,
    refuse_base_of_others,
    refuse_content,
    refuse_inside_volume,
    refuse_occupants,
    refuse_place,
)
from dedupd_core.volume.enabling.probe import ACCEPTED_FILE, note_accepted, probe, refuse_unsuitable
from dedupd_core.volume.volume import LOCK_FILES, POLICY_FILE

CLOSED = 0o700
"""The mode of the directory itself for as long as it is a volume. Whatever users, and programs with
their rights, do there without the mount is refused: it would be out of sight later, and an empty
directory that can be read looks like one whose files were all deleted."""

ROUNDS_MAX = 100
"""How often entries are looked for that appeared while others moved."""

_BEGUN = define("enable.begun", "an empty .dedupd exists, not locked yet")
_PREPARED = define("enable.prepared", "the empty .dedupd is complete, nothing has moved yet")
_CLOSED = define("enable.closed", "users can no longer create entries, nothing has moved yet")
_MOVED = define("enable.moved", "one entry has moved into data/")
_ALL_MOVED = define(
    "enable.all-moved", "all entries have moved, the volume file does not exist yet"
)
_ENABLED = define("enable.enabled", "the volume file exists, the marker is not removed yet")
_DISABLING = define("disable.marked", "the volume file has become the disabling marker")
_TAKEN_BACK = define("disable.taken-back", "the marker has become the volume file again")
_MOVED_BACK = define("disable.moved", "one entry has moved back")
_EMPTIED = define("disable.emptied", "all entries have moved back, .dedupd still exists")


def enable(
    path: str,
    *,
    policy_values: Mapping[str, str | int],
    disk: Disk,
    chunk_size: str = DEFAULT_PRESET,
    fingerprint: str = FINGERPRINTS[0],
    force: bool = False,
    shared: SharedDirectory | None = None,
) -> Parameters:
    """Make the directory ``path`` a volume; goes on where an interrupted call stopped.

    ``force`` accepts a file system that is not known to keep what stubs rely on. On the ``shared``
    store, which stays the caller's, it has the chunking and the fingerprint of that. After an error
    the directory is as it was. Raises UsageError, UnsuitableFileSystem, OSError.
    """
    root = _check_root(path)
    if shared is not None:
        refuse_overlap(root, shared.path)
    root_fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    with opened(root_fd):
        if not is_there(root_fd, RESERVED_NAME):
            refuse_unsuitable(root_fd, path, force=force)
        with _base_made(root, root_fd, path, disk) as (base_fd, before):
            _refuse_state(base_fd, root, path)
            if read_if_there(base_fd, ENABLING) is None:
                try:
                    refuse_content(root, root_fd, path)
                    attribute = probe(base_fd, root, disk)
                except BaseException as error:
                    _leave_untouched(root_fd, base_fd, before, disk)
                    if isinstance(error, UnsuitableFileSystem):
                        raise UnsuitableFileSystem(f"{error}; use {SUPPORTED}") from error
                    raise
                parameters = new_parameters(chunk_size, fingerprint, attribute)
                if shared is not None:
                    parameters = parameters.like(shared.parameters)
                if force:
                    note_accepted(base_fd, disk)
                values = policy_text(policy_values)
                _prepare(root_fd, base_fd, before, parameters, values, shared, disk)
            refuse_other_store(base_fd, shared, path)
            reach(_PREPARED)
            return _move_in(root, root_fd, base_fd, disk)


@contextmanager
def _base_made(
    root: str, root_fd: int, path: str, disk: Disk
) -> Iterator[tuple[int, os.stat_result]]:
    """Make ``.dedupd``, unless it exists, and hold its lock. Yields it, open, and the status that
    the directory had before.

    Nothing else is looked at before, so of several calls one goes on. Raises Busy, UsageError.
    """
    for _ in range(ROUNDS_MAX):
        with ExitStack() as held:
            before = os.stat(root_fd)
            try:
                with named(os.path.join(root, BASE_NAME)):
                    disk.make_dir(root_fd, RESERVED_NAME)
                # So that a resumed call, too, finds the time that is to be kept.
                disk.set_times(root_fd, before.st_atime_ns, before.st_mtime_ns)
                reach(_BEGUN)
            except FileExistsError:
                refuse_base_of_others(root, root_fd)
            try:
                base_fd = held.enter_context(base_lock(root_fd, path))
            except FileNotFoundError:
                continue  # another call has just removed it
            yield base_fd, before
            return
    raise Busy(f"{path}: other calls keep creating and removing {BASE_NAME}; stop them")


def _refuse_state(base_fd: int, root: str, path: str) -> None:
    """Raises UsageError unless enabling can begin, or go on. Needs the lock."""
    is_begun = is_there(base_fd, ENABLING)
    if is_there(base_fd, VOLUME_FILE) and not is_begun:
        raise UsageError(f"{path}: already a volume; see `dedupd status {path}`")
    if is_there(base_fd, DISABLING):
        raise UsageError(
            f"{path}: disabling was interrupted; run `dedupd disable {path}` to finish it first"
        )
    if not is_begun and not _is_fresh_base(base_fd):
        raise UsageError(in_the_way(root, "was not created by dedupd"))


def _leave_untouched(root_fd: int, base_fd: int, before: os.stat_result, disk: Disk) -> None:
    """Remove the ``.dedupd`` that was just made, unless an earlier call got further."""
    if not names_in(base_fd):
        disk.remove_dir(root_fd, RESERVED_NAME)
        disk.set_times(root_fd, before.st_atime_ns, before.st_mtime_ns)


def _prepare(
    root_fd: int,
    base_fd: int,
    before: os.stat_result,
    parameters: Parameters,
    policy: str,
    shared: SharedDirectory | None,
    disk: Disk,
) -> None:
    """Fill ``.dedupd``; it is complete once the marker is there, with the directory's times."""
    for name in (b"data", b"catalog"):
        with suppress(FileExistsError):
            disk.make_dir(base_fd, name)
    if shared is None:
        make_store_dirs(base_fd, disk)
    else:
        put_membership(base_fd, shared.new_membership(), disk)
    for name in LOCK_FILES:
        with suppress(FileExistsError):
            os.close(disk.create(base_fd, name))
    disk.replace_file(base_fd, POLICY_FILE, policy.encode())
    with opened(_open_data(base_fd)) as data_fd:
        _copy_directory_metadata(root_fd, data_fd, disk)
        disk.sync_file(data_fd)
    times_ns = before.st_atime_ns, before.st_mtime_ns
    disk.replace_file(base_fd, ENABLING, parameters.to_json(), times_ns=times_ns)
    disk.sync_dir(root_fd)


def _move_in(root: str, root_fd: int, base_fd: int, disk: Disk) -> Parameters:
    """From the marker to the volume file; or back to the plain directory, where that fails."""
    marker = read_if_there(base_fd, ENABLING)
    assert marker is not None
    parameters = Parameters.from_json(marker, f"{root}/{BASE_NAME}/enabling")
    times = os.stat(ENABLING, dir_fd=base_fd)
    try:
        _close_to_users(root_fd, disk)
        reach(_CLOSED)
        with opened(_open_data(base_fd)) as data_fd:
            _move_all_in(root, root_fd, data_fd, disk)
            is_empty = not names_in(data_fd)
            disk.set_times(data_fd, times.st_atime_ns, times.st_mtime_ns)
            disk.sync_file(data_fd)
            disk.sync_dir(root_fd)
        reach(_ALL_MOVED)
        if not is_empty:
            refuse_occupants(root)  # those that came meanwhile
        join(base_fd, parameters.uuid, disk)
    except (DedupdError, OSError, KeyboardInterrupt) as error:
        _go_back(root, root_fd, base_fd, error, disk)
        raise
    with opened(_open_data(base_fd)) as data_fd:
        record_instance(base_fd, instance_of(data_fd), disk)
    disk.replace_file(base_fd, VOLUME_FILE, parameters.to_json())
    reach(_ENABLED)
    disk.unlink(base_fd, ENABLING)
    disk.sync_dir(base_fd)
    return parameters


def _close_to_users(root_fd: int, disk: Disk) -> None:
    """Before anything is listed: what a user made after that would stay behind, below the mount.

    ``data`` has owner and mode already, for users to see and for :func:`disable` to give back.
    """
    if os.geteuid() == 0:
        disk.set_owner(root_fd, 0, 0)
    disk.set_mode(root_fd, CLOSED)
    disk.sync_file(root_fd)


def _move_all_in(root: str, root_fd: int, data_fd: int, disk: Disk) -> None:
    """Raises Busy where programs that no mode keeps out make entries all the time."""
    left = left_in_place(root_fd)
    for _ in range(ROUNDS_MAX):
        if not _move_entries(root_fd, data_fd, left, _MOVED, root, disk):
            return
    raise Busy(
        f"{root}: a root process keeps creating files in this directory; stop it, then run the"
        " command again"
    )


def _go_back(root: str, root_fd: int, base_fd: int, reason: BaseException, disk: Disk) -> None:
    """Undo an enabling that failed. Raises DedupdError where that fails too."""
    try:
        refuse_collisions(LockedBase(root, root, root_fd, base_fd), disk=disk)
        begin_disable(base_fd, disk)
        _move_out(root, root_fd, base_fd, disk)
    except (DedupdError, OSError) as error:
        first, second = map(explain, (reason, error))
        raise DedupdError(
            f"{first}; not all entries could be moved back: {second}. Users have no access to the"
            f" directory until you run `dedupd disable {root}`"
        ) from reason


def begin_disable(base_fd: int, disk: Disk) -> None:
    """Put the marker in place of the volume file: from here on the volume cannot be opened.

    The caller holds the volume's locks, and has made sure that no stub is left. Raises
    FileNotFoundError where there is no volume.
    """
    if read_if_there(base_fd, VOLUME_FILE) is not None:
        # The marker's own times keep those of the directory, which moving changes.
        times = os.stat(b"data", dir_fd=base_fd)
        with opened(disk.open_write(base_fd, VOLUME_FILE)) as fd:
            disk.set_times(fd, times.st_atime_ns, times.st_mtime_ns)
            disk.sync_file(fd)
        disk.rename(base_fd, VOLUME_FILE, base_fd, DISABLING)
    else:
        disk.rename(base_fd, ENABLING, base_fd, DISABLING)
    disk.sync_dir(base_fd)


def disable_held(held: LockedBase, *, disk: Disk) -> None:
    """Give back the plain directory; the caller has made sure that no stub is left.

    Goes on where an interrupted call stopped. Raises NotAVolume, UsageError, Busy.
    """
    root_fd, base_fd = held.root_fd, held.base_fd
    if _is_last_remains(base_fd):
        _remove_base(root_fd, base_fd, os.stat(root_fd), disk)
        return
    with _both_locks(base_fd, held.path):
        refuse_collisions(held, disk=disk)
        if not is_there(base_fd, DISABLING):
            try:
                begin_disable(base_fd, disk)
            except FileNotFoundError:
                raise NotAVolume(f"{held.path}: not a volume") from None
        reach(_DISABLING)
        _move_out(held.root, root_fd, base_fd, disk)


def refuse_collisions(held: LockedBase, *, disk: Disk) -> None:
    """Raise UsageError where an entry of the tree has no place in the plain directory.

    Where disabling is marked all the same, and no entry has moved, the volume becomes one again, so
    that it can be mounted: earlier versions looked at the names after the mark.
    """
    root_fd, base_fd = held.root_fd, held.base_fd
    if not is_there(base_fd, b"data"):
        return
    is_marked = is_there(base_fd, DISABLING)
    with opened(_open_data(base_fd)) as data_fd:
        beside = {*names_in(root_fd)} - left_in_place(root_fd)
        is_whole = is_marked and beside <= {*names_in(data_fd)}
        is_mountable = is_whole or is_there(base_fd, VOLUME_FILE)
        message = collision(held.root, root_fd, data_fd, is_mountable=is_mountable)
    if message and is_whole:
        disk.rename(base_fd, DISABLING, base_fd, VOLUME_FILE)
        disk.sync_dir(base_fd)
        reach(_TAKEN_BACK)
    if message:
        raise UsageError(f"{held.path}: {message}")


def _move_out(root: str, root_fd: int, base_fd: int, disk: Disk) -> None:
    """From the marker to the plain directory."""
    times = os.stat(DISABLING, dir_fd=base_fd)
    if is_there(base_fd, b"data"):
        with opened(_open_data(base_fd)) as data_fd:
            _move_entries(data_fd, root_fd, frozenset(), _MOVED_BACK, root, disk)
            disk.sync_dir(root_fd)
            disk.sync_dir(data_fd)
            reach(_EMPTIED)
            _copy_directory_metadata(data_fd, root_fd, disk)
            disk.set_times(root_fd, times.st_atime_ns, times.st_mtime_ns)
            disk.sync_file(root_fd)
        disk.remove_dir(base_fd, b"data")
    _remove_base(root_fd, base_fd, times, disk)


def _remove_base(root_fd: int, base_fd: int, times: os.stat_result, disk: Disk) -> None:
    """Remove all of ``.dedupd``, the marker last, and make the directory look untouched."""
    if (marker := read_if_there(base_fd, DISABLING)) is not None:
        leave(base_fd, Parameters.from_json(marker, DISABLING.decode()).uuid, disk)
    for name in sorted(names_in(base_fd), key=lambda name: (name == DISABLING, name)):
        disk.remove_all(base_fd, name)
    disk.remove_dir(root_fd, RESERVED_NAME)
    disk.set_times(root_fd, times.st_atime_ns, times.st_mtime_ns)
    disk.sync_file(root_fd)


@contextmanager
def _both_locks(base_fd: int, path: str) -> Iterator[None]:
    """Keep out jobs and mounts that opened the volume before it was marked."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
    with (
        opened(os.open("lock", flags, 0o600, dir_fd=base_fd)) as job,
        opened(os.open("mount.lock", flags, 0o600, dir_fd=base_fd)) as mount,
        locked(job, f"{path}: in use by a job; wait, or stop it with `dedupd cancel` or Ctrl-C"),
        locked(mount, f"{path}: a mount of the volume is active; unmount it first"),
    ):
        yield


def _is_last_remains(base_fd: int) -> bool:
    """Whether only what disabling removes last is left of a ``.dedupd``."""
    return {*names_in(base_fd)} <= {*LOCK_FILES}


def _check_root(path: str) -> str:
    root = os.path.realpath(path)
    if not os.path.isdir(root):
        raise UsageError(f"{path}: no such directory")
    refuse_place(root, path)
    refuse_inside_volume(root, path)
    return root


def _is_fresh_base(base_fd: int) -> bool:
    """Whether a ``.dedupd`` without marker is what an interrupted enable leaves."""
    expected = {"data", "store", "catalog", "policy.toml", "policy.toml.new", "enabling.new"}
    optional = ACCEPTED_FILE.decode(), MEMBERSHIP_FILE.decode()
    expected |= {*optional, *(f"{name}.new" for name in optional), "probe"}
    expected |= {name.decode() for name in LOCK_FILES}
    if not {*map(os.fsdecode, names_in(base_fd))} <= expected:
        return False
    if not is_there(base_fd, b"data"):
        return True
    with opened(_open_data(base_fd)) as data_fd:
        return not names_in(data_fd)


def _open_data(base_fd: int) -> int:
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW
    return os.open(b"data", flags, dir_fd=base_fd)


def _move_entries(
    from_fd: int, to_fd: int, left: frozenset[bytes], point: str, root: str, disk: Disk
) -> int:
    """Move what is there now, but for ``left``; returns how many entries moved. One that is gone is
    passed over."""
    count = 0
    for name in sorted({*names_in(from_fd)} - left):
        try:
            disk.rename_new(from_fd, name, to_fd, name)
        except FileNotFoundError:
            continue
        except OSError as error:
            if error.errno in (errno.EBUSY, errno.EXDEV):
                raise UsageError(
                    f"{root}: {show_path(name)} is on another file system or in use as a mount"
                    " point; unmount it and run the command again"
                ) from error
            if error.errno == errno.EEXIST:
                raise UsageError(
                    f"{root}: another entry {show_path(name)} was created next to {BASE_NAME};"
                    " move it away and run the command again"
                ) from error
            if error.errno in (errno.EPERM, errno.EACCES):
                raise UsageError(
                    f"{root}: {show_path(name)} cannot be moved ({os.strerror(error.errno)}); make"
                    " it writable, remove the flags immutable and append-only, and run the"
                    " command again"
                ) from error
            raise
        count += 1
        reach(point)
    return count


def _copy_directory_metadata(source: int, target: int, disk: Disk) -> None:
    """Owner, mode and extended attributes of a directory, both open."""
    status = os.stat(source)
    if os.geteuid() == 0:
        disk.set_owner(target, status.st_uid, status.st_gid)
    wanted = {os.fsencode(name): os.getxattr(source, name) for name in os.listxattr(source)}
    for name in map(os.fsencode, os.listxattr(target)):
        if name not in wanted:
            disk.remove_attribute(target, name)
    for name, value in wanted.items():
        disk.set_attribute(target, name, value)
    disk.set_mode(target, stat.S_IMODE(status.st_mode))
