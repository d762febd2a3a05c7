"""Where jobs run under systemd: in a slice of their own, with the weights of its unit.

``systemd-run --scope`` registers the process that it is, and then becomes the command: the job has
the pid, the descriptors and the rights that it would have had without.
"""

import asyncio
import logging
import os
import shutil
from asyncio.subprocess import DEVNULL, PIPE

SLICE = "dedupd-jobs.slice"

STARTED_BY_SYSTEMD = "INVOCATION_ID"
"""systemd sets it for what it starts."""

_log = logging.getLogger("dedupd")


async def command_in_slice() -> list[str]:
    """What to put before a command so that it runs in the slice.

    Nothing where systemd did not start this process. Where it did and does not do it, nothing
    either, and a warning: the job has the lowest priority by itself.
    """
    if STARTED_BY_SYSTEMD not in os.environ or shutil.which("systemd-run") is None:
        return []
    command = ["systemd-run", "--quiet", "--collect", "--scope", f"--slice={SLICE}", "--"]
    try:
        process = await asyncio.create_subprocess_exec(
            *command, "true", stdin=DEVNULL, stdout=DEVNULL, stderr=PIPE
        )
        _, errors = await process.communicate()
    except OSError as error:
        errors = str(error).encode()
    else:
        if process.returncode == 0:
            return command
    reason = errors.decode("utf-8", "replace").strip()
    _log.warning("jobs run outside of %s: %s", SLICE, reason or "systemd-run failed")
    return []
