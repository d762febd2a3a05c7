"""A test of a suite is ended with all its processes."""

import subprocess
import sys

RUN = """
import psutil
from tests.suites import commands

commands.adopt_orphans()
finished = commands.run(["sh", "-c", {script!r}], {limit_s})
print(finished.status, finished.output.strip(), len(psutil.Process().children(recursive=True)))
"""


def ran(script: str, limit_s: float) -> str:
    """Status, output and how many processes are left; in a process that adopts orphans."""
    return printed(RUN.format(script=script, limit_s=limit_s))


def printed(code: str) -> str:
    """What a Python program prints."""
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    return result.stdout.strip()


def test_a_command_that_ends_leaves_no_process() -> None:
    assert ran("setsid sleep 1000 & echo done; exit 3", 60) == "3 done 0"


def test_a_process_started_while_a_command_runs_is_not_ended_with_it() -> None:
    code = """
import subprocess
from tests.suites import commands

commands.adopt_orphans()
with commands.Running(["cat", "/dev/zero"]):
    beside = subprocess.Popen(["sleep", "1000"])
print(beside.poll())
beside.kill()
"""
    assert printed(code) == "None"


def test_a_process_that_does_not_end_is_named() -> None:
    # A process that waits for a file system for ever takes no signal: nor does this one.
    code = """
import psutil
from tests.suites import commands

commands.END_WAIT_S = 0
psutil.Process.send_signal = lambda *_: None
commands.adopt_orphans()
is_asleep = '[ "$(cat /proc/$!/comm)" = sleep ]'
script = f"setsid sleep 2 & until {is_asleep}; do :; done"
print(commands.run(["sh", "-c", script], 60).stuck)
"""
    assert "sleep (" in printed(code)


def test_a_command_whose_time_is_over_is_ended_with_what_it_has_started() -> None:
    script = "(setsid sh -c 'echo on; exec sleep 1000' &) ; sleep 1000"
    assert ran(script, 1) == "None on 0"
