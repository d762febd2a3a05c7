"""Data sets for tests, the same for the same seed, with known answers.

Every file is put together from ranges of *extents*, pieces of random content that share nothing
with each other. So the bytes that no deduplication can remove are known exactly: those that the
ranges cover.
"""

import os
import random
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from dedupd_core.units import KIB, MIB
from tests.support import odd_files

_WORDS = 4096
_WORD_BYTES = 8


@dataclass(frozen=True, slots=True)
class Range:
    """Bytes [start, end) of an extent; extent 0 is zeros without end."""

    extent: int
    start: int
    end: int


Content = tuple[Range, ...]


@dataclass(frozen=True, slots=True)
class Answers:
    """What is true of a data set, in bytes where nothing else is said.

    ``whole_file_bytes`` are left when each file's content is kept once, zeros included;
    ``unique_bytes`` when each byte but zeros is: no chunking stores less. Around each of the
    ``seams`` between ranges a chunking may lose the two chunks there.
    """

    files: int
    data_bytes: int
    zero_bytes: int
    whole_file_bytes: int
    unique_bytes: int
    seams: int


@dataclass(slots=True)
class Generator:
    """Makes the files of one data set, and keeps the books."""

    root: bytes
    seed: int
    _lengths: list[int] = field(default_factory=lambda: [0])
    _text: list[bool] = field(default_factory=lambda: [False])
    _files: list[Content] = field(default_factory=list)

    def extent(self, length: int, *, text: bool) -> Range:
        """New content that occurs nowhere else; ``text`` compresses, the rest does not."""
        self._lengths.append(length)
        self._text.append(text)
        return Range(len(self._lengths) - 1, 0, length)

    def write(self, path: str, content: Content) -> None:
        """A file of that content, below the root."""
        target = os.path.join(self.root, os.fsencode(path))
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with open(target, "xb") as file:
            for part in content:
                file.write(self._bytes(part))
        self._files.append(content)

    def _bytes(self, part: Range) -> bytes:
        if part.extent == 0:
            return bytes(part.end - part.start)
        rng = np.random.Generator(np.random.PCG64([self.seed, part.extent]))
        length = self._lengths[part.extent]
        if not self._text[part.extent]:
            return rng.bytes(length)[part.start : part.end]
        words = np.frombuffer(
            np.random.Generator(np.random.PCG64([self.seed])).bytes(_WORDS * _WORD_BYTES), np.uint64
        )
        # Cubes prefer the first words, as languages do.
        picks = (rng.random(length // _WORD_BYTES + 1) ** 3 * _WORDS).astype(np.intp)
        return words[picks].tobytes()[part.start : part.end]

    def answers(self) -> Answers:
        contents = set(self._files)
        data = [part for content in self._files for part in content]
        return Answers(
            files=len(self._files),
            data_bytes=sum(part.end - part.start for part in data),
            zero_bytes=sum(part.end - part.start for part in data if part.extent == 0),
            whole_file_bytes=sum(p.end - p.start for c in contents for p in c),
            unique_bytes=_covered(part for part in data if part.extent),
            seams=sum(len(content) + 1 for content in contents),
        )


def _covered(parts: Iterable[Range]) -> int:
    """Bytes of extents that at least one range covers."""
    total, extent, reached = 0, 0, 0
    for part in sorted(set(parts), key=lambda part: (part.extent, part.start)):
        if part.extent != extent:
            extent, reached = part.extent, 0
        total += max(0, part.end - max(part.start, reached))
        reached = max(reached, part.end)
    return total


def generate(root: str, size_bytes: int, seed: int = 1) -> Answers:
    """Fill the directory ``root``, which is made, with about ``size_bytes`` of mixed files."""
    os.makedirs(root, exist_ok=True)
    generator = Generator(os.fsencode(root), seed)
    for name, (share, fill) in SHARES.items():
        fill(generator, round(share * size_bytes), random.Random(f"{seed}/{name}"))
    return generator.answers()


def _edited(
    generator: Generator, rng: random.Random, content: Content, edits: int, *, text: bool
) -> Content:
    """A later version: a few pieces inserted, removed or replaced."""
    for _ in range(edits):
        length = sum(part.end - part.start for part in content)
        at = rng.randrange(length + 1)
        removed = rng.choice((0, rng.randint(1, 400)))
        added = rng.choice((0, rng.randint(1, 400))) if removed else rng.randint(1, 400)
        middle = (generator.extent(added, text=text),) if added else ()
        content = _cut(content, 0, at) + middle + _cut(content, min(at + removed, length), length)
    return content


def _cut(content: Sequence[Range], start: int, end: int) -> Content:
    """The bytes [start, end) of a content."""
    parts, at = [], 0
    for part in content:
        length = part.end - part.start
        low, high = max(start - at, 0), min(end - at, length)
        if low < high:
            parts.append(Range(part.extent, part.start + low, part.start + high))
        at += length
    return tuple(parts)


def _versions(generator: Generator, size_bytes: int, rng: random.Random) -> None:
    """Versions of a software tree: most files unchanged, some edited, a few new."""
    versions = 4
    tree: dict[str, tuple[Content, bool]] = {}
    filled = number = 0
    while filled < size_bytes // versions:
        length = min(int(rng.lognormvariate(10, 1.6)) + 1, 4 * MIB)
        text = rng.random() < 0.7
        name = f"lib{number % 7}/file{number}.{'c' if text else 'so'}"
        tree[name] = (generator.extent(length, text=text),), text
        filled += length
        number += 1
    for version in range(versions):
        for name, (content, _) in tree.items():
            generator.write(f"versions/1.{version}/{name}", content)
        for name in rng.sample(sorted(tree), max(1, len(tree) // 8)):
            content, text = tree[name]
            tree[name] = _edited(generator, rng, content, 2, text=text), text
        tree[f"lib0/new{version}.c"] = (generator.extent(20 * KIB, text=True),), True


def _documents(generator: Generator, size_bytes: int, rng: random.Random) -> None:
    """Documents that were saved again and again, and copied by others."""
    filled = number = 0
    while filled < size_bytes:
        content: Content = (generator.extent(rng.randint(100, 900) * KIB, text=True),)
        for save in range(3):
            generator.write(f"documents/user{number % 3}/report {number} v{save}.doc", content)
            filled += content[0].end
            if rng.random() < 0.3:
                generator.write(f"documents/shared/report {number} v{save}.doc", content)
                filled += content[0].end
            content = _edited(generator, rng, content, 3, text=True)
        number += 1


def _images(generator: Generator, size_bytes: int, rng: random.Random) -> None:
    """Disk images of machines with the same system, a third of them zeros, and a snapshot."""
    block = 256 * KIB
    blocks = max(8, size_bytes // (3 * block))
    system = [generator.extent(block, text=rng.random() < 0.5) for _ in range(blocks // 2)]
    for machine in range(2):
        image: list[Range] = []
        for at in range(blocks):
            if at % 3 == 2:
                image.append(Range(0, 0, block))
            elif at // 2 < len(system) and at % 3 == 0:
                image.append(system[at // 2])
            else:
                image.append(generator.extent(block, text=False))
        generator.write(f"images/machine{machine}.img", tuple(image))
    for _ in range(max(1, blocks // 16)):
        image[rng.randrange(blocks)] = generator.extent(block, text=True)
    generator.write("images/machine1.snapshot.img", tuple(image))


def _media(generator: Generator, size_bytes: int, rng: random.Random) -> None:
    """What does not compress, and is there twice at times."""
    filled = number = 0
    while filled < size_bytes:
        content = (generator.extent(rng.randint(200, 3000) * KIB, text=False),)
        generator.write(f"media/IMG_{number:04d}.jpg", content)
        filled += content[0].end
        if number % 6 == 5:
            generator.write(f"media/copies/IMG_{number:04d}.jpg", content)
            filled += content[0].end
        number += 1


SHARES: dict[str, tuple[float, Callable[[Generator, int, random.Random], None]]] = {
    "versions": (0.4, _versions),
    "documents": (0.2, _documents),
    "images": (0.25, _images),
    "media": (0.15, _media),
}
"""Share of the size, and what makes it."""

MIXED_BYTES = 24 * MIB
"""Of the files of :func:`build` that are not odd."""


def build(root: bytes, seed: int = 1, parts: Collection[str] | None = None) -> None:
    """Fill the directory ``root``, which is made if need be, with the named parts, or all: mixed
    files, and odd ones.

    About 40 MiB and 700 entries. Owners, devices and ``trusted`` attributes come with root only.
    """
    unknown = set(parts or ()) - SHARES.keys() - odd_files.PARTS.keys()
    if unknown:
        raise ValueError(f"no such part: {', '.join(sorted(unknown))}")
    os.makedirs(root, exist_ok=True)
    generator = Generator(root, seed)
    for name in SHARES.keys() | odd_files.PARTS.keys() if parts is None else parts:
        rng = random.Random(f"{seed}/{name}")
        if name in SHARES:
            share, fill = SHARES[name]
            fill(generator, round(share * MIXED_BYTES), rng)
        else:
            directory = os.path.join(root, name.encode())
            os.mkdir(directory)
            odd_files.PARTS[name](directory, rng)
    age(root, random.Random(f"{seed}/times"))


def age(root: bytes, rng: random.Random) -> None:
    """Give every entry a time in the past, in nanoseconds."""
    paths = [root]
    for directory, names, files in os.walk(root):
        names.sort()
        paths += [os.path.join(directory, name) for name in sorted(names + files)]
    for path in reversed(paths):
        atime, mtime = (odd_files.EPOCH_NS + rng.randrange(10**17) for _ in range(2))
        os.utime(path, ns=(atime, mtime), follow_symlinks=False)
