"""The priority of processes: in the scheduler's groups, and among their own threads."""

import subprocess
import sys
from pathlib import Path

import pytest

AUTOGROUPS = Path("/proc/sys/kernel/sched_autogroup_enabled")

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(
        not AUTOGROUPS.exists()
        or AUTOGROUPS.read_text().strip() != "1"
        or any(Path("/sys/fs/cgroup").glob("cpu.weight")),
        reason="the scheduler gives sessions no groups here",
    ),
]


def said(program: str, *, leads_session: bool) -> list[str]:
    """The lines that a Python program prints in a process of its own."""
    text = f"import os, threading\nfrom dedupd_core.system import processes\n{program}"
    done = subprocess.run(
        [sys.executable, "-c", text],
        start_new_session=leads_session,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


CLASSES = """
ended = threading.Event()
before = threading.Thread(target=ended.wait)
before.start()
print(processes.leave_callers_in_place())
after = threading.Thread(target=ended.wait)
after.start()
import psutil
for thread in (os.getpid(), before.native_id, after.native_id):
    print(os.sched_getscheduler(thread) == os.SCHED_IDLE, psutil.Process(thread).ionice().ioclass)
ended.set()
"""


def test_all_threads_of_a_group_of_its_own_are_idle_to_the_scheduler_and_not_to_the_disk() -> None:
    is_done, *classes = said(CLASSES, leads_session=True)
    assert is_done == "True"
    assert classes == ["True 2"] * 3  # best effort


BACK = """
processes.leave_callers_in_place()
processes.has_group_of_its_own = lambda: False
print(processes.leave_callers_in_place())
print(os.sched_getscheduler(0) == os.SCHED_OTHER)
"""


def test_a_process_that_loses_its_group_is_as_before() -> None:
    assert said(BACK, leads_session=True) == ["False", "True"]


def test_a_process_that_shares_its_group_stays_as_it_is() -> None:
    is_done, *classes = said(CLASSES, leads_session=False)
    assert is_done == "False"
    assert [line.split()[0] for line in classes] == ["False"] * 3


GROUP = (
    "processes.give_way_as_group(); print(open('/proc/self/autogroup').read().split('nice ')[1])"
)


def test_a_job_with_a_group_of_its_own_comes_last_with_all_of_it() -> None:
    assert said(GROUP, leads_session=True)[0] == "19"


def test_a_job_of_a_shell_leaves_the_group_of_the_shell_alone() -> None:
    shell = ["sh", "-c", '"$0" -c "$1"; cat /proc/$$/autogroup']
    program = f"from dedupd_core.system import processes\n{GROUP}"
    lines = subprocess.run(
        [*shell, sys.executable, program],
        start_new_session=True,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout.splitlines()
    assert lines[0] == "0"
    assert lines[-1].endswith("nice 0")


WITHOUT = """
from pathlib import Path
said = Path.read_text
Path.read_text = lambda path: "" if path.name == "autogroup" else said(path)
print(processes.has_group_of_its_own())
"""


def test_a_leader_in_the_group_of_the_whole_machine_has_none_of_its_own() -> None:
    """That of the first processes; the kernel's file says nothing of it."""
    assert said("print(processes.has_group_of_its_own())", leads_session=True) == ["True"]
    assert said(WITHOUT, leads_session=True) == ["False"]
