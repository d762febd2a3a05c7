"""The files of the demonstration: copies of real files of this machine, as a file server has them.

Several releases of software, documents in several states, an image of a disk, and media, which
nothing compresses.
"""

import gzip
import os
import shutil
import sys
import sysconfig
from collections.abc import Callable, Iterator
from itertools import chain

from dedupd.units import KIB, MIB

_SHARES = {"releases": 0.55, "documents": 0.10, "images": 0.20, "media": 0.15}
"""Parts of the tree's size, about."""

_RELEASES = 3
_STATES = 6
"""States that each document is kept in."""

_BLOCK_BYTES = 4096
_SOURCES = ("/usr/lib/python3", "/usr/share/doc", "/usr/lib", "/usr/bin", "/usr/share")
"""Directories of real software; Python's own library comes first."""

_TEXT_SUFFIXES = (".py", ".txt", ".md", ".rst", ".h", ".c", ".html", ".json", ".xml", ".js", ".css")


class _Tree:
    """A tree that grows below ``root``; reports its bytes so far."""

    def __init__(self, root: str, on_progress: Callable[[int], None]) -> None:
        self._root = root
        self._on_progress = on_progress
        self._size_bytes = 0

    def write(self, name: str, data: bytes, like: str | None = None) -> int:
        """A file, with the mode and the times of the file ``like``; returns its length."""
        path = os.path.join(self._root, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(data)
        if like is not None:
            shutil.copystat(like, path)
        self._size_bytes += len(data)
        self._on_progress(self._size_bytes)
        return len(data)


def build(root: str, size_bytes: int, on_progress: Callable[[int], None]) -> None:
    """Fill the empty directory ``root`` with about ``size_bytes``; reports bytes so far."""
    tree = _Tree(root, on_progress)
    parts = {name: int(size_bytes * share) for name, share in _SHARES.items()}
    files = _release(parts["releases"] // _RELEASES)
    for number in range(_RELEASES):
        _write_release(tree, files, number)
    texts = (path for path in files if path.endswith(_TEXT_SUFFIXES))
    _write_documents(tree, texts, parts["documents"])
    tree.write("images/server.img", _joined(iter(files), parts["images"], _BLOCK_BYTES))
    _write_media(tree, _files(os.path.dirname(os.path.realpath(sys.executable))), parts["media"])


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _release(size_bytes: int) -> list[str]:
    """Readable, ordinary files of this machine, always in the same order."""
    taken: dict[str, int] = {}
    left = size_bytes
    for path in chain.from_iterable(map(_files, (sysconfig.get_paths()["stdlib"], *_SOURCES))):
        if left <= 0:
            break
        size = os.path.getsize(path)
        if path not in taken and 2048 <= size <= size_bytes // 4:
            taken[path] = size
            left -= size
    return list(taken)


def _files(root: str) -> Iterator[str]:
    for directory, names, files in os.walk(root):
        names[:] = sorted(n for n in names if n not in ("__pycache__", "site-packages"))
        for path in (os.path.join(directory, name) for name in sorted(files)):
            if os.path.isfile(path) and not os.path.islink(path) and os.access(path, os.R_OK):
                yield path


def _write_release(tree: _Tree, files: list[str], number: int) -> None:
    """A release of the software: a few files changed since the last, a few gone, a few new."""
    for at, path in enumerate(files):
        if number and at % 41 == number:
            continue
        data, name = _read(path), f"releases/1.{number}/{path.lstrip('/')}"
        if path.endswith(_TEXT_SUFFIXES):
            for release in range(1, number + 1):
                if at % 13 == release:
                    data = _edited(data, release)
        tree.write(name, data, like=path)
        if number and at % 97 == number:
            tree.write(f"{name}.{number}", data, like=path)


def _edited(data: bytes, number: int) -> bytes:
    """A text, changed here and there, as people do."""
    lines = data.splitlines(keepends=True)
    for at in range(len(lines) // 3, len(lines), max(50, len(lines) // 4)):
        lines[at] = b"# revised for release 1.%d\n" % number + lines[at]
    return b"".join(lines)


def _write_documents(tree: _Tree, texts: Iterator[str], size_bytes: int) -> None:
    """Large texts in several states: every state has a paragraph more than the last."""
    each = min(2 * MIB, max(64 * KIB, size_bytes // _STATES))
    for number in range(max(1, size_bytes // (_STATES * each))):
        text = _joined(texts, each)
        for state in range(_STATES):
            where = len(text) * (state + 1) // (_STATES + 1)
            text = text[:where] + b"A paragraph that was added in state %d. " % state + text[where:]
            tree.write(f"documents/manual-{number}-state-{state}.txt", text)


def _joined(paths: Iterator[str], size_bytes: int, align_bytes: int = 1) -> bytes:
    """The next files, as many as it takes, each at a multiple of ``align_bytes``."""
    data = bytearray()
    while len(data) < size_bytes and (path := next(paths, None)) is not None:
        data += _read(path)
        data += bytes(-len(data) % align_bytes)
    return bytes(data)


def _write_media(tree: _Tree, paths: Iterator[str], size_bytes: int) -> None:
    """A compressed copy of real files, and noise: what photographs and films look like."""
    half = size_bytes // 2
    tree.write("media/backup.tar.gz", gzip.compress(_joined(paths, 2 * half), 1))
    for number in range(max(1, half // (4 * MIB))):
        tree.write(f"media/film-{number:03}.mkv", os.urandom(min(half, 4 * MIB)))
