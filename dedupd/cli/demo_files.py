"""What the demonstration works on: a tree made of real files of this machine.

It has what file servers have: several releases of packages, documents in several states, an image
of a disk, and media, which nothing compresses.
"""

import gzip
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator

from dedupd.units import MIB

_SHARES = {"releases": 0.55, "documents": 0.10, "images": 0.20, "media": 0.15}
"""Parts of the tree's size, about."""

_RELEASES = 3
_STATES = 6
"""States that each document is kept in."""

_BLOCK_BYTES = 4096
_TEXT_SUFFIXES = (".py", ".txt", ".md", ".rst", ".h", ".c", ".html", ".json", ".xml", ".js", ".css")


def build(root: str, size_bytes: int, on_progress: Callable[[int], None]) -> None:
    """Fill the empty directory ``root`` with about ``size_bytes``; reports bytes so far."""
    done = 0

    def grew(count: int) -> None:
        nonlocal done
        done += count
        on_progress(done)

    parts = {name: int(size_bytes * share) for name, share in _SHARES.items()}
    first = os.path.join(root, "releases", "1.0")
    _copy_release(first, parts["releases"] // _RELEASES, grew)
    for number in range(1, _RELEASES):
        _next_release(
            os.path.join(root, "releases", f"1.{number - 1}"),
            os.path.join(root, "releases", f"1.{number}"),
            number,
            grew,
        )
    _documents(os.path.join(root, "documents"), first, parts["documents"], grew)
    _image(os.path.join(root, "images"), first, parts["images"], grew)
    _media(os.path.join(root, "media"), parts["media"], grew)


def _sources() -> Iterator[str]:
    """Directories of real software, the richest first."""
    stdlib = sysconfig.get_paths()["stdlib"]
    for path in (
        stdlib,
        "/usr/lib/python3",
        "/usr/share/doc",
        "/usr/lib",
        "/usr/bin",
        "/usr/share",
    ):
        if os.path.isdir(path):
            yield path


def _files(root: str) -> Iterator[str]:
    """Readable, ordinary files below ``root``, always in the same order."""
    for directory, names, files in os.walk(root):
        names[:] = sorted(n for n in names if n not in ("__pycache__", "site-packages"))
        for name in sorted(files):
            path = os.path.join(directory, name)
            if os.path.isfile(path) and not os.path.islink(path) and os.access(path, os.R_OK):
                yield path


def _copy_release(target: str, size_bytes: int, grew: Callable[[int], None]) -> None:
    """The first release: software of this machine, with its links, modes and times."""
    copied = 0
    for source in _sources():
        for path in _files(source):
            if copied >= size_bytes:
                return
            size = os.path.getsize(path)
            if not 2048 <= size <= size_bytes // 4:
                continue
            copy = os.path.join(target, os.path.relpath(path, "/"))
            os.makedirs(os.path.dirname(copy), exist_ok=True)
            shutil.copy2(path, copy)
            copied += size
            grew(size)


def _next_release(old: str, new: str, number: int, grew: Callable[[int], None]) -> None:
    """The release after ``old``: a few files changed, a few gone, a few new."""
    for index, path in enumerate(_files(old)):
        copy = os.path.join(new, os.path.relpath(path, old))
        if index % 41 == number:
            continue
        os.makedirs(os.path.dirname(copy), exist_ok=True)
        shutil.copy2(path, copy)
        if index % 13 == number and path.endswith(_TEXT_SUFFIXES):
            _edit(copy, number)
        if index % 97 == number:
            shutil.copy2(path, f"{copy}.{number}")
        grew(os.path.getsize(copy))


def _edit(path: str, number: int) -> None:
    """Change a text here and there, as people do."""
    with open(path, "rb") as file:
        lines = file.read().splitlines(keepends=True)
    step = max(50, len(lines) // 4)
    for at in range(len(lines) // 3, len(lines), step):
        lines[at] = b"# revised for release 1.%d\n" % number + lines[at]
    with open(path, "wb") as file:
        file.write(b"".join(lines))


def _documents(target: str, source: str, size_bytes: int, grew: Callable[[int], None]) -> None:
    """Large texts, each in several states: every state has a paragraph more than the last."""
    os.makedirs(target)
    texts = [path for path in _files(source) if path.endswith(_TEXT_SUFFIXES)]
    size_each = min(2 * MIB, max(64 << 10, size_bytes // _STATES))
    at = number = 0
    while at < len(texts) and number * _STATES * size_each < size_bytes:
        parts: list[bytes] = []
        while at < len(texts) and sum(map(len, parts)) < size_each:
            with open(texts[at], "rb") as file:
                parts.append(file.read())
            at += 1
        text = b"".join(parts)
        for state in range(_STATES):
            where = len(text) * (state + 1) // (_STATES + 1)
            text = text[:where] + b"A paragraph that was added in state %d. " % state + text[where:]
            with open(os.path.join(target, f"manual-{number}-state-{state}.txt"), "wb") as file:
                file.write(text)
            grew(len(text))
        number += 1


def _image(target: str, source: str, size_bytes: int, grew: Callable[[int], None]) -> None:
    """A disk image with the first release in it: a real file system where it can be made."""
    os.makedirs(target)
    path = os.path.join(target, "server.img")
    made = False
    mkfs = shutil.which("mkfs.ext4", path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
    if mkfs is not None:
        with open(path, "wb") as file:
            file.truncate(max(16 * MIB, 2 * size_bytes))
        command = [mkfs, "-q", "-F", "-d", source, path]
        made = subprocess.run(command, check=False, capture_output=True).returncode == 0
    if not made:
        _plain_image(path, source, size_bytes)
    grew(os.stat(path).st_blocks * 512)


def _plain_image(path: str, source: str, size_bytes: int) -> None:
    """Files on block boundaries with free space between them, as in a file system."""
    with open(path, "wb") as image:
        for index, name in enumerate(_files(source)):
            if image.tell() >= size_bytes:
                break
            with open(name, "rb") as file:
                image.write(file.read())
            end = -(-image.tell() // _BLOCK_BYTES) * _BLOCK_BYTES
            image.seek(end + (index % 16 == 0) * 64 * _BLOCK_BYTES)
        image.truncate(image.tell())


def _media(target: str, size_bytes: int, grew: Callable[[int], None]) -> None:
    """Compressed streams of real files, and noise: what photographs and films look like."""
    os.makedirs(target)
    half = size_bytes // 2
    raw = 0
    with gzip.open(os.path.join(target, "backup.tar.gz"), "wb", compresslevel=1) as stream:
        for path in _files(os.path.dirname(os.path.realpath(sys.executable))):
            if raw >= half * 2:
                break
            with open(path, "rb") as file:
                raw += stream.write(file.read(8 * MIB))
    grew(os.path.getsize(os.path.join(target, "backup.tar.gz")))
    for number in range(max(1, half // (4 * MIB))):
        with open(os.path.join(target, f"film-{number:03}.mkv"), "wb") as file:
            file.write(os.urandom(min(half, 4 * MIB)))
        grew(min(half, 4 * MIB))
