"""Whether two trees are the same in everything that a user can see.

Contents, sizes, types, modes, owners, modification times (to the nanosecond), extended
attributes with access control lists among them, which names are links to one file, targets of
symbolic links, device numbers. Not compared: access and change times, inode numbers, blocks.

    python -m tests.support.tree_compare REFERENCE OTHER      exit status 1 where they differ
"""

import argparse
import errno
import os
import resource
import stat
import sys
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import islice

from dedupd_core.system.files import data_ranges, opened, read_at
from dedupd_core.system.paths import show_path
from dedupd_core.units import MIB

BLOCK_BYTES = 4 * MIB
"""What is read at once: large enough that the calls cost nothing beside the comparison."""

HOLE_READ_BYTES_MAX = 64 * MIB
"""Where the reference has a hole and the other tree says data, that much is read whole."""

HOLE_SAMPLES = 512
SAMPLE_BYTES = 64 << 10
"""In larger ones, so many evenly spaced samples, the first and the last bytes among them."""

_ZEROS = bytes(BLOCK_BYTES)
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
_KINDS = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "directory",
    stat.S_IFLNK: "symbolic link",
    stat.S_IFIFO: "FIFO",
    stat.S_IFSOCK: "socket",
    stat.S_IFCHR: "character device",
    stat.S_IFBLK: "block device",
}

Path = str | bytes | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that is not the same. ``path`` is relative to the trees."""

    path: bytes
    what: str
    reference: object
    other: object

    def __str__(self) -> str:
        return f"{show_path(self.path) or '.'}: {self.what}: {self.reference} / {self.other}"


class TreesDiffer(AssertionError):
    """Names the first differences."""


def assert_same(reference: Path, other: Path, *, skip: Collection[bytes] = ()) -> None:
    """Raises TreesDiffer where two trees are not the same; ``skip`` as for :func:`differences`."""
    found = list(islice(differences(reference, other, skip=skip), 20))
    if found:
        shown = "\n  ".join(str(difference) for difference in found)
        raise TreesDiffer(f"the trees differ (reference / other):\n  {shown}")


def differences(
    reference: Path, other: Path, *, skip: Collection[bytes] = ()
) -> Iterator[Difference]:
    """Every difference, path by path.

    ``skip`` are paths, relative to the trees, that are passed over with all that is below them.
    What can not be read in either tree is a difference.
    """
    _allow_many_descriptors()
    with (
        opened(os.open(reference, _DIRECTORY)) as one,
        opened(os.open(other, _DIRECTORY)) as two,
    ):
        yield from _Comparison(frozenset(skip)).entry(b"", one, two, b".")


def _allow_many_descriptors() -> None:
    """Two are open per level of the trees."""
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class _Comparison:
    """One walk over both trees. Goes by descriptors, so that no path is too long for it."""

    def __init__(self, skip: frozenset[bytes]) -> None:
        self._skip = skip
        self._first_names: tuple[dict[tuple[int, int], bytes], ...] = ({}, {})

    def entry(self, path: bytes, one: int, two: int, name: bytes) -> Iterator[Difference]:
        """The entries ``name`` of two directories, and all below them."""
        try:
            mine = os.stat(name, dir_fd=one, follow_symlinks=False)
            theirs = os.stat(name, dir_fd=two, follow_symlinks=False)
            kind = stat.S_IFMT(mine.st_mode)
            if kind != stat.S_IFMT(theirs.st_mode):
                yield Difference(path, "type", _kind(mine), _kind(theirs))
                return
            yield from _metadata(path, mine, theirs)
            yield from _attributes(path, one, two, name)
            if kind == stat.S_IFDIR:
                yield from self._directory(path, one, two, name)
                return
            yield from self._links(path, mine, theirs)
            if kind == stat.S_IFREG and mine.st_size == theirs.st_size:
                yield from _content(path, one, two, name, mine)
            elif kind == stat.S_IFLNK:
                targets = [os.readlink(name, dir_fd=fd) for fd in (one, two)]
                if targets[0] != targets[1]:
                    yield Difference(path, "target", *targets)
        except OSError as error:
            yield Difference(path, "reading", "both", error)

    def _directory(self, path: bytes, one: int, two: int, name: bytes) -> Iterator[Difference]:
        with (
            opened(os.open(name, _DIRECTORY, dir_fd=one)) as one,
            opened(os.open(name, _DIRECTORY, dir_fd=two)) as two,
        ):
            mine, theirs = _names(one), _names(two)
            for inner in sorted(mine | theirs):
                inner_path = path + b"/" + inner if path else inner
                if inner_path in self._skip:
                    continue
                if inner in mine and inner in theirs:
                    yield from self.entry(inner_path, one, two, inner)
                else:
                    yield Difference(inner_path, "exists", inner in mine, inner in theirs)

    def _links(
        self, path: bytes, mine: os.stat_result, theirs: os.stat_result
    ) -> Iterator[Difference]:
        """Both trees are walked in the same order, so the first name of a file stands for it."""
        if mine.st_nlink != theirs.st_nlink:
            yield Difference(path, "number of links", mine.st_nlink, theirs.st_nlink)
        if mine.st_nlink == theirs.st_nlink == 1:
            return
        first = [
            names.setdefault((status.st_dev, status.st_ino), path)
            for names, status in zip(self._first_names, (mine, theirs), strict=True)
        ]
        if first[0] != first[1]:
            yield Difference(path, "is the same file as", *first)


def _names(fd: int) -> set[bytes]:
    return {os.fsencode(name) for name in os.listdir(fd)}


def _kind(status: os.stat_result) -> str:
    return _KINDS.get(stat.S_IFMT(status.st_mode), "unknown")


def _metadata(path: bytes, mine: os.stat_result, theirs: os.stat_result) -> Iterator[Difference]:
    """What ``stat`` says of two entries of one type."""
    compared: dict[str, list[str] | list[int]] = {
        "mode": [oct(stat.S_IMODE(status.st_mode)) for status in (mine, theirs)],
        "owner": [status.st_uid for status in (mine, theirs)],
        "group": [status.st_gid for status in (mine, theirs)],
        "modification time, ns": [status.st_mtime_ns for status in (mine, theirs)],
    }
    if stat.S_ISREG(mine.st_mode) or stat.S_ISLNK(mine.st_mode):
        compared["size"] = [status.st_size for status in (mine, theirs)]
    if stat.S_ISCHR(mine.st_mode) or stat.S_ISBLK(mine.st_mode):
        compared["device number"] = [status.st_rdev for status in (mine, theirs)]
    for what, (reference, other) in compared.items():
        if reference != other:
            yield Difference(path, what, reference, other)


def _attributes(path: bytes, one: int, two: int, name: bytes) -> Iterator[Difference]:
    mine, theirs = _attributes_of(one, name), _attributes_of(two, name)
    for attribute in sorted(mine.keys() | theirs.keys()):
        values = mine.get(attribute), theirs.get(attribute)
        if values[0] != values[1]:
            yield Difference(path, f"attribute {attribute}", *values)


def _attributes_of(dir_fd: int, name: bytes) -> dict[str, bytes]:
    """Extended attributes of an entry, also of a link, which no descriptor can stand for."""
    path = b"/proc/self/fd/%d/%s" % (dir_fd, name)
    try:
        names = os.listxattr(path, follow_symlinks=False)
    except OSError as error:
        if error.errno == errno.ENOTSUP:
            return {}
        raise
    return {key: os.getxattr(path, key, follow_symlinks=False) for key in names}


# --- contents ---------------------------------------------------------------------------------


def _content(
    path: bytes, one: int, two: int, name: bytes, status: os.stat_result
) -> Iterator[Difference]:
    """The bytes of two files of one size."""
    if status.st_size == 0:
        return
    with (
        opened(os.open(name, _FILE, dir_fd=one)) as one,
        opened(os.open(name, _FILE, dir_fd=two)) as two,
    ):
        offset = _first_different_byte(one, two, status.st_size)
        if offset is None:
            return
        values = [read_at(fd, 1, offset).hex() or "nothing" for fd in (one, two)]
        yield Difference(path, f"byte at {offset}", *values)


def _first_different_byte(one: int, two: int, size: int) -> int | None:
    """Offset of a difference; the lowest one, but for the samples of large holes."""
    position = 0
    for start, end in data_ranges(one, 0, size):
        found = _not_zero(two, position, start)
        if found is None:
            found = _different(one, two, start, end)
        if found is not None:
            return found
        position = end
    return _not_zero(two, position, size)


def _different(one: int, two: int, start: int, end: int) -> int | None:
    """The lowest offset in a range at which two files differ."""
    for offset in range(start, end, BLOCK_BYTES):
        length = min(BLOCK_BYTES, end - offset)
        mine, theirs = read_at(one, length, offset), read_at(two, length, offset)
        if mine != theirs:
            return offset + _common_prefix(mine, theirs)
    return None


def _common_prefix(mine: bytes, theirs: bytes) -> int:
    pairs = zip(mine, theirs, strict=False)
    shorter = min(len(mine), len(theirs))
    return next((at for at, (one, two) in enumerate(pairs) if one != two), shorter)


def _not_zero(fd: int, start: int, end: int) -> int | None:
    """An offset in a range at which a file has a byte that is not zero, or ends."""
    for first, last in data_ranges(fd, start, end):
        if last - first <= HOLE_READ_BYTES_MAX:
            steps = range(first, last, BLOCK_BYTES)
            length = BLOCK_BYTES
        else:
            last_sample = last - first - SAMPLE_BYTES
            steps = range(first, last - SAMPLE_BYTES + 1, last_sample // (HOLE_SAMPLES - 1))
            length = SAMPLE_BYTES
        for offset in steps:
            wanted = min(length, last - offset)
            data = read_at(fd, wanted, offset)
            if len(data) != wanted or data != _ZEROS[:wanted]:
                return offset + _common_prefix(_ZEROS[:wanted], data)
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare two trees in all that users can see.")
    parser.add_argument("reference", type=os.fsencode)
    parser.add_argument("other", type=os.fsencode)
    parser.add_argument("--skip", action="append", default=[], type=os.fsencode, metavar="PATH")
    parser.add_argument("--max", type=int, default=100, help="stop after so many differences")
    arguments = parser.parse_args()
    found = differences(arguments.reference, arguments.other, skip=arguments.skip)
    count = 0
    for difference in islice(found, arguments.max):
        print(difference)
        count += 1
    print(f"{count} differences" + (" or more" if count == arguments.max else ""), file=sys.stderr)
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
