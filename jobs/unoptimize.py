"""The unoptimize job: expands one stub, the stubs of a subtree, or all stubs into plain files."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from dedupd_core import native
from dedupd_core.errors import Damaged, DedupdError, NoSpace, OverQuota, ServiceUnreachable
from dedupd_core.system.paths import explain, show_path
from dedupd_core.units import align_down, align_up, format_size
from dedupd_core.volume.restore import missing_data, restore_file
from dedupd_core.volume.volume import Volume
from jobs.frame.job import FileReport, Job
from jobs.frame.run import Cancelled, JobRun
from jobs.tree.walk import TreeFile, walk


@dataclass(slots=True)
class UnoptimizeReport(FileReport):
    """The results of a run."""

    job: str = "unoptimize"
    files_restored: int = 0
    logical_bytes: int = 0


FILE_S = 0.01
BYTES_PER_S = 100e6
"""Time per file, and speed for large files, measured on a virtual disk (docs/guide/leaving.md): a
first estimate of the duration of a run."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The work of a run, and whether there is room for it."""

    files: int
    need_bytes: int
    room_bytes: int
    """Free bytes beyond the reserve of the policy."""

    @property
    def missing_bytes(self) -> int:
        """Return the bytes to free first; 0 if the room suffices."""
        return max(0, self.need_bytes - self.room_bytes)

    @property
    def expected_s(self) -> float:
        return self.files * FILE_S + self.need_bytes / BYTES_PER_S


class Unoptimize(Job[UnoptimizeReport]):
    """Expands every stub below a path of the tree. Needs the job lock; may be repeated."""

    needs_containers = False

    def __init__(
        self, volume: Volume, run: JobRun, below: bytes = b"", since_s: float | None = None
    ) -> None:
        """``since_s`` (seconds since 1970), if given: only files whose ctime is not earlier. They
        include all files that became stubs after that time."""
        super().__init__(volume, run, UnoptimizeReport())
        self._below = below
        self._since_ns = None if since_s is None else int(since_s * 1e9)

    def run(self) -> UnoptimizeReport:
        """Expand the stubs. A stub with damaged content stays a stub, and is reported.

        Raises Cancelled, and NoSpace before any change if the space cannot suffice.
        """
        volume, run, report = self._volume, self._run, self._report
        run.update(phase="restoring", total=self._require_space())
        unreadable: list[str] = []
        filled_bytes = 0
        for found in self._stubs(unreadable):
            try:
                filled_bytes += restore_file(volume, found.path, run.safe_point).filled_bytes
            except OverQuota as error:
                # This quota is of one user or directory; continue with the others.
                run.findings.add(_named(show_path(found.path), str(error)))
                continue
            except (Cancelled, NoSpace, ServiceUnreachable):
                raise
            except (DedupdError, OSError) as error:
                run.findings.add(_named(show_path(found.path), explain(error)))
                continue
            report.files_restored += 1
            report.logical_bytes += found.identity.size
            run.update(done=filled_bytes, files=report.files_restored)
            run.safe_point()
        run.findings.add(*unreadable)
        return self.report()

    def _stubs(self, errors: list[str] | None = None) -> Iterator[TreeFile]:
        """Yield the stubs to expand."""
        for found in walk(self._volume, self._below, errors, self._run.safe_point):
            is_late = self._since_ns is None or found.identity.ctime_ns >= self._since_ns
            if found.is_stub and is_late:
                yield found

    def plan(self) -> Plan:
        """Return the necessary work. Raises Cancelled."""
        volume, run = self._volume, self._run
        run.update(phase="counting")
        files, need = self._count(_missing_bytes)
        have = volume.room().left_bytes
        if need > have:
            # Chunks may contain blocks of zeros, which stay holes. To find them, everything must be
            # read, so this is only done if it may decide.
            run.update(phase="counting exactly")
            files, need = self._count(_missing_blocks)
        return Plan(files, need, max(0, have))

    def _count(self, missing: Callable[[Volume, JobRun, bytes], int]) -> tuple[int, int]:
        """Return the number of files to expand, and the bytes that they will occupy then."""
        files = need = 0
        for found in self._stubs():
            self._run.safe_point()
            files += 1
            need += missing(self._volume, self._run, found.path)
        return files, need

    def _require_space(self) -> int:
        """Return the bytes to restore. Raises NoSpace with the number of missing bytes."""
        plan = self.plan()
        if plan.missing_bytes:
            raise NoSpace(
                f"{self._volume.root}: expanding {plan.files} files needs"
                f" {format_size(plan.need_bytes)}, but only {format_size(plan.room_bytes)} are"
                f" free beyond the reserve; {format_size(plan.missing_bytes)} are missing. Free"
                " space, name a part of the tree, or reduce the policy key `reserve`"
            )
        return plan.need_bytes


def _named(where: str, message: str) -> str:
    """Return a message that starts with the file's name; add the name if necessary."""
    return message if message.startswith(f"{where}: ") else f"{where}: {message}"


def _missing_bytes(volume: Volume, run: JobRun, path: bytes) -> int:
    """Return a stub's maximum need beyond its own blocks: all chunks; holes stay holes."""
    try:
        return sum(end - start for _, start, end in run.checked(missing_data(volume, path)))
    except (Damaged, OSError):
        return 0  # reported later


def _missing_blocks(volume: Volume, run: JobRun, path: bytes) -> int:
    """Return the exact need of a stub in blocks beyond its own. Blocks of zeros also stay holes."""
    block, need, counted = volume.block_bytes, 0, 0
    try:
        for content, start, end in missing_data(volume, path):
            run.safe_point()
            # Two chunks may share a block.
            start, counted = max(align_down(start, block), counted), align_up(end, block)
            data = content.read(start, counted)
            need += sum(
                block
                for at in range(0, len(data), block)
                if not native.hashing.is_zero(memoryview(data)[at : at + block])
            )
    except (Damaged, OSError):
        pass  # reported later
    return need
