"""One volume, opened: its directories, parameters, policy and locks."""

import difflib
import errno
import os
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property
from typing import Self

from dedupd_core.config.policy import Policy, RunLimits, parse_policy
from dedupd_core.config.room import Room
from dedupd_core.errors import (
    Busy,
    NotAVolume,
    ReadOnlyVolume,
    ServiceUnreachable,
    UsageError,
)
from dedupd_core.format.container import Kind
from dedupd_core.format.instance import Instance
from dedupd_core.format.volume_parameters import Parameters
from dedupd_core.stores.ownership import refuse_strangers
from dedupd_core.stores.store_side import StoreSide
from dedupd_core.stub.instance import instance_of, refuse_copy
from dedupd_core.stub.transition import AttributeSpace, StubFiles
from dedupd_core.system import mount_table
from dedupd_core.system.control_socket import ControlClient, fetch_base, socket_path
from dedupd_core.system.disk import Disk
from dedupd_core.system.file_system import block_bytes_of
from dedupd_core.system.files import (
    is_there,
    locked,
    open_to_read,
    opened,
    read_file,
    takes_no_changes,
)
from dedupd_core.system.paths import named, open_beneath, resolved
from dedupd_core.volume.base_directory import BASE_NAME, VOLUME_FILE, is_volume
from dedupd_core.volume.catalog import catalogue_of
from dedupd_core.volume.hints import Hints
from dedupd_core.volume.repair_notes import RepairNotes
from dedupd_core.volume.transition_log import Transitions

POLICY_FILE = b"policy.toml"
LOCK_FILES = (b"lock", b"mount.lock")
"""Made with the volume, so that a volume on a read-only file system has them to be locked."""
SWITCHING = "receive/switching"  # there while a state that was received is put into its place

_CONNECT_POLL_S = 0.05
"""Between two attempts to reach a mount process that is about to start or to end."""


class Volume(StoreSide):
    """An enabled volume; closes ``base_fd``, also where it cannot be opened.

    ``base`` is a path of its ``.dedupd`` that stays right when a mount covers the volume, or goes:
    it leads through ``base_fd``. ``is_mounted``: a mount covered it when it was opened, or its
    process has opened it.
    """

    limits = RunLimits()  # of this run alone
    fellows: Sequence["Volume"] = ()
    """The other volumes of its store, where a job holds all of them (``dedupd_core/shared``)."""

    def __init__(self, root: str, base_fd: int, disk: Disk, *, is_mounted: bool) -> None:
        base = f"/proc/self/fd/{base_fd}"
        self.root, self.base, self.base_fd, self.disk = root, base, base_fd, disk
        self.is_mounted = is_mounted
        with ExitStack() as on_failure:
            on_failure.callback(os.close, base_fd)
            refuse_strangers(base_fd, os.path.join(root, BASE_NAME))
            self.parameters = Parameters.from_json(
                read_file(base_fd, VOLUME_FILE), os.path.join(root, BASE_NAME, "volume.json")
            )
            self.data_fd = os.open(
                os.path.join(base, "data"), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
            )
            on_failure.callback(os.close, self.data_fd)
            self.instance = instance_of(self.data_fd)
            self.space = self.space_of(self.instance)
            self.check_place()
            on_failure.pop_all()
        self.block_bytes = block_bytes_of(self.data_fd)

    def check_place(self) -> None:
        """Raises CopiedVolume where this is a copy that is not taken over yet."""
        refuse_copy(self.base_fd, self.instance, self.root, os.path.join(self.root, BASE_NAME))

    def space_of(self, instance: Instance) -> AttributeSpace:
        """How stubs would be recognised that belong to ``instance``."""
        name, volume_id = self.parameters.attribute.encode(), self.parameters.uuid_bytes
        shared = self.membership
        store_id = volume_id if shared is None else shared.store_id
        return AttributeSpace(name, store_id, instance.seed(volume_id))

    @property
    def stub_files(self) -> StubFiles:
        """How its stubs are changed."""
        return StubFiles(self.space, self.disk, self.block_bytes)

    @classmethod
    def open(cls, path: str, disk: Disk | None = None) -> Self:
        """The volume at ``path``: its root, its mount point, or anything below a mount of it.

        Raises NotAVolume, CopiedVolume, Damaged, UnknownFormat, ServiceUnreachable.
        """
        disk = disk or Disk()
        root = os.path.realpath(path)
        mount = mount_table.find(root)
        if mount is not None:
            return cls.at(mount.point, _base_behind(mount), disk)
        base = os.path.join(root, BASE_NAME)
        if not os.path.isdir(root):
            raise NotAVolume(f"{path}: no such directory{_meant(root)}")
        try:
            # Not a link, by which any user could lead to another volume.
            base_fd = os.open(base, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                raise
            text = f"{path}: not a volume; create one with `dedupd enable {path}`{_meant(root)}"
            raise NotAVolume(text) from None
        with ExitStack() as on_failure:
            on_failure.callback(os.close, base_fd)
            refuse_strangers(base_fd, base)
            if not is_there(base_fd, VOLUME_FILE):
                raise NotAVolume(
                    f"{path}: enabling or disabling was interrupted; run `dedupd enable {path}` or"
                    f" `dedupd disable {path}` again to finish it"
                )
            on_failure.pop_all()
        return cls(root, base_fd, disk, is_mounted=False)

    @classmethod
    def at(cls, root: str, base_fd: int, disk: Disk | None = None) -> Self:
        """The volume whose ``.dedupd`` is open as ``base_fd``, also where a mount covers ``root``.

        ``base_fd`` is the volume's from here on, also where this fails. Raises as :meth:`open`.
        """
        return cls(root, base_fd, disk or Disk(), is_mounted=True)

    @classmethod
    def locate(cls, path: str) -> tuple["Volume", bytes]:
        """The volume that ``path`` lies in, mounted or not, and the path within its tree.

        Raises what :meth:`open` raises.
        """
        absolute = resolved(path)
        mount = mount_table.find(absolute)
        root = mount.point if mount is not None else _root_above(absolute)
        if not root:
            raise NotAVolume(
                f"{path}: not in a volume{_meant(absolute)}; `dedupd status` lists the mounted"
                " volumes, and `dedupd enable DIRECTORY` creates one"
            )
        below = os.path.relpath(absolute, root)
        volume = cls.open(root)
        return volume, b"" if below == "." else os.fsencode(below)

    @classmethod
    def locate_existing(cls, path: str) -> tuple["Volume", bytes]:
        """As :meth:`locate`, for an existing path. Raises UsageError for others: a mistyped path
        must not look like work that was done."""
        volume, below = cls.locate(path)
        try:
            os.close(open_beneath(volume.data_fd, below, os.O_PATH))
        except OSError as error:
            volume.close()
            raise UsageError(f"{path}: {os.strerror(error.errno or 0).lower()}") from None
        return volume, below

    def close(self) -> None:
        self.close_store()
        os.close(self.data_fd)
        os.close(self.base_fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def policy_where(self) -> str:
        return os.path.join(self.root, BASE_NAME, "policy.toml")

    def policy_text(self) -> str:
        return read_file(self.base_fd, POLICY_FILE).decode("utf-8", "replace")

    def policy(self) -> Policy:
        """The policy as it is now on disk, within the limits of this run. Raises PolicyError."""
        try:
            return self.limits.applied(parse_policy(self.policy_text(), self.policy_where))
        except FileNotFoundError:
            return self.limits.applied(Policy())

    def room(self) -> Room:
        """How much may be written, by the policy as it is now. Raises PolicyError."""
        return Room(self.data_fd, self.policy().reserve, self.root)

    def note_damage(self, kind: Kind, record_id: int) -> None:
        self.repairs.add(kind, record_id)

    def store_room(self) -> Room:
        """How much may be written to the store, by the volume's policy. Raises PolicyError."""
        return Room(self.store.base_fd, self.policy().reserve, self.store.where)

    @property
    def catalogue(self) -> str:
        """The directory of the volume's ``Catalog``."""
        return catalogue_of(self.base)

    @cached_property
    def hints(self) -> Hints:
        """Facts that may be lost."""
        return Hints(self.catalogue)

    @cached_property
    def store_hints(self) -> Hints:
        """Those of its store."""
        return self.hints if self.shared is None else Hints(catalogue_of(self.shared.base))

    @cached_property
    def repairs(self) -> RepairNotes:
        """Notes of damage that readers met."""
        return RepairNotes(self.store_hints)

    @property
    def is_read_only(self) -> bool:
        """Whether the file system, this mount of it, or the snapshot takes no changes now."""
        return takes_no_changes(VOLUME_FILE, self.base_fd)

    @contextmanager
    def job_lock(self, *, reads_only: bool = False) -> Iterator[None]:
        """Hold the volume and its store for one job: where others share the store, one job writes
        to it at a time, and waits for the others. Raises Busy, UnseenMember, StoreUnreachable; and
        ReadOnlyVolume unless it ``reads_only``."""
        with (
            self.tree_lock(reads_only=reads_only),
            self.sharing.job_lock(wait=True, reads_only=reads_only),
        ):
            self.sharing.admit([self.identity], reads_only=reads_only)
            yield

    @contextmanager
    def append_lock(self) -> Iterator[None]:
        """As :meth:`job_lock`, for a job that writes to the store by a ``StoreSession`` alone: on
        a shared store, jobs of other volumes that do the same go on beside it."""
        with self.tree_lock(), self.sharing.append_lock():
            self.sharing.admit([self.identity])
            yield

    @contextmanager
    def tree_lock(self, *, reads_only: bool = False) -> Iterator[None]:
        """Hold the volume for one job that writes to its tree alone, whatever goes on in a store
        that it shares. Raises Busy, and ReadOnlyVolume unless it ``reads_only``."""
        with (
            opened(self._open_lock("lock", reads_only)) as fd,
            locked(
                fd, f"{self.root}: in use by a job; wait, or stop it with `dedupd cancel` or Ctrl-C"
            ),
        ):
            self._require_enabled()
            self.refuse_half_moved()
            self.require_same_store()
            yield

    @contextmanager
    def mount_lock(self, *, reads_only: bool = False) -> Iterator[Transitions]:
        """Hold the right to make transitions, as a mount process does.

        ``reads_only``: also where the volume is read-only, to keep out others in case that ends.
        Raises Busy, ReadOnlyVolume.
        """
        with (
            opened(self._open_lock("mount.lock", reads_only)) as fd,
            locked(fd, f"{self.root}: {self._mounted_where()}"),
        ):
            self._require_enabled()
            self.refuse_half_moved()
            yield Transitions(fd)

    @contextmanager
    def mount_or_lock(
        self, safe_point: Callable[[], None] | None = None, wait_s: float = 0.0
    ) -> Iterator[Transitions | ControlClient]:
        """The right to make transitions, held here; or a connection to the mount process, which
        has it.

        ``safe_point`` is called while an answer takes its time; a mount process that is about to
        start or to end is waited for. Raises ServiceUnreachable where it does not answer, Busy as
        :meth:`mount_client`.
        """
        end_s = time.monotonic() + wait_s
        held: Transitions | ControlClient
        with ExitStack() as stack:
            while True:
                try:
                    held = stack.enter_context(self.mount_lock())
                    break
                except Busy:
                    client = self.mount_client(safe_point)
                if client is not None:
                    held = stack.enter_context(client)
                    break
                if time.monotonic() >= end_s:
                    raise ServiceUnreachable(
                        f"{self.root}: the mount process does not respond; wait for it to start,"
                        f" or run `dedupd umount {self.root}`"
                    )
                time.sleep(_CONNECT_POLL_S)
            yield held

    def _mounted_where(self) -> str:
        points = mount_table.points_of(self.parameters.uuid)
        at = f" at {points[0]}" if points else ""
        return f"a mount of the volume is active{at}"

    def note_mount(self) -> None:
        """Say that a mount begins. Needs the mount lock."""
        now_ns = time.time_ns()
        with opened(self._open_lock("mount.lock")) as fd:
            self.disk.set_times(fd, now_ns, now_ns)

    def mount_mark(self) -> int:
        """A number that is another one after each beginning of a mount."""
        with opened(self._open_lock("mount.lock")) as fd:
            return os.fstat(fd).st_mtime_ns

    def _require_enabled(self) -> None:
        """Disabling may have begun between the opening of the volume and that of the lock."""
        if not is_there(self.base_fd, VOLUME_FILE):
            raise NotAVolume(f"{self.root}: the volume is being disabled")
        if os.path.lexists(os.path.join(self.base, SWITCHING)):
            finish = f"run `dedupd receive --finish {self.root}`"
            raise Busy(f"{self.root}: half received; {finish}", passes=False)

    def _open_lock(self, name: str, reads_only: bool = False) -> int:
        with named(os.path.join(self.root, BASE_NAME, name)):
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
            if reads_only and is_there(self.base_fd, name):
                # To create a file, even one that exists, waits while the file system is frozen.
                unwritable = takes_no_changes(name, self.base_fd)
                flags = (os.O_RDONLY if unwritable else os.O_RDWR) | os.O_CLOEXEC
            try:
                return os.open(name, flags, 0o600, dir_fd=self.base_fd)
            except OSError as error:
                if error.errno != errno.EROFS:
                    raise
            if reads_only:
                return open_to_read(self.base_fd, name)
        raise ReadOnlyVolume(
            f"{self.root}: the file system is read-only; to make it writable, run `mount -o"
            f" remount,rw`. `dedupd mount {self.root}` mounts the volume read-only"
        )

    def mount_client(self, safe_point: Callable[[], None] | None = None) -> ControlClient | None:
        """A connection to the process that serves this volume, if there is one.

        Raises Busy where a copy of it is served under the same uuid: a snapshot, or a
        restored backup. A request to that process would act on the files of the copy.
        ``safe_point`` is called while an answer takes its time; without, that is bounded.
        """
        try:
            client = ControlClient(socket_path(self.parameters.uuid))
        except ServiceUnreachable:
            return None
        with ExitStack() as on_failure:
            on_failure.callback(client.close)
            try:
                base_fd = client.volume_fd(safe_point)
            except ServiceUnreachable:
                return None
            with opened(base_fd):
                is_this = os.path.samestat(os.fstat(base_fd), os.fstat(self.base_fd))
            if not is_this:
                point = client.call("status")["mountpoint"]
                raise Busy(
                    f"{self.root}: a copy of this volume is mounted at {point}; unmount it first:"
                    " only one of the two can be in use"
                )
            on_failure.pop_all()
        return client


def _root_above(path: str) -> str:
    """The root of the volume that an absolute path lies in; empty if there is none.

    A ``.dedupd`` that a user has forged in the tree is ignored. If no volume is found, it is
    the first of these, which no command opens: the reason for that helps more. Raises
    PermissionError if a directory may not be searched: below its mount the root is its owner's
    alone.
    """
    first, directory = "", path
    while True:
        if _has_base(directory):
            if is_volume(directory):
                return directory
            first = first or directory
        if directory == "/":
            return first
        directory = os.path.dirname(directory)


def _has_base(directory: str) -> bool:
    try:
        return stat.S_ISDIR(os.stat(os.path.join(directory, BASE_NAME)).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


def _meant(path: str) -> str:
    """A guess at the volume that was meant by a path that is none, as a part of a message."""
    points = [mount.point for mount in mount_table.volumes()]
    for point in difflib.get_close_matches(path, points, 1):
        return f" (did you mean {point}?)"
    return ""


def _base_behind(mount: mount_table.Mount) -> int:
    """A descriptor of the ``.dedupd`` that a mount covers. Raises ServiceUnreachable."""
    try:
        return fetch_base(mount.volume)
    except ServiceUnreachable as error:
        if os.geteuid() != 0:
            remedy = "check whether another user, for example root, mounted it"
        else:
            remedy = f"`dedupd umount {mount.point}` removes the mount"
        raise ServiceUnreachable(f"{mount.point}: {error}; {remedy}") from error
