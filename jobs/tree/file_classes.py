"""Classes of files: those of one type below one folder at the top of the tree."""

from collections.abc import Callable
from typing import NamedTuple

from dedupd_core.volume.partition_map import type_of


class FileClass(NamedTuple):
    """Files of one type below one folder at the top; ``top`` is empty for files beside these."""

    top: str
    type: str


def class_of(path: bytes) -> FileClass:
    """The class of a file, by its path."""
    return FileClass(top_of(path), type_of(path))


def top_of(path: bytes) -> str:
    """The folder at the top that a path lies in, or empty."""
    top, slash, _ = path.partition(b"/")
    return top.decode("utf-8", "surrogateescape") if slash else ""


class Choice(NamedTuple):
    """Some of the candidates: those of classes that ``has`` says, of these one part by inode, and
    of these those of some sizes.

    ``sample`` is (n, k, True) for the inodes that leave k when they are divided by n, (n, k, False)
    for all others, and None for all. ``sizes`` is (start, end) in bytes, and None for all.
    """

    has: Callable[[FileClass], bool]
    sample: tuple[int, int, bool] | None = None
    sizes: tuple[int, int] | None = None

    def takes(self, path: bytes, inode: int, size: int) -> bool:
        """Whether a file is among them."""
        if self.sizes is not None and not self.sizes[0] <= size < self.sizes[1]:
            return False
        if self.sample is not None:
            of, rest, is_sample = self.sample
            if (inode % of == rest) is not is_sample:
                return False
        return self.has(class_of(path))


def any_class(_: FileClass) -> bool:
    """For a choice of files of all classes."""
    return True


ALL = Choice(any_class)
