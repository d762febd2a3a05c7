"""The data set of the demonstration and the benchmarks: a file server, made of real files.

    python -m analysis.dataset [--size 6G] DIRECTORY

Four parts, in shares that follow the data sets of the literature:

- ``software``: trees of programs of this machine, a second deployment, and later versions with some
  files edited;
- ``images``: raw disk images with these files at block borders between runs of zeros, and later
  snapshots of them;
- ``documents``: texts of this machine, stored as people do: saved repeatedly, mailed, zipped;
- ``media``: incompressible bytes, some of them twice.

The same machine makes the same data set, byte for byte, while its programs stay the same.
"""

import argparse
import os
import random
import shutil
import stat
import sys
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

from dedupd_core.errors import UsageError
from dedupd_core.system.inherited import open_standard_streams
from dedupd_core.units import MIB, format_size, parse_size

SHARES = {"software": 0.36, "images": 0.30, "documents": 0.20, "media": 0.14}

SOURCES = (
    *("/usr/lib/*", "/usr/share/*", "/usr/local/*", "/usr/local/lib/*", "/opt/*"),
    *("~/.rustup/toolchains/*", "~/.pyenv/versions/*", "~/.local/lib/*"),
)
"""Directories whose first-level directories each count as one program."""

FILE_BYTES_MAX = 48 * MIB
"""With larger files, programs would be few, and mostly consist of these files."""

BLOCK_BYTES = 4096
TIME_S = 1_600_000_000
"""All times are around this, in 2020: old enough for any policy."""

TEXT_SUFFIXES = {
    ".c",
    ".h",
    ".py",
    ".go",
    ".rs",
    ".txt",
    ".md",
    ".html",
    ".js",
    ".pl",
    ".xml",
    ".po",
}


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file of the machine, below the program that it belongs to."""

    program: Path
    path: Path
    size_bytes: int

    @property
    def name(self) -> Path:
        return Path(self.program.name) / self.path.relative_to(self.program)


class Tree:
    """A tree of files that grows; reports its size to ``on_progress``."""

    def __init__(self, root: Path, on_progress: Callable[[int], None]) -> None:
        self.root = root
        self.size_bytes = 0
        self._on_progress = on_progress

    def write(self, name: Path | str, data: bytes) -> int:
        """Write a file below the root; return its length in bytes."""
        self._path(name).write_bytes(data)
        return self._added(len(data))

    def fill(self, name: str, pieces: Iterator[bytes], size_bytes: int) -> None:
        """Write a file of exactly ``size_bytes``; missing pieces become a hole at the end."""
        with open(self._path(name), "xb") as file:
            file.writelines(pieces)
            file.truncate(size_bytes)
        self._added(size_bytes)

    def copy(self, file: SourceFile, name: Path | str) -> int:
        """Copy a file of the machine, with its mode; return its length in bytes."""
        path = self._path(name)
        shutil.copyfile(file.path, path)
        shutil.copymode(file.path, path)
        return self._added(file.size_bytes)

    def copy_within(self, old: str, new: str) -> Path:
        """Copy a file of the tree."""
        path = self._path(new)
        shutil.copyfile(self.root / old, path)
        self._added(path.stat().st_size)
        return path

    def _path(self, name: Path | str) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def _added(self, size_bytes: int) -> int:
        self.size_bytes += size_bytes
        self._on_progress(self.size_bytes)
        return size_bytes


def programs(without: Path, enough_bytes: int | None = None) -> list[list[SourceFile]]:
    """Return the files of every program found, in an order that only depends on their names.

    The search stops when ``enough_bytes`` are found.
    """
    roots = {
        found.resolve()
        for pattern in SOURCES
        for found in _expand(pattern)
        if found.is_dir() and not found.is_symlink()
    }
    kept = (
        root
        for root in sorted(roots)
        if root != without
        and without not in root.parents
        and root not in without.parents
        and not any(parent in roots for parent in root.parents)
    )
    found: list[list[SourceFile]] = []
    total = 0
    for root in kept:
        if enough_bytes is not None and total >= enough_bytes:
            break
        if files := list(_files(root)):
            found.append(files)
            total += sum(file.size_bytes for file in files)
    return found


def _expand(pattern: str) -> Iterator[Path]:
    path = Path(pattern).expanduser()
    return path.parent.glob(path.name)


def _files(program: Path) -> Iterator[SourceFile]:
    for directory, names, files in os.walk(program):
        names[:] = sorted(name for name in names if name != "__pycache__")
        for name in sorted(files):
            path = Path(directory, name)
            try:
                status = path.lstat()
            except OSError:
                continue
            usable = stat.S_ISREG(status.st_mode) and os.access(path, os.R_OK)
            if usable and status.st_size <= FILE_BYTES_MAX:
                yield SourceFile(program, path, status.st_size)


def mixed(found: list[list[SourceFile]], rng: random.Random) -> list[SourceFile]:
    """Mix programs in random order, in runs of 2,000 files, so that all types occur early."""
    runs = [files[at : at + 2000] for files in found for at in range(0, len(files), 2000)]
    rng.shuffle(runs)
    return [file for run in runs for file in run]


def upto(files: list[SourceFile], size_bytes: int) -> list[SourceFile]:
    """Return the first files that add up to a size."""
    taken, total = [], 0
    for file in files:
        if total >= size_bytes:
            break
        taken.append(file)
        total += file.size_bytes
    return taken


def edited(rng: random.Random, data: bytes, edits: int) -> bytes:
    """Make a later version: some insertions, deletions and replacements of up to 300 bytes."""
    result = bytearray(data)
    for _ in range(edits):
        at = rng.randrange(len(result) + 1)
        length = rng.randint(1, 300)
        new = rng.randbytes(length).hex()[:length].encode()
        match rng.randrange(3):
            case 0:
                result[at:at] = new
            case 1:
                del result[at : at + length]
            case _:
                result[at : at + length] = new
    return bytes(result)


# --- the parts --------------------------------------------------------------------------------


def software(tree: Tree, files: list[SourceFile], size_bytes: int, rng: random.Random) -> None:
    """Write the first half once, then deployed copies and later versions of parts of it."""
    first = upto(files, size_bytes // 2)
    total = sum(tree.copy(file, Path("software/release-1", file.name)) for file in first)
    number = 2
    while total < size_bytes:
        start = rng.randrange(len(first))
        part = upto(first[start:] + first[:start], min(size_bytes - total, size_bytes // 6))
        deployed = number % 2 == 0
        for file in part:
            name = Path(f"software/{'deployed' if deployed else 'release'}-{number}", file.name)
            if deployed or not file.size_bytes or rng.random() >= 0.12:
                total += tree.copy(file, name)
            else:
                tree.write(name, edited(rng, file.path.read_bytes(), rng.randint(1, 4)))
                total += file.size_bytes
        number += 1


def images(tree: Tree, files: list[SourceFile], size_bytes: int, rng: random.Random) -> None:
    """Write three images: one, another that overlaps it by half, a snapshot of the first."""
    each = size_bytes // 3
    half = upto(files, each // 3)
    rest = upto(files[len(half) :], each // 3)
    more = upto(files[len(half) + len(rest) :], each // 3)
    tree.fill("images/one.img", _image(half + rest, each, rng), each)
    tree.fill("images/two.img", _image(rest + more, each, rng), each)
    with open(tree.copy_within("images/one.img", "images/one.snapshot.img"), "r+b") as image:
        for _ in range(each // BLOCK_BYTES // 100):
            image.seek(rng.randrange(each // BLOCK_BYTES) * BLOCK_BYTES)
            image.write(rng.randbytes(BLOCK_BYTES // 2).hex().encode())


def _image(files: list[SourceFile], size_bytes: int, rng: random.Random) -> Iterator[bytes]:
    """Yield files in random order at block borders, with zeros between some."""
    order = [files[at : at + 200] for at in range(0, len(files), 200)]
    rng.shuffle(order)
    written_bytes = 0
    for run in order:
        for file in run:
            data = file.path.read_bytes()
            data += bytes(-len(data) % BLOCK_BYTES)
            yield data
            written_bytes += len(data)
        if rng.random() < 0.2:
            zeros = bytes(rng.randrange(1, 8) * MIB)
            yield zeros
            written_bytes += len(zeros)
        if written_bytes >= size_bytes:
            return


def documents(tree: Tree, files: list[SourceFile], size_bytes: int, rng: random.Random) -> None:
    """Write documents made of texts, each saved a few times; mailed and zipped copies."""
    texts = [f for f in files if f.path.suffix in TEXT_SUFFIXES and 200 < f.size_bytes < MIB]
    if not texts:
        raise UsageError("no texts on this machine to create documents from")
    total = number = 0
    while total < size_bytes:
        wanted = min(int(rng.lognormvariate(12.5, 1.2)), 24 * MIB)
        data = b""
        while len(data) < wanted:
            data += rng.choice(texts).path.read_bytes()
        folder = f"documents/user-{number % 23:02}"
        for save in range(rng.randint(1, 5)):
            total += tree.write(f"{folder}/document {number} v{save}.txt", data)
            if rng.random() < 0.25:
                total += tree.write(f"documents/mail/{number}-{save}.txt", data)
            if rng.random() < 0.25:
                total += tree.write(f"{folder}/document {number} v{save}.zip", _zipped(data))
            data = edited(rng, data, rng.randint(1, 12))
        number += 1


def _zipped(data: bytes) -> bytes:
    """Compress data like office programs do: several parts, each compressed separately."""
    buffer = BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for at in range(0, len(data), 256 << 10):
            name = zipfile.ZipInfo(f"part-{at >> 18}.xml", (2020, 1, 1, 0, 0, 0))
            name.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(name, data[at : at + (256 << 10)])
    return buffer.getvalue()


def media(tree: Tree, files: list[SourceFile], size_bytes: int, rng: random.Random) -> None:
    """Write files that look like pictures and films to a store; one in eight is a copy."""
    total = number = 0
    while total < size_bytes:
        data = rng.randbytes(min(int(rng.lognormvariate(14.6, 0.9)), 64 * MIB))
        total += tree.write(f"media/2020-{number % 12 + 1:02}/IMG_{number:05}.jpg", data)
        if rng.random() < 0.125:
            total += tree.write(f"media/album/IMG_{number:05}.jpg", data)
        number += 1


def build(
    root: Path,
    size_bytes: int,
    on_progress: Callable[[int], None] = lambda _done: None,
    *,
    seed: int = 1,
    enough_bytes: int | None = None,
) -> None:
    """Fill ``root``, which must not exist yet or be empty, to about ``size_bytes``.

    The files come from the first ``enough_bytes`` of the machine's programs, or from all.
    ``on_progress`` gets the number of bytes so far.

    Raises:
        UsageError: the directory is not empty, or the machine has too few files to copy.
    """
    root.mkdir(parents=True, exist_ok=True)
    root = root.resolve()
    if any(root.iterdir()):
        raise UsageError(f"{root} is not empty")
    found = programs(root, enough_bytes)
    if sum(file.size_bytes for files in found for file in files) < size_bytes // 20:
        raise UsageError(
            "too few programs on this machine to create data from; use a smaller --size"
        )
    tree = Tree(root, on_progress)
    for part, name in ((software, "software"), (images, "images")):
        files = mixed(found, random.Random(f"{seed}/{name}/files"))
        part(tree, files, int(SHARES[name] * size_bytes), random.Random(f"{seed}/{name}"))
    files = mixed(found, random.Random(f"{seed}/documents/files"))
    for part, name in ((documents, "documents"), (media, "media")):
        part(tree, files, int(SHARES[name] * size_bytes), random.Random(f"{seed}/{name}"))
    settle_times(root)


def settle_times(root: Path) -> None:
    """Set the times of every entry to values that only depend on its name."""
    for directory, _names, files in os.walk(root, topdown=False):
        for path in (*(Path(directory, name) for name in files), Path(directory)):
            key = random.Random(str(path.relative_to(root))).randrange(10**7)
            os.utime(path, ns=((TIME_S + key) * 10**9, (TIME_S + key) * 10**9 + key))


def describe(root: Path) -> list[tuple[str, int, int]]:
    """Return (part, files, bytes) of a data set."""
    rows = []
    for part in sorted(path for path in root.iterdir() if path.is_dir()):
        sizes = [
            os.lstat(os.path.join(directory, name)).st_size
            for directory, _names, files in os.walk(part)
            for name in files
        ]
        rows.append((part.name, len(sizes), sum(sizes)))
    return rows


def main() -> None:
    open_standard_streams()
    parser = argparse.ArgumentParser(description="Build a data set of real files.")
    parser.add_argument("directory", type=Path)
    parser.add_argument(
        "--size", type=parse_size, default=6 << 30, help="approximate size (default 6G)"
    )
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    try:
        build(arguments.directory, arguments.size, seed=arguments.seed)
    except UsageError as error:
        raise SystemExit(f"dataset: {error}") from None
    rows = describe(arguments.directory)
    for name, files, size in (*rows, ("all", sum(r[1] for r in rows), sum(r[2] for r in rows))):
        print(f"{name:10} {files:8} files {format_size(size):>12}", file=sys.stderr)


if __name__ == "__main__":
    main()
