"""Where jobs run under systemd: in a slice of their own, with the weights of its unit.

``systemd-run --scope`` registers the process that it is, and then becomes the command: the job has
the pid, the descriptors and the rights that it would have had without.
"""

import asyncio
import logging
import os
import shutil
from asyncio.subprocess import DEVNULL, PIPE

SLICE = "dedupd.slice"

STARTED_BY_SYSTEMD = "INVOCATION_ID"
"""systemd sets it for the processes that it starts."""

ANSWER_S_MAX = 10.0
"""systemd answers in milliseconds, unless it does not."""

_log = logging.getLogger("dedupd")


def is_of_systemd() -> bool:
    """Whether systemd has started this process."""
    return STARTED_BY_SYSTEMD in os.environ


async def command_in_slice() -> list[str]:
    """The words before a command that make it run in the slice.

    Nothing where systemd did not start this process. Where it did and does not do it, nothing
    either, and a warning: the job has the lowest priority by itself.
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
    """Why a process failed, once it has ended; empty where it did not."""
    _, errors = await process.communicate()
    if process.returncode == 0:
        return ""
    return errors.decode("utf-8", "replace").strip() or "systemd-run failed"
