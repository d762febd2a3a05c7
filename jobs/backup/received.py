"""The received part of a stream: its chunks by their numbers, its recipes, its tree.

It is in ``.dedupd/receive`` until the switch. If the stream is interrupted, the next stream reuses
the chunks that are durable in the store; recipes and tree are sent again.
"""

import json
import os
import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from typing import Any, NamedTuple

from dedupd_core.config.room import Room
from dedupd_core.errors import Damaged
from dedupd_core.format.recipe import RecipeRef
from dedupd_core.format.stream import StreamNode, decode_nodes
from dedupd_core.replica.replica import RECEIVE_DIR, Replica
from dedupd_core.system.disk import Disk
from dedupd_core.system.files import opened, read_at, read_file

STATE_FILE, CHUNKS_FILE, RECIPES_FILE, PLAN_FILE = b"stream.json", b"chunks", b"recipes", b"plan"
ROWS_FILE, HELD_FILE = b"rows", b"held"
"""For a volume on a cluster store: the rows of recipes, and the file versions in the cluster that
keep chunks until the switch."""
_FILES = CHUNKS_FILE, RECIPES_FILE, PLAN_FILE, ROWS_FILE, HELD_FILE

_CHUNK = struct.Struct("<QI32s")
_RECIPE = struct.Struct("<Q16sB7xQ")
_LENGTH = struct.Struct("<I")
_ROW = struct.Struct("<QI")
_HELD_BYTES = 16
_ROWS_AT_ONCE = 4096


class ReceivedChunk(NamedTuple):
    """Id in this store, length and fingerprint."""

    chunk: int
    length: int
    fingerprint: bytes


class ReceivedRecipe(NamedTuple):
    """A recipe in this store, and the length of its content."""

    ref: RecipeRef
    length: int


class Received:
    """The directory, opened for one stream. Its only user holds the job lock."""

    def __init__(self, base_fd: int, disk: Disk, room: Room) -> None:
        """``base_fd`` is borrowed only during this call; ``room`` is that of its file system."""
        self._disk = disk
        self._room = room
        with suppress(FileExistsError):
            disk.make_dir(base_fd, RECEIVE_DIR)
            disk.sync_dir(base_fd)
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        self.fd = os.open(RECEIVE_DIR, flags, dir_fd=base_fd)
        self.state = _state_at(self.fd)
        self._files = {name: self._opened(name) for name in _FILES}
        self._ends = {name: os.fstat(fd).st_size for name, fd in self._files.items()}

    def _opened(self, name: bytes) -> int:
        disk = self._disk
        try:
            return disk.open_write(self.fd, name)
        except FileNotFoundError:
            return disk.create(self.fd, name)

    def close(self) -> None:
        for fd in self._files.values():
            os.close(fd)
        os.close(self.fd)

    def begin(self, replica: Replica, chunks: int) -> None:
        """Start the stream of a state. Its first ``chunks`` were received earlier."""
        held = len(self.held) if chunks else 0
        state = {**asdict(replica), "chunks": chunks, "is_complete": False, "held": held}
        if chunks > self.chunks:
            raise Damaged(
                f"the stream needs {chunks} chunks received earlier, but only {self.chunks} are"
                " present; send again without --resume"
            )
        self._cut(CHUNKS_FILE, chunks * _CHUNK.size)
        self._cut(RECIPES_FILE, 0)
        self._cut(PLAN_FILE, 0)
        self._cut(ROWS_FILE, 0)
        self._cut(HELD_FILE, held * _HELD_BYTES)
        self.note(state)

    def _cut(self, name: bytes, length: int) -> None:
        self._disk.truncate(self._files[name], length)
        self._ends[name] = length

    def note(self, state: dict[str, Any]) -> None:
        """Replace the state, durably. The other files become durable first."""
        for fd in self._files.values():
            self._disk.sync_data(fd)
        self.state = state
        self._disk.replace_file(self.fd, STATE_FILE, json.dumps(state).encode())

    @property
    def chunks(self) -> int:
        """Return the number of chunks that are durable in the store."""
        return int(self.state.get("chunks", 0))

    @property
    def stream(self) -> str:
        """Return the id of the stream that is received."""
        return str(self.state.get("point", ""))

    @property
    def complete(self) -> Replica | None:
        """Return the completely received state; None if it is incomplete."""
        state = self.state
        if not state.get("is_complete"):
            return None
        return Replica(state["volume"], state["point"], state["moment_ns"])

    @property
    def chunk_count(self) -> int:
        """Return the number of received chunks, durable or not."""
        return self._ends[CHUNKS_FILE] // _CHUNK.size

    def _append(self, name: bytes, data: bytes) -> None:
        self._room.require(len(data), "the received part of a stream")
        self._disk.write_at(self._files[name], [data], self._ends[name])
        self._ends[name] += len(data)

    def add_chunks(self, rows: list[ReceivedChunk]) -> None:
        self._append(CHUNKS_FILE, b"".join(_CHUNK.pack(*row) for row in rows))

    def chunk(self, number: int) -> ReceivedChunk:
        """Return the chunk with this number, counted from 0. Raises Damaged."""
        data = os.pread(self._files[CHUNKS_FILE], _CHUNK.size, number * _CHUNK.size)
        if len(data) != _CHUNK.size:
            raise Damaged(f"the stream refers to chunk {number}, which it does not contain")
        return ReceivedChunk._make(_CHUNK.unpack(data))

    @property
    def recipe_count(self) -> int:
        return self._ends[RECIPES_FILE] // _RECIPE.size

    def add_recipe(self, recipe: ReceivedRecipe) -> None:
        ref = recipe.ref
        row = _RECIPE.pack(ref.recipe, ref.digest, ref.direct, recipe.length)
        self._append(RECIPES_FILE, row)

    def recipe(self, number: int) -> ReceivedRecipe:
        """Return the recipe with this number. Raises Damaged."""
        data = os.pread(self._files[RECIPES_FILE], _RECIPE.size, number * _RECIPE.size)
        if len(data) != _RECIPE.size:
            raise Damaged(f"the stream refers to recipe {number}, which it does not contain")
        recipe, digest, is_direct, length = _RECIPE.unpack(data)
        return ReceivedRecipe(RecipeRef(recipe, digest, bool(is_direct)), length)

    # --- of a store in a cluster --------------------------------------------------------------

    @property
    def row_count(self) -> int:
        return self._ends[ROWS_FILE] // _ROW.size

    def add_rows(self, rows: list[tuple[int, int]]) -> None:
        """Append parts of recipes: the number of a chunk from 1, or 0 for a hole; and a length."""
        self._append(ROWS_FILE, b"".join(_ROW.pack(*row) for row in rows))

    def rows(self, first: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield the rows with these ordinals. Raises Damaged."""
        for at in range(first, end, _ROWS_AT_ONCE):
            count = min(_ROWS_AT_ONCE, end - at)
            data = read_at(self._files[ROWS_FILE], count * _ROW.size, at * _ROW.size)
            if len(data) != count * _ROW.size:
                raise Damaged("a received recipe is incomplete")
            yield from _ROW.iter_unpack(data)

    @property
    def held(self) -> list[str]:
        """Return the durably recorded file versions that keep chunks."""
        return _held(self._files[HELD_FILE], int(self.state.get("held", 0)))

    def add_held(self, version: str) -> None:
        """Record another file version; :meth:`note` makes it durable."""
        self._append(HELD_FILE, bytes.fromhex(version))
        self.state["held"] = self._ends[HELD_FILE] // _HELD_BYTES

    def add_nodes(self, data: bytes) -> None:
        self._append(PLAN_FILE, _LENGTH.pack(len(data)) + data)

    def nodes(self) -> Iterator[StreamNode]:
        """Yield the tree, in the order of the stream. Raises Damaged."""
        at, fd = 0, self._files[PLAN_FILE]
        while at < self._ends[PLAN_FILE]:
            (length,) = _LENGTH.unpack(read_at(fd, _LENGTH.size, at))
            at += _LENGTH.size
            yield from decode_nodes(read_at(fd, length, at), "the received tree")
            at += length


def held_version(base_fd: int, ordinal: int) -> str | None:
    """Return the file version of an ordinal that keeps chunks of a stream, if there is one."""
    flags = os.O_RDONLY | os.O_CLOEXEC
    try:
        with opened(os.open(RECEIVE_DIR, flags | os.O_DIRECTORY, dir_fd=base_fd)) as fd:
            state = _state_at(fd)
            with opened(os.open(HELD_FILE, flags, dir_fd=fd)) as held_fd:
                held = _held(held_fd, int(state.get("held", 0)))
    except FileNotFoundError:
        return None
    return held[ordinal] if ordinal < len(held) else None


def _held(fd: int, count: int) -> list[str]:
    data = read_at(fd, count * _HELD_BYTES, 0)
    ends = range(_HELD_BYTES, len(data) + 1, _HELD_BYTES)
    return [data[end - _HELD_BYTES : end].hex() for end in ends]


def _state_at(fd: int) -> dict[str, Any]:
    try:
        state: dict[str, Any] = json.loads(read_file(fd, STATE_FILE))
        return state
    except (FileNotFoundError, ValueError):
        return {}


def remove_tree(disk: Disk, dir_fd: int, name: bytes) -> None:
    """Remove a directory, if it exists, and everything below it."""
    with suppress(FileNotFoundError):
        disk.remove_all(dir_fd, name)
