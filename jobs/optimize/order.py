"""The order of a run: which classes of files give the most for the time that they take.

After NV-Dedup (seed 001, 4.4), which samples how much is duplicate and compares what its methods
cost; its thresholds are those of memory, and do not carry over. What the files of a class have
saved for their cost is remembered from run to run, as a hint. A large run takes one file in 32 of
classes that are new, then the best classes, one file in sixteen of those that promise less than
the mean, and then these. A class of which few files were read promises more than they have shown,
by what the sample may be wrong: a few large files may be most of what there is to save. Every class
has its turn: the order changes when space is freed, not how much.

While a restore fills the volume the largest files go first: they free most, and need most room.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any

from dedupd_core.units import GIB, KIB, MIB
from dedupd_core.volume.hints import HintKey, Hints
from dedupd_core.volume.partition_map import type_of_suffix
from jobs.tree.candidates import Candidate, PlainFiles
from jobs.tree.file_classes import ALL, Choice, FileClass, any_class, class_of, top_of

RUN_BYTES_MIN = 1 * GIB
"""A smaller run is over before an order matters."""

FILE_COST_BYTES = 40 * KIB
"""A file costs as much as so many bytes take to be read, cut and fingerprinted, besides its own."""

NEW_COST = 4.0
"""What it costs to compress and write a byte, in bytes that are read, cut and fingerprinted."""

WINDOW_BYTES = 4 * GIB
"""Of a class, about 50,000 chunks. Once so many bytes were read, what came before counts half."""

CLASSES_MAX = 1000
"""The largest classes, which are remembered."""

SAMPLE = 16
"""One file in so many is taken of a class before the class has its turn."""

FIRST_SAMPLE = 32
"""The same of a class of which nothing is known: its sample comes before all that is good."""

FILES_SAMPLED_MIN = 3
"""Files of a class that are a sample, about, where there are so many."""

TIER_RATIO = 0.8
"""Classes that promise at least this part of the best one are taken together, in the order of the
tree: estimates that differ by less change nothing."""

HOPELESS = 0.02
"""Classes that promise less than this part of the mean are taken together, last. Types that the
policy does not have compressed promise no more before they were read."""

DOUBT = 2.0
"""So many times the mean a class promises more in a first run where one file of it was read; for n
files by the root of n less, as the error of a sample is, and less with each run that went by."""

_SIZE_LIMITS = ((1 << 63) - 1, GIB, 256 * MIB, 64 * MIB, 16 * MIB, 4 * MIB, MIB, 256 * KIB, 0)
_SIZE_BANDS = [(start, end) for end, start in pairwise(_SIZE_LIMITS)]
"""Files within one are taken in the order of the tree."""


@dataclass(slots=True)
class Figures:
    """What is known of a class. All but ``files`` in bytes: what was read, what of it was new, and
    the blocks that were given up beyond what the store has grown by."""

    files: float = 0.0
    read_bytes: float = 0.0
    new_bytes: float = 0.0
    saved_bytes: float = 0.0

    @property
    def cost_bytes(self) -> float:
        """The time that it took, in bytes that are only read."""
        return self.read_bytes + self.files * FILE_COST_BYTES + self.new_bytes * NEW_COST

    @property
    def rate(self) -> float:
        """What it saves for what it costs."""
        return self.saved_bytes / self.cost_bytes if self.cost_bytes else 0.0

    def add(self, other: "Figures") -> None:
        self.files += other.files
        self.read_bytes += other.read_bytes
        self.new_bytes += other.new_bytes
        self.saved_bytes += other.saved_bytes

    def fade(self) -> None:
        """Let what comes next count more, where much is known."""
        while self.read_bytes > WINDOW_BYTES:
            self.files /= 2
            self.read_bytes /= 2
            self.new_bytes /= 2
            self.saved_bytes /= 2


@dataclass(slots=True)
class ClassFigures:
    """The figures of the classes of a volume. ``turn`` counts the runs that went by them: it says
    which sixteenth is the sample. ``raw_types`` are those that the policy does not have compressed.
    """

    known: dict[FileClass, Figures] = field(default_factory=dict)
    turn: int = 0
    is_changed: bool = False
    raw_types: frozenset[str] = frozenset()

    @classmethod
    def load(cls, hints: Hints, raw_types: Iterable[str] = ()) -> "ClassFigures":
        """What earlier runs have left; nothing where that cannot be read."""
        raw = frozenset(raw_types)
        try:
            kept = hints.get(HintKey.CLASSES) or {"turn": 0, "classes": []}
            rows = {
                FileClass(str(row["top"]), str(row["type"])): _figures(row)
                for row in kept["classes"]
            }
            return cls(rows, int(kept["turn"]), raw_types=raw)
        except (KeyError, TypeError, ValueError):
            return cls(raw_types=raw)

    def save(self, hints: Hints) -> None:
        """Keep them for the next run."""
        if self.is_changed:
            hints.put(HintKey.CLASSES, {"turn": self.turn + 1, "classes": self.rows()})

    def rows(self) -> list[dict[str, Any]]:
        """The largest classes, and what each saves for its cost."""
        largest = sorted(self.known.items(), key=lambda row: -row[1].read_bytes)
        return [
            {**file_class._asdict(), **asdict(figures), "rate": figures.rate}
            for file_class, figures in largest[:CLASSES_MAX]
        ]

    def add(self, file_class: FileClass, figures: Figures) -> None:
        """Count files of a class that a run has been through."""
        self.is_changed = True
        known = self.known.get(file_class)
        if known is None:
            if len(self.known) >= 2 * CLASSES_MAX:
                return
            known = self.known[file_class] = Figures()
        known.add(figures)
        known.fade()

    def add_tally(self, rows: Iterable[tuple[bytes, bytes, int, int, int, int]]) -> None:
        """Count files as native code has summed them up."""
        for top, suffix, files, read, new, saved in rows:
            file_class = FileClass(top.decode("utf-8", "surrogateescape"), type_of_suffix(suffix))
            self.add(file_class, Figures(files, read, new, saved))

    def knows(self, file_class: FileClass) -> bool:
        """Whether files of a class were read of late."""
        figures = self.known.get(file_class)
        return figures is not None and figures.read_bytes > 0

    def mean_rate(self) -> float:
        """What all classes together have saved for their cost."""
        total = Figures()
        for figures in list(self.known.values()):
            total.add(figures)
        return total.rate

    def promise(self, file_class: FileClass, mean: float) -> float:
        """What a class may save for its cost: what its files have shown, beside one file of the
        mean, and more the fewer they are."""
        is_raw = file_class.type in self.raw_types
        before = HOPELESS * mean if is_raw else mean
        doubt = 0.0 if is_raw else DOUBT * mean / (self.turn + 1)
        if not self.knows(file_class):
            return before + doubt
        known = self.known[file_class]
        files = max(1.0, known.files)
        return (known.rate * files + before) / (files + 1) + doubt / math.sqrt(files)

    def best(self, classes: Iterable[FileClass]) -> tuple[set[FileClass], bool]:
        """The classes that promise most, those together that promise alike; and whether that is
        less than the mean."""
        mean = self.mean_rate()
        promises = {file_class: self.promise(file_class, mean) for file_class in classes}
        most = max(promises.values())
        least = TIER_RATIO * most if most > HOPELESS * mean else 0.0
        best = {file_class for file_class, promise in promises.items() if promise >= least}
        return best, most < mean


def _figures(row: Mapping[str, Any]) -> Figures:
    return Figures(*(float(row[name]) for name in Figures.__slots__))


class Order:
    """The order of one run."""

    def __init__(self, figures: ClassFigures, *, largest_first: bool = False) -> None:
        self._figures = figures
        self._largest_first = largest_first
        self._files: Counter[FileClass] = Counter()
        self._size_bytes = 0
        self._sampled: dict[FileClass, int] = {}

    def expect(self, found: Candidate | PlainFiles) -> None:
        """Take note of candidates that are to come."""
        if isinstance(found, PlainFiles):
            top = top_of(found.directory)
            for suffix, files in found.files:
                self._files[FileClass(top, type_of_suffix(suffix))] += files
            self._size_bytes += found.size_bytes
        else:
            self._files[class_of(found.path)] += 1
            self._size_bytes += found.work_bytes

    def choices(self, is_wanted: Callable[[str], bool] | None = None) -> Iterator[Choice]:
        """The ways through the candidates of types that are wanted, the best classes first; each
        file is in one of them.

        To be asked for one by one: what a way shows of the classes orders those to come.
        """
        if self._largest_first:
            yield from (Choice(any_class, sizes=band) for band in _SIZE_BANDS)
            return
        if self._size_bytes < RUN_BYTES_MIN or len(self._files) < 2:
            yield ALL
            return
        known = frozenset(self._files)
        remaining = {
            file_class
            for file_class in self._files
            if is_wanted is None or is_wanted(file_class.type)
        }
        new = {file_class for file_class in remaining if self._is_new(file_class)}
        yield from self._samples(new, FIRST_SAMPLE)
        while remaining:
            best, is_poor = self._figures.best(remaining)
            if is_poor and (others := remaining - best - self._sampled.keys()):
                # So a class that has changed is seen, also where no run comes to its end.
                yield from self._samples(others, SAMPLE)
                continue
            remaining -= best
            yield from self._rest(best)
        yield Choice(lambda file_class: file_class not in known, None)

    def _is_new(self, file_class: FileClass) -> bool:
        """Whether nobody can say what a class promises."""
        is_raw = file_class.type in self._figures.raw_types
        return not (is_raw or self._figures.knows(file_class))

    def _samples(self, classes: set[FileClass], most: int) -> Iterator[Choice]:
        """Some files of each class: one in ``most``, or more where there are few."""
        for file_class in classes:
            few = max(1, self._files[file_class] // FILES_SAMPLED_MIN)
            self._sampled[file_class] = min(most, 1 << (few.bit_length() - 1))
        for of, group in self._by_sample(classes):
            yield Choice(group.__contains__, (of, self._figures.turn % of, True))

    def _rest(self, classes: set[FileClass]) -> Iterator[Choice]:
        """All of each class, but what was sampled."""
        whole = frozenset(classes - self._sampled.keys())
        if whole:
            yield Choice(whole.__contains__, None)
        for of, group in self._by_sample(classes & self._sampled.keys()):
            if of > 1:
                yield Choice(group.__contains__, (of, self._figures.turn % of, False))

    def _by_sample(self, classes: set[FileClass]) -> list[tuple[int, frozenset[FileClass]]]:
        """Classes by the number of files of which one was sampled, the largest first."""
        found: dict[int, set[FileClass]] = {}
        for file_class in classes:
            found.setdefault(self._sampled[file_class], set()).add(file_class)
        return [(of, frozenset(group)) for of, group in sorted(found.items(), reverse=True)]
