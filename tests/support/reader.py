"""The independent reader, in a process without dedupd; and a volume with all kinds of content."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from dedupd_core.config.policy import RefineMode
from dedupd_core.units import KIB
from jobs.backup.restore import Restore
from jobs.backup.source import BackupSource
from jobs.frame.run import JobRun
from jobs.refine.refine_job import Refine
from tests.hostile.test_copies import OPEN, WRITTEN, overwrite
from tests.support.crash import put_texts
from tests.support.lab import REPOSITORY, Lab, new_lab, noise, prose
from tests.support.trees import fill_with_all

READER = REPOSITORY / "dedupd_reader/reader.py"


def raw_reader(
    *arguments: str | bytes | Path, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[bytes]:
    """The reader in a process that cannot import the program."""
    return subprocess.run(
        [sys.executable, "-I", READER, *arguments],
        cwd="/",
        env=environment,
        capture_output=True,
        check=False,
        timeout=240,
    )


def reader(*arguments: str | bytes | Path) -> subprocess.CompletedProcess[str]:
    done = raw_reader(*arguments)
    output = done.stdout.decode(), done.stderr.decode()
    return subprocess.CompletedProcess(done.args, done.returncode, *output)


def rows_of(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    """What the reader has printed with ``--json``."""
    assert done.stderr == ""
    return [json.loads(line) for line in done.stdout.splitlines()]


def mixed_lab(root: Path) -> Lab:
    """A volume of every kind of file, with merged, forwarded, collected and copied records."""
    lab = new_lab(root)
    lab.set_policy(
        'min_age = "0s"\nmin_size = "1"\ncompaction_min_dead = 0.01\nrefine_age = "0s"\n'
    )
    fill_with_all(lab)
    for name in (WRITTEN, OPEN):
        lab.put(name, noise(400 * KIB + 77, len(name)))
    for number in range(12):
        lab.put(f"many/{number}", prose(90 * KIB, number))
        lab.put(f"gone/{number}", noise(60 * KIB, 100 + number))
        lab.put(f"versions/{number}", noise(300, number) + noise(90 * KIB, 50))
    put_texts(lab.data)
    lab.optimize()
    with lab.opened() as volume, volume.job_lock():
        report = Refine(volume, JobRun("refine"), RefineMode.FULL).run()
        assert report.new_deltas > 5 and report.new_with_dictionary > 5
    for name in (WRITTEN, OPEN):
        overwrite(lab, name, bytes(256 * KIB), 64 * KIB, seals=name == WRITTEN)
    shutil.rmtree(lab.data / "gone")
    lab.collect(full=True)
    lab.compact()
    lab.verify_clean()
    return lab


def restored(lab: Lab, out: Path) -> set[str]:
    """Takes everything out by the program; returns the files that it names as damaged."""
    out.mkdir()
    with BackupSource.found(str(lab.root)) as volume:
        job = Restore(volume, JobRun("restore"), str(out), privileges=True)
        report = job.run([b""])
    assert report.damaged == report.errors
    return {message.partition(":")[0] for message in report.messages}
