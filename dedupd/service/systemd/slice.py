"""Runs jobs under systemd in a separate slice, with the weights of its unit.

``systemd-run --scope`` registers its own process and then becomes the command. So the job keeps its
pid, descriptors and rights.
"""

import asyncio
import logging
import os
import shutil
from asyncio.subprocess import DEVNULL, PIPE

SLICE = "dedupd.slice"

STARTED_BY_SYSTEMD = "INVOCATION_ID"
"""A variable that systemd sets for the processes that it starts."""

ANSWER_S_MAX = 10.0
"""Usually, systemd answers in milliseconds."""

_log = logging.getLogger("dedupd")


def is_of_systemd() -> bool:
    """Return whether systemd has started this process."""
    return STARTED_BY_SYSTEMD in os.environ


async def command_in_slice() -> list[str]:
    """Return the start of a command that runs in the slice.

    Empty if systemd did not start this process. If systemd fails, empty with a warning: then the
    job still runs with the lowest priority.
    """
    if not is_of_systemd() or shutil.which("systemd-run") is None:
        return []
    command = ["systemd-run", "--quiet", "--collect", "--scope", f"--slice={SLICE}", "--"]
    try:
        process = await asyncio.create_subprocess_exec(
            *command, "true", stdin=DEVNULL, stdout=DEVNULL, stderr=PIPE
        )
        async with asyncio.timeout(ANSWER_S_MAX):
            reason = await _errors_of(process)
    except TimeoutError:
        process.kill()
        reason = f"no answer for {ANSWER_S_MAX:.0f} s"
    except OSError as error:
        reason = str(error)
    if not reason:
        return command
    _log.warning("jobs run outside %s: %s", SLICE, reason)
    return []


async def _errors_of(process: asyncio.subprocess.Process) -> str:
    """Return the error of a process after it has exited; empty if it succeeded."""
    _, errors = await process.communicate()
    if process.returncode == 0:
        return ""
    return errors.decode("utf-8", "replace").strip() or "systemd-run failed"
