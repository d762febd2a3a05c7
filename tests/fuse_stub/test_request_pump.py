"""A reader that holds the interpreter is freed from a read that nothing will come for."""

import errno
import subprocess
import sys
import textwrap

_READ_OF_NOTHING = textwrap.dedent(
    """
    import ctypes, os, resource, threading
    from dedupd import native

    read_fd, write_fd = os.pipe()
    if {watched}:
        native.system.interrupt_reads(read_fd, threading.get_native_id())
    if {crowded}:
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, most))
    read = ctypes.PyDLL(None, use_errno=True).read  # keeps the GIL, as pyfuse3 does
    assert read({fd}, ctypes.create_string_buffer(1), 1) == -1
    print(ctypes.get_errno())
    """
)


def _outcome(fd: str, watched: bool, timeout: float, *, crowded: bool = False) -> str:
    """What a process that reads ``fd``, to which nothing is ever written, says in the end.

    ``crowded``: it has no descriptor left.
    """
    program = _READ_OF_NOTHING.format(fd=fd, watched=watched, crowded=crowded)
    return subprocess.run(
        [sys.executable, "-c", program], check=True, stdout=-1, text=True, timeout=timeout
    ).stdout.strip()


def _hangs(fd: str, watched: bool) -> bool:
    try:
        _outcome(fd, watched, timeout=2)
    except subprocess.TimeoutExpired:
        return True
    return False


def test_a_read_that_waits_with_the_gil_is_interrupted() -> None:
    assert _outcome("read_fd", watched=True, timeout=60) == str(errno.EINTR)


def test_a_read_is_interrupted_also_where_descriptors_have_run_out() -> None:
    assert _outcome("read_fd", watched=True, timeout=60, crowded=True) == str(errno.EINTR)


def test_it_would_wait_for_ever_otherwise() -> None:
    assert _hangs("read_fd", watched=False)


def test_reads_of_other_descriptors_are_left_alone() -> None:
    assert _hangs("os.pipe()[0]", watched=True)
