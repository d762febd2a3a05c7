"""The savings of a volume, measured in a separate process that walks the entire tree."""

import asyncio
import json
import logging
import sys
import time

from dedupd.service.history import Savings
from dedupd.service.job_process import JobProcess
from dedupd_core.system.paths import explain
from dedupd_core.system.processes import child_environment

MEASURE_S = 86400.0
"""The oldest age of a volume's figures; measuring them requires a walk of its tree."""

log = logging.getLogger("dedupd.service")


def is_worth_measuring(savings: Savings | None, job: JobProcess) -> bool:
    """Return whether a job may have changed the savings, or their figures are too old."""
    if savings is None or savings.time_s < time.time() - MEASURE_S:
        return True
    report = job.report or {}
    if job.found_damage or savings.quarantined_records:
        return True
    return bool(job.job in ("compact", "unoptimize") or report.get("files_optimized"))


async def measure(path: str) -> Savings | None:
    """Measure the current figures of the volume at ``path``; None if that fails."""
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
    except OSError as error:  # out of memory or descriptors; a later attempt may succeed
        log.warning("%s: the savings could not be measured: %s", path, explain(error))
        return None
    try:
        output, _ = await process.communicate()
    except asyncio.CancelledError:
        process.kill()
        await process.wait()
        raise
    if process.returncode != 0:
        log.warning("%s: the savings could not be measured", path)
        return None
    return Savings.of_figures(json.loads(output), time.time())
