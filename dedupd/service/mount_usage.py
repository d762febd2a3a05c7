"""The savings of a volume, measured in a process of its own, which walks through the whole tree."""

import asyncio
import json
import logging
import sys
import time

from dedupd.service.history import Savings
from dedupd.system.processes import child_environment

log = logging.getLogger("dedupd.service")


async def measure(path: str) -> Savings | None:
    """The figures of the volume at ``path`` as they are now; None where they cannot be had."""
    command = "-P", "-m", "dedupd.cli.main", "status", "--here", "--json", "--", path
    try:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env=child_environment(),
            start_new_session=True,
            cwd="/",
        )
    except OSError as error:  # no memory, no descriptors: later there may be
        log.warning("%s: what it saves could not be measured: %s", path, error)
        return None
    try:
        output, _ = await process.communicate()
    except asyncio.CancelledError:
        process.kill()
        await process.wait()
        raise
    if process.returncode != 0:
        log.warning("%s: what it saves could not be measured", path)
        return None
    return Savings.of_figures(json.loads(output), time.time())
