"""Whether many stubs were overwritten with noise lately, as by a program that encrypts files.

The logs of deletions tell what was overwritten, cut, replaced or removed, of all users. Of the
files of an hour a sample is checked: what the store has of them, and what is there now.
"""

import heapq
import os
import zlib
from functools import lru_cache
from operator import attrgetter

from dedupd_core.deleted.alarm import Alarm, AlarmState, keep_state, read_state, remove_unfinished
from dedupd_core.deleted.log import DeletionLogs
from dedupd_core.deleted.undelete import clean
from dedupd_core.errors import Damaged, NoiseWritten
from dedupd_core.format.deletion import Cause, Deletion
from dedupd_core.system.files import data_ranges, opened, read_at
from dedupd_core.system.paths import open_beneath
from dedupd_core.volume.volume import Volume
from jobs.frame.run import JobRun

FILES_MIN = 50
"""Fewer files in an hour raise no alarm: their versions are kept all the same."""

WINDOW_NS = 3600 * 1_000_000_000
"""A window begins every half hour: whatever takes half an hour lies in one."""

SAMPLED_MAX = 200
"""Of each window; each takes a third of a millisecond."""

NOISY_SHARE_MIN = 0.5
"""Of the files looked at. Users' work overwrites what compresses with what compresses."""

SAMPLE_BYTES = 4096
COMPRESSIBLE_MAX = 0.8
NOISE_MIN = 0.97
"""What zlib makes of a sample: text, tables and documents become half; what is encrypted or
compressed, or a photograph, stays as it is."""

MAGICS = (
    *(b"\x1f\x8b", b"PK\x03\x04", b"\xfd7zXZ\0", b"\x28\xb5\x2f\xfd", b"7z\xbc\xaf"),
    *(b"BZh", b"Rar!", b"\xff\xd8\xff", b"\x89PNG", b"GIF8", b"RIFF", b"OggS", b"fLaC"),
    *(b"ID3", b"\x1aE\xdf\xa3"),
)
"""How archives, pictures, sound and films begin. What is compressed is noise as well, and says what
it is."""

NAMES_MAX = 10_000
"""In a directory in which the successor of a removed file is looked for."""

EXAMPLES = 3


def refuse_noise(volume: Volume, run: JobRun, *, dry_run: bool) -> None:
    """Raises NoiseWritten while an alarm stands, or where there is reason for one."""
    if not dry_run:
        remove_unfinished(volume.base_fd, volume.disk)
    state = read_state(volume.base_fd)
    alarm = state.alarm or _found(volume, run, state)
    if alarm is None:
        return
    if state.alarm is None and not dry_run:
        keep_state(volume.base_fd, AlarmState(alarm, state.accepted_ns), volume.disk)
    raise NoiseWritten(alarm.message(volume.root))


def _found(volume: Volume, run: JobRun, state: AlarmState) -> Alarm | None:
    logs, windows = DeletionLogs(volume), dict[int, _Window]()
    for number in logs.numbers():
        run.safe_point()
        for _, deletion in logs.read(number):
            if deletion.time_ns > state.accepted_ns:
                for start in _windows_of(deletion.time_ns):
                    windows.setdefault(start, _Window()).add(deletion)
    for start in sorted(windows, reverse=True):
        if windows[start].count >= FILES_MIN:
            alarm = _judged(volume, run, windows[start])
            if alarm is not None:
                return alarm
    return None


def _windows_of(time_ns: int) -> tuple[int, int]:
    """The starts of the two windows that a deletion lies in."""
    half_ns = WINDOW_NS // 2
    start = time_ns // half_ns * half_ns
    return start - half_ns, start


class _Window:
    """The files that were lost in an hour, and a sample of them: of each the latest deletion."""

    def __init__(self) -> None:
        self._seen: set[int] = set()
        self._sample: dict[int, Deletion] = {}
        self.start_ns = self.end_ns = 0

    @property
    def count(self) -> int:
        return len(self._seen)

    def add(self, deletion: Deletion) -> None:
        # A hash that nobody can foresee: users choose the names, and must not choose the sample.
        key = hash(deletion.path)
        self.start_ns = min(self.start_ns or deletion.time_ns, deletion.time_ns)
        self.end_ns = max(self.end_ns, deletion.time_ns)
        self._seen.add(key)
        known = self._sample.get(key)
        if known is None or known.time_ns <= deletion.time_ns:
            self._sample[key] = deletion
        if len(self._sample) > 2 * SAMPLED_MAX:
            self._sample = {key: self._sample[key] for key in self._chosen()}

    def sample(self) -> list[Deletion]:
        chosen = (self._sample[key] for key in self._chosen())
        return sorted(chosen, key=attrgetter("time_ns"))

    def _chosen(self) -> list[int]:
        """The same ones whatever was added in between."""
        return heapq.nsmallest(SAMPLED_MAX, self._sample)


def _judged(volume: Volume, run: JobRun, window: _Window) -> Alarm | None:
    sample, look, noisy = window.sample(), _Examination(volume), list[str]()
    for deletion in sample:
        run.safe_point()
        if look.became_noise(deletion):
            noisy.append(os.fsdecode(deletion.path))
    if len(noisy) < NOISY_SHARE_MIN * len(sample):
        return None
    if len(noisy) * window.count < FILES_MIN * len(sample):
        return None
    return Alarm(
        start_ns=window.start_ns,
        end_ns=window.end_ns,
        files=window.count,
        sampled=len(sample),
        noisy=len(noisy),
        examples=tuple(noisy[:EXAMPLES]),
    )


class _Examination:
    """Looks at files of one window."""

    def __init__(self, volume: Volume) -> None:
        self._volume = volume
        self._names = lru_cache(maxsize=4)(self._listed)

    def became_noise(self, deletion: Deletion) -> bool:
        """Whether something that compresses gave way to noise. What cannot be read did not."""
        try:
            now = self._now(deletion)
            if now is None or not _is_noise(now):
                return False
            content = self._volume.content(clean(deletion.stub), "")
            return _is_compressible(content.read(0, min(SAMPLE_BYTES, deletion.stub.covered)))
        except (OSError, Damaged):
            return False

    def _now(self, deletion: Deletion) -> bytes | None:
        """What users have written in the place of a file: into it, or, if it is gone, into one
        beside it whose name begins with its name (``plan.odt.locked``)."""
        path = deletion.path
        if not deletion.has_path:
            return None
        if deletion.cause is Cause.REMOVED:
            directory, _, name = path.rpartition(b"/")
            longer = [n for n in self._names(directory) if n.startswith(name) and n != name]
            if not longer:
                return None
            path = directory + b"/" + longer[0] if directory else longer[0]
        flags = os.O_RDONLY | os.O_NONBLOCK
        with opened(open_beneath(self._volume.data_fd, path, flags)) as fd:
            for start, end in data_ranges(fd, 0, os.fstat(fd).st_size):
                if start == 0 and read_at(fd, 8, 0).startswith(MAGICS):
                    return None
                return read_at(fd, min(SAMPLE_BYTES, end - start), start)
        return None

    def _listed(self, directory: bytes) -> list[bytes]:
        flags = os.O_RDONLY | os.O_DIRECTORY
        with opened(open_beneath(self._volume.data_fd, directory, flags)) as fd:
            names = os.listdir(fd)
        return [os.fsencode(name) for name in names] if len(names) <= NAMES_MAX else []


def _is_noise(data: bytes) -> bool:
    return len(data) >= SAMPLE_BYTES // 4 and len(zlib.compress(data, 1)) > NOISE_MIN * len(data)


def _is_compressible(data: bytes) -> bool:
    return len(zlib.compress(data, 1)) < COMPRESSIBLE_MAX * len(data)
