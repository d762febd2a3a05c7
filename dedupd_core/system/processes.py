"""Processes of this program: priority, cores, and how to start another one."""

import ctypes
import fcntl
import os
import sys
from contextlib import suppress
from enum import StrEnum
from pathlib import Path

from dedupd_core.system.control_socket import runtime_dir

REGISTER = "programs.lock"
"""The file in the directory of sockets that programs of root lock while they run."""


class IoPriority(StrEnum):
    """The I/O priority of a job: idle time only, low, or normal."""

    IDLE = "idle"
    LOW = "low"
    NORMAL = "normal"


def give_way(io_priority: IoPriority = IoPriority.IDLE) -> None:
    """Yield processor and disk to all other processes, until this process exits."""
    import psutil

    io_class, level = {
        IoPriority.IDLE: (psutil.IOPRIO_CLASS_IDLE, None),
        IoPriority.LOW: (psutil.IOPRIO_CLASS_BE, 7),
        IoPriority.NORMAL: (psutil.IOPRIO_CLASS_BE, 4),
    }[io_priority]
    process = psutil.Process()
    process.nice(19)
    try:
        process.ionice(io_class, level)
    except (OSError, psutil.Error):
        pass  # a kernel without I/O classes


def give_way_as_group() -> None:
    """Make the scheduler prefer all other sessions, if :func:`has_group_of_its_own`.

    In such a group, the nice value of :func:`give_way` only matters among the process's own
    threads. On a busy machine almost no time remains: this is for work that can wait.
    """
    if has_group_of_its_own():
        with suppress(OSError), open("/proc/self/autogroup", "w") as group:
            group.write("19")


_FIRST_CGROUP_NAMESPACE = 0xEFFF_FFFB
"""Its inode number: in another namespace, the name of a group does not show its place."""


def has_group_of_its_own() -> bool:
    """Return whether the scheduler treats the session of this process as one group.

    This process must lead the session (``sched(7)``, "The autogroup feature"). False if the process
    is in a control group for processors.
    """
    try:
        if os.stat("/proc/self/ns/cgroup").st_ino != _FIRST_CGROUP_NAMESPACE:
            return False
        if Path("/proc/sys/kernel/sched_autogroup_enabled").read_text().strip() != "1":
            return False
        if not Path("/proc/self/autogroup").read_text():  # it is in the group of the entire machine
            return False
        groups = Path("/proc/self/cgroup").read_text()
    except OSError:  # a kernel without the feature
        return False
    return os.getsid(0) == os.getpid() and not any(
        _has_processors(*line.split(":", 2)[1:]) for line in groups.splitlines()
    )


def _has_processors(controllers: str, path: str) -> bool:
    """Return whether a control group of this process, or a parent of it, is for processors."""
    if controllers:
        return "cpu" in controllers.split(",") and path != "/"
    group = Path("/sys/fs/cgroup", path.lstrip("/"))
    return any((one / "cpu.weight").exists() for one in (group, *group.parents))


def leave_callers_in_place() -> bool:
    """Keep programs that wait for an answer of this process on their processor, if possible.

    Otherwise undo it. Returns whether it is in effect. The scheduler wakes a program on another
    processor if one is free, while the thread that has just answered is still on this one. On a
    virtual machine the move takes 40 µs, six times the request itself. A processor counts as free
    if it runs only threads of the idle class. So all threads of this process, and those that they
    start, are put in that class, with the same disk priority as before. If the process
    :func:`has_group_of_its_own`, nothing changes among its threads or for other processes;
    otherwise, other processes would come first. This can change while a process runs, so callers
    must repeat the call.
    """
    is_alone = has_group_of_its_own()
    wanted = os.SCHED_IDLE if is_alone else os.SCHED_OTHER
    for thread in map(int, os.listdir("/proc/self/task")):
        with suppress(OSError):  # the thread has exited
            if os.sched_getscheduler(thread) != wanted:
                _keep_disk(thread)
                os.sched_setscheduler(thread, wanted, os.sched_param(0))
    return is_alone


def _keep_disk(thread: int) -> None:
    """Give a thread the disk's default class: otherwise the class follows its processor class."""
    import psutil

    with suppress(OSError, psutil.Error):  # a kernel without I/O classes
        psutil.Process(thread).ionice(psutil.IOPRIO_CLASS_BE, 4)


_CAP_SYS_ADMIN = 21

_PR_GET_SECUREBITS, _PR_SET_SECUREBITS = 27, 28
_NO_SETUID_FIXUP = 1 << 2
"""``SECBIT_NO_SETUID_FIXUP`` of ``capabilities(7)``."""


def keep_capabilities_of_all_users() -> bool:
    """Make this thread, and those that it starts, keep their capabilities when their user changes.
    Returns whether that succeeded; it needs ``CAP_SETPCAP``."""
    libc = ctypes.CDLL(None)
    bits = libc.prctl(_PR_GET_SECUREBITS, 0, 0, 0, 0)
    return bits >= 0 and not libc.prctl(_PR_SET_SECUREBITS, bits | _NO_SETUID_FIXUP, 0, 0, 0)


def sees_trusted_attributes() -> bool:
    """Return whether this process sees attributes ``trusted.*``, which are hidden from others.

    This needs a capability in the first user namespace; that of a container is not enough.
    """
    with open("/proc/self/uid_map", encoding="ascii") as file:
        if file.read().split() != ["0", "0", str(0xFFFF_FFFF)]:
            return False
    with open("/proc/self/status", encoding="ascii") as file:
        effective = next(line.split()[1] for line in file if line.startswith("CapEff:"))
    return bool(int(effective, 16) >> _CAP_SYS_ADMIN & 1)


_PR_SET_NAME = 15
_ARGUMENTS_FIELD = 48 - 3
"""The field of ``/proc/self/stat`` with the start of the arguments, counted after the name."""


def show_as(name: str, *arguments: str) -> None:
    """Make ``top`` show this process as ``name`` (15 bytes at most), and ``ps`` with arguments.
    They replace its own arguments, and are cut to the same length."""
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)
    with open("/proc/self/stat", encoding="utf-8", errors="replace") as file:
        fields = file.read().rpartition(")")[2].split()
    start, end = (int(field) for field in fields[_ARGUMENTS_FIELD : _ARGUMENTS_FIELD + 2])
    if 0 < start < end:  # 0 if the kernel hides it
        text = b"\0".join(map(os.fsencode, (name, *arguments)))[: end - start - 1]
        ctypes.memmove(start, text.ljust(end - start, b"\0"), end - start)


_registered: list[int] = []
"""The descriptor that holds the lock of this process."""


def register() -> None:
    """Hold the lock that identifies our programs to a guard (``dedupd/service/guard``).

    Only root can enter the directory, so no other user can hold it. The lock ends with the process.
    """
    if os.geteuid() == 0 and not _registered:
        with suppress(OSError):
            fd = os.open(os.path.join(runtime_dir(), REGISTER), os.O_RDONLY | os.O_CLOEXEC)
            _registered.append(fd)
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)


def make_register() -> None:
    """Create the file of :func:`register`. Raises OSError."""
    os.makedirs(runtime_dir(), mode=0o700, exist_ok=True)
    path = os.path.join(runtime_dir(), REGISTER)
    os.close(os.open(path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))


def lock_of_register() -> bytes:
    """Return the lock of :func:`register` in the form of ``/proc/locks``. Raises OSError."""
    found = os.stat(os.path.join(runtime_dir(), REGISTER))
    device = found.st_dev
    return f"{os.major(device):02x}:{os.minor(device):02x}:{found.st_ino}".encode()


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def child_environment() -> dict[str, str]:
    """Return the environment of a child process that runs this program in another directory."""
    path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path)
    return {**os.environ, "PYTHONPATH": path}


_KEPT = {
    *("PATH", "HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "TZ", "TZDIR"),
    "LD_LIBRARY_PATH",  # without it the interpreter may not start
    *("INVOCATION_ID", "JOURNAL_STREAM"),
}
_KEPT_PREFIXES = ("LC_", "XDG_", "DEDUPD_", "CEPH_")


def server_environment() -> dict[str, str]:
    """Return the environment of a child process that works for all users.

    It has no variables of a shell: a library of ``LD_PRELOAD`` could ignore syncs, options of
    Python could change how the program runs, and secrets would stay in memory.
    """
    kept = {*_KEPT, "PYTHONPATH"}
    if not sys.flags.ignore_environment:
        kept.add("PYTHONHOME")
    return {
        name: value
        for name, value in child_environment().items()
        if name in kept or name.startswith(_KEPT_PREFIXES)
    }
