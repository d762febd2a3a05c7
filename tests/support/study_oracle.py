"""The study, computed the plain way: every file in memory, dictionaries, one chunk at a time.

It shares the cutting and the compression of single chunks with the product, and nothing else.
"""

import hashlib
import math
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path

from dedupd_core import native
from dedupd_core.format.volume_parameters import PRESETS

SAVING_MIN = 0.05


@dataclass(frozen=True)
class Chunk:
    """One occurrence of a chunk. ``content`` identifies it; None for zeros."""

    content: bytes | None
    offset: int
    length: int
    compressed: int

    @property
    def stored(self) -> int:
        return self.compressed if self.compressed <= self.length * (1 - SAVING_MIN) else self.length


@dataclass(frozen=True)
class OneFile:
    dataset: str
    path: str
    content: bytes
    changed_s: float

    @property
    def type(self) -> str:
        stem, dot, extension = os.path.basename(self.path).rpartition(".")
        return extension.lower() if dot and stem else ""


@dataclass(frozen=True)
class Oracle:
    """All files of some datasets."""

    files: list[OneFile]

    @classmethod
    def of(cls, datasets: dict[str, Path]) -> "Oracle":
        files = []
        for label, root in datasets.items():
            for path in sorted(root.rglob("*")):
                if path.is_file() and not path.is_symlink() and path.stat().st_size:
                    status = path.stat()
                    changed = max(status.st_mtime_ns, status.st_ctime_ns) / 1e9
                    name = str(path.relative_to(root))
                    files.append(OneFile(label, name, path.read_bytes(), changed))
        return cls(files)

    @property
    def data_bytes(self) -> int:
        return sum(len(file.content) for file in self.files)

    def whole_file_bytes(self, files: Iterable[OneFile] | None = None) -> int:
        chosen = self.files if files is None else files
        return sum({hashlib.sha1(f.content).digest(): len(f.content) for f in chosen}.values())

    @cached_property
    def _chunks(self) -> dict[str, dict[int, list[Chunk]]]:
        return {}

    def chunks(self, chunking: str) -> dict[int, list[Chunk]]:
        """Chunks of every file, by its place in ``files``."""
        if chunking not in self._chunks:
            self._chunks[chunking] = {
                at: cut(file.content, chunking) for at, file in enumerate(self.files)
            }
        return self._chunks[chunking]

    def in_dataset(self, label: str) -> list[OneFile]:
        return [file for file in self.files if file.dataset == label]

    def of_type(self, name: str) -> list[OneFile]:
        return [file for file in self.files if file.type == name]

    def distinct(self, chunking: str, files: list[OneFile] | None = None) -> dict[bytes, Chunk]:
        """The distinct chunks of some files, or of all."""
        names = {(f.dataset, f.path) for f in (self.files if files is None else files)}
        return {
            chunk.content: chunk
            for at, chunks in self.chunks(chunking).items()
            if (self.files[at].dataset, self.files[at].path) in names
            for chunk in chunks
            if chunk.content is not None
        }

    def copies(self, chunking: str) -> Counter[bytes]:
        return Counter(
            chunk.content
            for chunks in self.chunks(chunking).values()
            for chunk in chunks
            if chunk.content is not None
        )

    def partitioned_bytes(
        self, chunking: str, partition: Mapping[str, object], dataset: str
    ) -> int:
        """Bytes left when duplicates are removed within each partition of a dataset only.

        ``partition`` has that of each path.
        """
        seen: dict[tuple[object, bytes], int] = {}
        for at, chunks in self.chunks(chunking).items():
            file = self.files[at]
            if file.dataset == dataset:
                for chunk in chunks:
                    if chunk.content is not None:
                        seen[partition.get(file.path), chunk.content] = chunk.length
        return sum(seen.values())

    def duplicate_share(self, chunking: str, dataset: str) -> dict[int, tuple[int, int, int]]:
        """Figure 1: step of 5 % → files, bytes in chunks, bytes in duplicate chunks."""
        where = defaultdict(set)
        for at, chunks in self.chunks(chunking).items():
            if self.files[at].dataset == dataset:
                for chunk in chunks:
                    where[chunk.content].add(at)
        steps: dict[int, tuple[int, int, int]] = {}
        for at, chunks in self.chunks(chunking).items():
            data = [chunk for chunk in chunks if chunk.content is not None]
            if self.files[at].dataset != dataset or not data:
                continue
            shared = [chunk for chunk in data if len(where[chunk.content]) > 1]
            step = 5 * math.floor(20 * (len(shared) / len(data)))
            files, size, duplicate = steps.get(step, (0, 0, 0))
            steps[step] = (
                files + 1,
                size + sum(chunk.length for chunk in data),
                duplicate + sum(chunk.length for chunk in shared),
            )
        return steps


def cut(content: bytes, chunking: str) -> list[Chunk]:
    """The chunks of a file."""
    if chunking == "fixed-64k":
        ends = [*range(65536, len(content), 65536), len(content)]
    else:
        preset = PRESETS[chunking.removesuffix("-basic")]
        if chunking.endswith("-basic"):
            preset = replace(preset, regression=0)
        found = native.testing.cut(native.chunker.Chunker(**asdict(preset)), content)
        ends = memoryview(found).cast("I").tolist()
    chunks = []
    start = 0
    for end in ends:
        chunks.append(_chunk(content[start:end], start))
        start = end
    return chunks


_compressed: dict[bytes, int] = {}


def _chunk(data: bytes, offset: int) -> Chunk:
    if not data.strip(b"\0"):
        return Chunk(None, offset, len(data), 0)
    content = hashlib.sha1(data).digest()
    if content not in _compressed:
        encoded = native.codec.encode(
            data,
            (0).to_bytes(4, "little"),
            len(data).to_bytes(4, "little"),
            level=3,
            saving_min=0.0,
            header_bytes=0,
            align_bytes=1,
        )
        _compressed[content] = memoryview(encoded.stored_lengths).cast("I")[0]
    return Chunk(content, offset, len(data), _compressed[content])
