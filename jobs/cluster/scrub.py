"""The scrub job of a volume whose chunks are in a cluster: checks fingerprints, and repairs chunks
that any host has found damaged, with data of this host.

Ceph's own scrub compares replicas; this one checks whether they are the stored bytes.
"""

import os
import random
from collections import Counter
from collections.abc import Iterator

from dedupd_core.errors import DamagedRecipe, DedupdError
from dedupd_core.format.cluster.objects import chunk_object, frame_of
from dedupd_core.rados.damage import DamagedChunk, DamageList
from dedupd_core.rados.writer import Writer
from dedupd_core.system.files import opened
from dedupd_core.system.paths import open_beneath, show_path
from dedupd_core.volume.volume import Volume
from jobs.cluster.cutting import cut_ranges, reader_of
from jobs.cluster.reports import ClusterScrubReport
from jobs.cluster.session import StubVersions, store_of, writing
from jobs.frame.job import Job
from jobs.frame.run import Cancelled, JobRun
from jobs.scrub.scrub_job import Depth
from jobs.tree.walk import walk

CHUNKS_AT_ONCE = 1024
SEEN_MAX = 1 << 20
"""Number of remembered checked fingerprints, about 100 bytes each."""

FROM_CACHE, FROM_FILES, GOOD = "from the cache", "from plain files", "right after all"


class ClusterScrub(Job[ClusterScrubReport]):
    """One run over one volume. Needs the volume's job lock."""

    needs_containers = False

    def __init__(
        self,
        volume: Volume,
        run: JobRun,
        depth: Depth = Depth.QUICK,
        rate: int | None = None,
        *,
        share: float | None = None,
    ) -> None:
        """``share``: part of the chunks of the volume's files to read, selected by fingerprint and
        different in each run; without it, ``depth`` selects all or none. The run keeps to
        ``rate``."""
        super().__init__(volume, run, ClusterScrubReport())
        self._share = share or 0.0
        if depth is Depth.FULL and share is None:
            self._share = 1.0
        self._first = random.randrange(1 << 16)
        self._repaired: Counter[str] = Counter()

    def run(self) -> ClusterScrubReport:
        """Check chunks, and repair them. Raises Busy, StoreUnreachable, Cancelled."""
        with writing(self._volume, StubVersions(self._volume)) as (writer, recovery):
            self._report.recovery = recovery
            if self._share > 0:
                self._run.update(phase="checking chunks")
                self._check(writer)
            self._run.update(phase="repairing")
            self._mend(writer)
            writer.counted["repaired"] += self._repaired.total() - self._repaired[GOOD]
        self._report.repaired = dict(self._repaired)
        return self.report()

    # --- find damage --------------------------------------------------------------------------

    def _check(self, writer: Writer) -> None:
        batch: list[bytes] = []
        for fingerprint in self._sample(writer):
            batch.append(fingerprint)
            if len(batch) == CHUNKS_AT_ONCE:
                self._check_batch(writer, batch)
                batch = []
        self._check_batch(writer, batch)

    def _check_batch(self, writer: Writer, batch: list[bytes]) -> None:
        self._run.safe_point()

        def check(fingerprint: bytes) -> int:
            data = writer.cluster.read(chunk_object(fingerprint))
            if data is None or not writer.chunks.is_good(fingerprint, data):
                writer.chunks.mark_damaged(fingerprint)
            return 0 if data is None else len(data)

        self._report.chunks += len(batch)
        self._report.read_bytes += sum(writer.cluster.each(check, batch))
        self._run.update(done=self._report.read_bytes)

    def _sample(self, writer: Writer) -> Iterator[bytes]:
        seen: set[bytes] = set()
        for file, versions in writer.table.files():
            self._run.safe_point()
            try:
                recipe = writer.recipes.read(versions.new)
            except DamagedRecipe as error:
                self._run.findings.add(f"file {file.text}: {error}")
                continue
            for fingerprint in recipe.fingerprints if recipe is not None else ():
                if self._is_chosen(fingerprint) and fingerprint not in seen:
                    if len(seen) < SEEN_MAX:
                        seen.add(fingerprint)
                    yield fingerprint

    def _is_chosen(self, fingerprint: bytes) -> bool:
        place = (int.from_bytes(fingerprint[:2], "big") - self._first) % (1 << 16)
        return place < self._share * (1 << 16)

    # --- repair -------------------------------------------------------------------------------

    def _mend(self, writer: Writer) -> None:
        """Repair chunks, first from this host's cache of the cluster, then from plain files."""
        listed = DamageList(writer.cluster)
        damaged = listed.all()
        self._report.damaged = len(damaged)
        side = store_of(self._volume)
        left: dict[bytes, DamagedChunk] = {}
        for one in damaged:
            self._run.safe_point()
            if not self._stored(writer, one, side.cached(one.fingerprint), FROM_CACHE):
                left[one.fingerprint] = one
        volume = side.volume
        wanted = {own for own, one in left.items() if volume not in one.searched}
        for fingerprint, frame in self._in_files(wanted):
            if self._stored(writer, left[fingerprint], frame, FROM_FILES):
                del left[fingerprint]
        for fingerprint in wanted & left.keys():
            listed.note_searched(left[fingerprint], volume)
        self._report.left = len(left)

    def _stored(
        self, writer: Writer, chunk: DamagedChunk, frame: bytes | None, source: str
    ) -> bool:
        used: list[str] = []

        def find() -> bytes | None:
            used.append(source)
            return frame

        is_whole = writer.chunks.mend(chunk.fingerprint, find)
        if is_whole:
            self._repaired[used[0] if used else GOOD] += 1
            DamageList(writer.cluster).drop(chunk)
        return is_whole

    def _in_files(self, wanted: set[bytes]) -> Iterator[tuple[bytes, bytes]]:
        """Yield frames of wanted chunks that plain files have. Reads until all are found.

        The next optimize stores the local blocks of stubs.
        """
        missing, volume = set(wanted), self._volume
        if not missing:
            return
        level = volume.policy().compression_level
        for found in walk(volume, safe_point=self._run.safe_point):
            if found.is_stub:
                continue
            for fingerprint, raw in self._in_file(found.path, missing):
                missing.discard(fingerprint)
                yield fingerprint, frame_of(raw, fingerprint, level=level)
            if not missing:
                return

    def _in_file(self, path: bytes, missing: set[bytes]) -> list[tuple[bytes, bytes]]:
        """Return the missing chunks that a plain file has; none if it cannot be read."""
        volume, met = self._volume, dict[bytes, bytes]()
        try:
            with opened(open_beneath(volume.data_fd, path, os.O_RDONLY | os.O_NONBLOCK)) as fd:
                read, ranges = reader_of(volume, fd, show_path(path))
                for start, end in ranges:
                    cut = cut_ranges(volume, read, start, end, self._run.safe_point)
                    for offset, length, fingerprint in cut:
                        if fingerprint in missing:
                            met[fingerprint] = bytes(read(offset, offset + length))
        except Cancelled:
            raise
        except (DedupdError, OSError):
            pass  # a user has changed or removed the file
        return list(met.items())
