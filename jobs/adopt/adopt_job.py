"""The adopt job: adopts a copy of a volume, after it has checked each of its stubs.

At best, a copy has the attributes of its stubs, and the holes that the copying program preserved.
``jobs/adopt/proof.py`` describes what they prove.
"""

import os
from dataclasses import dataclass

from dedupd_core import native
from dedupd_core.errors import Damaged, DamagedStub
from dedupd_core.failpoint import define, reach
from dedupd_core.format.stub import StubAttribute
from dedupd_core.stub.instance import record_instance
from dedupd_core.system.files import opened
from dedupd_core.system.paths import open_beneath, show_path
from dedupd_core.units import counted
from jobs.adopt.proof import NOT_TRUSTED, TRUSTED_WITH, VolumeCopy, has_chunks, prove
from jobs.frame.job import FileReport, Job
from jobs.frame.run import JobRun
from jobs.tree.walk import walk

_BOUND = define("adopt.bound", "the attribute of one more stub is bound to the copy, not synced")
_SYNCED = define("adopt.synced", "all attributes are durable, the volume is still a copy")
_RECORDED = define("adopt.recorded", "the copy is a volume")

ADOPTED, NOTHING = "adopted", "nothing to adopt: this is the volume itself"
_GOOD_COPIES = "docs/guide/backup.md lists the programs that copy a volume completely"


@dataclass(slots=True)
class AdoptReport(FileReport):
    """The results of a run.

    ``adopted`` stubs belong to the volume now, ``own`` stubs did before. ``untrusted`` stubs have
    local blocks, and are adopted with ``trust_holes``; ``spoilt`` stubs were corrupted in copying.
    """

    job: str = "adopt"
    trust_holes: bool = False
    stubs: int = 0
    plain_files: int = 0
    own: int = 0
    adopted: int = 0
    untrusted: int = 0
    spoilt: int = 0


class Adopt(Job[AdoptReport]):
    """Adopts a copy. Needs both of its locks; may be stopped and run again at any point."""

    def __init__(self, volume: VolumeCopy, run: JobRun, *, trust_holes: bool = False) -> None:
        """``trust_holes``: the copying program preserved all holes, and added none."""
        super().__init__(volume, run, AdoptReport(trust_holes=trust_holes))
        self._copy = volume
        self._unproved: list[tuple[bytes, str]] = []

    def run(self) -> AdoptReport:
        """Bind each proved stub, then record that the volume belongs here.

        An unproved stub is reported and stays unreadable. Raises Cancelled, and Damaged if no stub
        is good: then it stays a copy.
        """
        volume, run, report = self._copy, self._run, self._report
        run.update(phase="checking stubs")
        unreadable: list[str] = []
        has_content = False
        for found in walk(volume, b"", unreadable, run.safe_point):
            if found.is_stub:
                report.stubs += 1
                self._take(found.path)
            else:
                report.plain_files += 1
                has_content |= found.identity.size > 0
            run.update(files=report.stubs + report.plain_files, done=report.stubs)
            run.safe_point()
        run.findings.add(*unreadable)
        self._decide_unproved()
        if volume.is_the_volume:
            report.outcome = ADOPTED if report.adopted else NOTHING
            if report.adopted:
                volume.disk.sync_file_system(volume.data_fd)
            return self.report()
        self._refuse_ruins(has_content)
        volume.disk.sync_file_system(volume.data_fd)
        reach(_SYNCED)
        record_instance(volume.base_fd, volume.instance, volume.disk)
        reach(_RECORDED)
        report.outcome = ADOPTED
        return self.report()

    def _refuse_ruins(self, has_content: bool) -> None:
        """Raise Damaged if nothing in the copy is good."""
        volume, report = self._copy, self._report
        name = volume.space.name.decode()
        if not report.stubs and has_content and has_chunks(volume):
            raise Damaged(
                f"{volume.root}: none of its {counted(report.plain_files, 'file')} has the"
                f" attribute {name}, but the store has chunks. The program that made the copy did"
                " not copy the attributes, so the contents of the stubs are missing;"
                f" {_GOOD_COPIES}"
            )
        if report.stubs and not report.own and not report.adopted:
            first = self._run.findings.messages[0]
            raise Damaged(
                f"{volume.root}: none of its {counted(report.stubs, 'stub')} can be adopted, the"
                f" first: {first}. {_GOOD_COPIES}"
            )

    def _take(self, path: bytes) -> None:
        volume, report, where = self._copy, self._report, show_path(path)
        try:
            with opened(open_beneath(volume.data_fd, path, os.O_RDONLY | os.O_NONBLOCK)) as fd:
                value = native.system.fgetxattr(fd, volume.space.name)
                stub, is_own, verdict = prove(volume, fd, value or b"", where)
                if not verdict.reason and not is_own:
                    self._bind(fd, stub)
        except (DamagedStub, OSError) as error:
            report.spoilt += 1
            self._run.findings.add_error(path, error)
            return
        report.own += is_own
        if verdict.is_spoilt:
            report.spoilt += 1
            self._run.findings.add(f"{where}: {verdict.reason}")
        elif verdict.reason:
            self._unproved.append((path, f"{verdict.reason}; {TRUSTED_WITH}"))

    def _bind(self, fd: int, stub: StubAttribute) -> None:
        self._copy.stub_files.write(fd, stub)
        self._report.adopted += 1
        reach(_BOUND)

    def _decide_unproved(self) -> None:
        """Adopt unproved stubs if the user trusts the holes, and no stub contradicts this."""
        volume, run, report = self._copy, self._run, self._report
        is_believed = report.trust_holes and not report.spoilt
        for path, reason in run.checked(self._unproved):
            where = show_path(path)
            if not is_believed:
                report.untrusted += 1
                run.findings.add(f"{where}: {NOT_TRUSTED if report.trust_holes else reason}")
                continue
            try:
                with opened(open_beneath(volume.data_fd, path, os.O_RDONLY | os.O_NONBLOCK)) as fd:
                    # The user's claim is not about another file that may have the name now.
                    value = native.system.fgetxattr(fd, volume.space.name)
                    stub, is_own, verdict = prove(volume, fd, value or b"", where)
                    if not verdict.is_spoilt and not is_own:
                        self._bind(fd, stub)
            except (DamagedStub, OSError) as error:
                report.spoilt += 1
                run.findings.add_error(path, error)
                continue
            if verdict.is_spoilt:
                report.spoilt += 1
                run.findings.add(f"{where}: {verdict.reason}")
