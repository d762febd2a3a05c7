"""Checks of a machine, of a volume, or of a directory that may become one, with explanations."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from dedupd.service.client import ServiceClient
from dedupd.service.config import config_path, load_config
from dedupd_core.config.policy import Policy, SharedExtents
from dedupd_core.config.policy_file import wrong_keys
from dedupd_core.config.reserve import Reserve
from dedupd_core.errors import (
    ConfigurationError,
    DedupdError,
    PolicyError,
    UnsuitableFileSystem,
    UsageError,
)
from dedupd_core.shared.fellows import unknown_members
from dedupd_core.system import mount_table
from dedupd_core.system.disk import Disk
from dedupd_core.system.file_system import SUPPORTED, file_system_of
from dedupd_core.system.files import opened
from dedupd_core.system.nfs_exports import exports, faults, in_the_way
from dedupd_core.system.path_users import occupants
from dedupd_core.system.paths import explain, show_path
from dedupd_core.units import GIB, counted, format_size
from dedupd_core.volume.base_directory import BASE_NAME, has_own_base, open_base
from dedupd_core.volume.enabling.place import (
    ONE_FILE_SYSTEM,
    described,
    protected_entries,
    refuse_base_of_others,
    refuse_inside_volume,
    refuse_place,
    shortened,
    strangers,
    things_inside,
    unreachable_inside,
)
from dedupd_core.volume.enabling.probe import accepted_by, obstacle_of, probe
from dedupd_core.volume.hints import HintKey
from dedupd_core.volume.volume import Volume
from fuse_stub.kernel.ring_offer import ring_offer, way_of
from fuse_stub.mounts.mount_points import covered, is_dead_mount
from jobs.tree.candidates import SHARED_BELOW
from jobs.usage.store_figures import kept_elsewhere
from jobs.usage.volume_figures import RUNS, shared_left

FREE_BYTES_MIN = 1 * GIB
"""A job writes at most one container before it frees space."""

FREE_SHARE_MIN = 0.05

SHARED_FILE_SYSTEMS = {
    *("nfs", "nfs4", "cifs", "smb3", "ceph"),
    *("glusterfs", "fuse.glusterfs", "gfs2", "ocfs2", "lustre"),
}
"""File systems on which another host may change files of a volume without notice to this host."""


class Verdict(StrEnum):
    FINE = "fine"
    WARNING = "warning"
    BAD = "bad"


@dataclass(frozen=True, slots=True)
class Check:
    """The subject of a check, its result and a remedy."""

    what: str
    verdict: Verdict
    found: str
    remedy: str = ""


Result = tuple[Verdict, str, str]
"""The verdict, the finding and the remedy."""


def _fine(found: str) -> Result:
    return Verdict.FINE, found, ""


def _warning(found: str, remedy: str) -> Result:
    return Verdict.WARNING, found, remedy


def _bad(found: str, remedy: str) -> Result:
    return Verdict.BAD, found, remedy


def check_machine() -> list[Check]:
    """Check whether the service can run on this machine, and with which limitations."""
    checks = {
        "FUSE": _fuse,
        "pressure information": _pressure,
        "configuration": _configuration,
        "service": _service,
    }
    return [Check(what, *look()) for what, look in checks.items()]


def _fuse() -> Result:
    try:
        os.close(os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC))
    except FileNotFoundError:
        return _bad("/dev/fuse does not exist", "run `modprobe fuse`")
    except OSError as error:
        return _bad(f"/dev/fuse: {error.strerror}", "run this as root, or grant access")
    if shutil.which("fusermount3") is None:
        return _bad("fusermount3 is not installed", "install the package fuse3")
    return _fine(f"/dev/fuse is accessible; {ring_offer()}")


def _pressure() -> Result:
    if os.path.exists("/proc/pressure/io"):
        return _fine("pressure information is available")
    return _warning(
        "/proc/pressure does not exist, so jobs yield only to users and to processor load",
        "start the kernel with psi=1",
    )


def _configuration() -> Result:
    path = config_path()
    if not os.path.exists(path):
        return _fine(f"no file; the service needs one: `touch {path}` creates it with the defaults")
    try:
        config = load_config(path)
    except ConfigurationError as error:
        return _warning(str(error), "correct it; see docs/guide/service.md")
    return _fine(f"{path} lists {counted(len(config.volumes), 'volume')}")


def _service() -> Result:
    client = ServiceClient.find()
    if client is None:
        return _warning(
            "not running: scheduled jobs do not run", "run `systemctl enable --now dedupd`"
        )
    try:
        service = client.get("/v1/service")
    except DedupdError as error:
        return _warning(str(error), "run this as root")
    if service["problems"]:
        return _bad("; ".join(service["problems"]), "see `dedupd status`")
    return _fine(f"{service['status']}; {guard_text(service['guard'])}")


def check_path(path: str) -> list[Check]:
    """Check whether a directory is or can become a safe volume. Raises UsageError."""
    root = os.path.realpath(path)
    if is_dead_mount(root):
        found = "the mount process has died: users get errors"
        return [Check("mount", Verdict.BAD, found, "run `dedupd mount` for the volume again")]
    if not os.path.isdir(root):
        raise UsageError(f"{path}: no such directory")
    mounted = mount_table.find(root)
    checks = {"file system": _file_system, "free space": _free_space}
    if mounted is not None or has_own_base(root):
        checks |= {
            "volume": _volume,
            "store": _store,
            "policy": _policy,
            **({"directory below it": _covered} if mounted is None else {}),
            "blocks shared with other files": _shared,
            "the store in snapshots": _store_in_snapshots,
            "other file systems in it": _within,
            "NFS exports": _exports,
            "backups": _backups,
        }
    else:
        checks |= {
            "place": _place,
            "enclosing volumes": _above,
            "volumes and mounts in it": _below,
            "entries that cannot move": _protected,
            "open files": _occupied,
            "NFS exports": _exported_already,
            "holes and attributes": _probe,
        }
    return [Check(what, *look(root)) for what, look in checks.items()]


@contextmanager
def _opened_below(root: str) -> Iterator[tuple[int, list[str]]]:
    """Yield a descriptor of a directory, or of the base directory of a mounted volume; and the
    obstacles that the administrator accepted for it. Raises DedupdError, OSError."""
    if mount_table.find(root) is None:
        with opened(os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as fd:
            if not has_own_base(root):
                yield fd, []
                return
            with opened(open_base(fd)) as base_fd:
                yield base_fd, accepted_by(base_fd)
        return
    with Volume.open(root) as volume:
        yield volume.base_fd, accepted_by(volume.base_fd)


def _file_system(root: str) -> Result:
    try:
        with _opened_below(root) as (fd, accepted):
            found_here, obstacle = file_system_of(fd), obstacle_of(fd)
    except (DedupdError, OSError) as error:
        return _warning(f"not checked: {explain(error)}", "run this as root")
    kind = found_here.kind
    if kind in SHARED_FILE_SYSTEMS:
        return _bad(
            f"{kind}: other hosts can change files at the same time",
            "put the volume on a file system that only this machine mounts",
        )
    if obstacle is None and found_here.options & {"nobarrier", "barrier=0"}:
        return _warning(
            f"{kind}, mounted with nobarrier: a power failure can destroy synced data",
            "mount it without nobarrier, unless the disk has a battery-backed cache",
        )
    if obstacle is None:
        return _fine(kind)
    found = f"{obstacle.name} {obstacle.why}"
    if obstacle.name in accepted:
        return _warning(f"{found}; accepted with --force", f"use {SUPPORTED}")
    return _bad(found, f"use {SUPPORTED} with their default settings")


def _free_space(root: str) -> Result:
    space = os.statvfs(root)
    free, whole = space.f_bavail * space.f_frsize, space.f_blocks * space.f_frsize
    found = f"{format_size(free)} of {format_size(whole)} free"
    reserve_bytes = _reserve(root).bytes_of(whole)
    if free <= reserve_bytes:
        return _bad(
            f"{found}, and {format_size(reserve_bytes)} are reserved for users: no job can start",
            f"free {format_size(reserve_bytes - free + FREE_BYTES_MIN)}, or reduce the policy key"
            " `reserve`",
        )
    least = min(FREE_BYTES_MIN, whole // 5)  # on a small file system, 1 GiB would be most of it
    if free < least:
        remedy = f"free {format_size(least - free)}: jobs write before they free space"
        return _bad(found, remedy)
    if free < FREE_SHARE_MIN * whole:
        return _warning(found, "file systems slow down when full")
    return _fine(found)


def _reserve(root: str) -> Reserve:
    """Return the reserve of the policy, or that of a new volume."""
    try:
        with Volume.open(root) as volume:
            return volume.policy().reserve
    except (DedupdError, OSError):
        return Policy().reserve


def _volume(root: str) -> Result:
    """Check that the volume can be opened: then this version knows its format."""
    try:
        with Volume.open(root) as volume:
            chunking = volume.parameters.chunking
            found = f"{volume.parameters.uuid}, chunks of up to {format_size(chunking.max_bytes)}"
            points = mount_table.points_of(volume.parameters.uuid)
            is_read_only = volume.is_read_only
            way = way_of(volume) if points else ""
    except (DedupdError, OSError) as error:
        return _bad(explain(error), "see docs/design/format.md")
    if is_read_only:
        what = "the file system is read-only: files are readable, but jobs cannot run"
        return _warning(f"{found}; {what}", "find the cause (`dmesg`), then `mount -o remount,rw`")
    if not points:
        return _warning(f"{found}, not mounted", f"run `dedupd mount {root}`")
    if os.statvfs(points[0]).f_flag & os.ST_RDONLY:
        remedy = f"run `dedupd umount {root}`, then `dedupd mount {root}`"
        return _warning(f"{found}, mounted read-only at {points[0]}", remedy)
    return _fine(f"{found}, mounted at {points[0]}{way}")


def _policy(root: str) -> Result:
    try:
        with Volume.open(root) as volume:
            where, text = volume.policy_where, volume.policy_text()
            volume.policy()
    except PolicyError as error:
        wrong = wrong_keys(text, where)
        if not wrong:
            return _bad(str(error), f"run `dedupd policy --edit {root}`")
        remedies = [f"`dedupd policy {root} --reset {key}`" for key in wrong]
        return _bad(str(error), f"set a valid value, or run {', '.join(remedies)}")
    except (DedupdError, OSError) as error:
        return _warning(f"not checked: {explain(error)}", "")
    return _fine("all keys are valid")


def _within(root: str) -> Result:
    """Find subvolumes and mounts in the tree. The mount refuses to make them, but root can make
    them in the file system below."""
    try:
        with Volume.open(root) as volume:
            data = f"/proc/self/fd/{volume.data_fd}"
            found = list(unreachable_inside(os.readlink(data), data))
    except (DedupdError, OSError) as error:
        return _warning(f"not checked: {explain(error)}", "")
    if found:
        what = f"{counted(len(found), 'place')} not accessible to users (EXDEV): {described(found)}"
        return _bad(what, "move them out of the volume, or replace them by directories")
    return _fine("none")


def _exports(root: str) -> Result:
    try:
        with Volume.open(root) as volume:
            uuid = volume.parameters.uuid
    except (DedupdError, OSError) as error:
        return _warning(f"not checked: {explain(error)}", "")
    told = faults(root, os.path.join(root, BASE_NAME), uuid, exports())
    if not told:
        return _fine("no conflicting NFS export")
    verdict = _bad if told[0].is_bad else _warning
    return verdict("; ".join(one.found for one in told), told[0].remedy)


def _exported_already(root: str) -> Result:
    if not (found := in_the_way(root, exports())):
        return _fine("no export by the kernel's NFS server")
    what = f"currently exported: {shortened(found)}; the file handles of clients bypass the mount"
    return _bad(what, "remove the export, and restart the NFS server; then see docs/guide/nfs.md")


def _backups(root: str) -> Result:
    """Show how to configure backups, which have several pitfalls."""
    return _fine(ONE_FILE_SYSTEM)


def _place(root: str) -> Result:
    try:
        refuse_place(root, root)
    except UsageError as error:
        return _bad(str(error), "choose the directory of a share")
    return _fine("not a part of the system")


def _shared(root: str) -> Result:
    try:
        with Volume.open(root) as volume:
            left = shared_left(volume.hints.latest(HintKey.RUNS, RUNS))
    except (DedupdError, OSError) as error:
        return _warning(f"unknown: {explain(error)}", "see the previous checks")
    if not left.files:
        return _fine("the last optimize run found no file that shares blocks with other files")
    return _warning(
        f"{counted(left.files, 'file')}, {format_size(left.bytes)}: {SHARED_BELOW}",
        "they are skipped; delete snapshots, or see `shared_extents` in docs/guide/policy.md",
    )


def _store_in_snapshots(root: str) -> Result:
    try:
        with Volume.open(root) as volume:
            kept = kept_elsewhere(volume)
            skips = volume.policy().compaction_shared is SharedExtents.SKIP
    except (DedupdError, OSError) as error:
        return _warning(f"unknown: {explain(error)}", "see the previous checks")
    if not kept:
        return _fine("no reported snapshot keeps blocks of the store")
    return _warning(
        f"snapshots keep {format_size(kept)} of the store: space that gc and compact free there"
        " becomes available when the snapshots are deleted"
        + (", and compact skips it until then" if skips else ""),
        "delete old snapshots, or see `compaction_shared` in docs/guide/policy.md",
    )


def _store(root: str) -> Result:
    try:
        with Volume.open(root) as volume:
            unknown = list(unknown_members(volume))
            where = "the volume's own" if volume.shared is None else f"shared: {volume.store.where}"
    except (DedupdError, OSError) as error:
        return _bad(
            f"cannot be opened: {explain(error)}",
            "make it accessible: without it, no stub can be read",
        )
    if unknown:
        return _bad(
            "; ".join(unknown),
            "make it accessible: until then nothing is collected, and the store grows",
        )
    return _fine(where)


def _covered(root: str) -> Result:
    hidden = covered(root)
    if hidden:
        return _warning(hidden, "move them away, or into the mounted volume")
    return _fine("only the closed .dedupd")


def _above(root: str) -> Result:
    try:
        refuse_inside_volume(root, root)
    except UsageError as error:
        return _bad(str(error), "choose another directory: volumes cannot be nested")
    return _fine("none")


def _below(root: str) -> Result:
    found = list(things_inside(root))
    if any(not one.is_harmless for one in found):
        return _bad(described(found), "remove each of them, or choose a directory without them")
    return _fine(strangers(found) or "none")


def _protected(root: str) -> Result:
    try:
        with opened(os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as fd:
            refuse_base_of_others(root, fd)
            names = sorted(show_path(name) for name in protected_entries(fd))
    except UsageError as error:
        return _bad(str(error), "rename the entry")
    except OSError as error:
        return _warning(f"not checked: {error.strerror}", "run this as root")
    detail = f"immutable or append-only: {shortened(names)}"
    return _bad(detail, "run `chattr -i -a` on them") if names else _fine("none")


def _occupied(root: str) -> Result:
    for found in occupants(root):
        return _bad(found, "close them before you enable the volume")
    return _fine("none")


def _probe(root: str) -> Result:
    """Try the features of the file system that stubs need, and remove the test files."""
    before = os.stat(root)
    try:
        directory = tempfile.mkdtemp(prefix=".dedupd-doctor-", dir=root)
    except OSError as error:
        return _warning(f"not tested: {error.strerror}", "run this as root")
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        attribute = probe(fd, root, Disk())
    except UnsuitableFileSystem as error:
        return _bad(str(error), f"use {SUPPORTED}")
    except OSError as error:
        return _bad(f"{root}: {error.strerror}", "free some space")
    finally:
        os.close(fd)
        shutil.rmtree(directory)
        os.utime(root, ns=(before.st_atime_ns, before.st_mtime_ns))
    return _fine(f"suitable; stubs are marked by {attribute}")


def guard_text(guard: dict[str, Any]) -> str:
    """Describe the state of the guard, as the service sees it."""
    if not guard["wanted"]:
        return "guard below mounts: off (guard_below in dedupd.toml)"
    if guard["problem"]:
        return f"guard below mounts: inactive, {guard['problem']}"
    if not guard["guarded"]:
        return "guard below mounts: on, but no volume is mounted"
    refused = counted(guard["refused"], "open")
    return f"guard below mounts: on for {', '.join(guard['guarded'])}, {refused} refused"
