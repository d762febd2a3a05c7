"""Progress of very large files: an interrupted run goes on inside the file where it was.

A checkpoint is the recipe of the first part of a file, all of it durable. It is a hint, and counts
for exactly the file that it was made of, as size, times and inode say. Chunks that only a
checkpoint names are unreferenced, so a collection of garbage clears the checkpoints first
(:meth:`Checkpoints.clear`).
"""

import json
from typing import NamedTuple

from dedupd_core import native
from dedupd_core.errors import Damaged
from dedupd_core.format.domain import VOLUME
from dedupd_core.format.ids import HOLE, show_id
from dedupd_core.format.recipe import DIGEST_BYTES
from dedupd_core.format.stub import StubAttribute
from dedupd_core.store.recipe.recipe_reader import RecipeRow, UnreadablePart
from dedupd_core.store.recipe.recipe_writer import RecipeProgress
from dedupd_core.stub.transition import FileIdentity
from dedupd_core.units import GIB
from dedupd_core.volume.hints import HintKey
from dedupd_core.volume.volume import Volume

FILE_BYTES_MIN = 4 * GIB
"""Smaller files are read again in seconds, and their stored chunks are found by fingerprints."""


class Checkpoint(NamedTuple):
    """A file, and the recipe of its first ``growth.length`` bytes, all of it durable, in the
    ``domain`` that the file was in."""

    identity: FileIdentity
    growth: RecipeProgress
    domain: bytes = VOLUME


class Checkpoints:
    """The checkpoints of a volume."""

    def __init__(self, volume: Volume) -> None:
        self._volume = volume
        self._found: dict[int, Checkpoint] = {}

    def load(self) -> None:
        """Read all of them; those that are damaged are passed over."""
        checkpoints = map(_decode, self._volume.hints.latest(HintKey.UNFINISHED_FILES))
        self._found = {one.identity.inode: one for one in checkpoints if one is not None}

    def of(self, identity: FileIdentity, domain: bytes = VOLUME) -> RecipeProgress | None:
        """How far exactly this file is, if its chunks and the nodes of its recipe are there, and
        of the domain that it is in now."""
        checkpoint = self._found.get(identity.inode)
        if checkpoint is None or (checkpoint.identity, checkpoint.domain) != (identity, domain):
            return None
        growth = checkpoint.growth
        chunks = self._volume.store.chunk_records
        rows = [row for row in growth.rows if row.chunk != HOLE]
        try:
            if not all(chunks.offers_all(row.chunk, row.fingerprint) for row in rows):
                return None
            for level, nodes in enumerate(growth.levels):
                for node in nodes:
                    if not self._is_whole(node, level):
                        return None
        except Damaged:
            return None
        return growth

    def _is_whole(self, node: RecipeRow, level: int) -> bool:
        """Whether every chunk below a node is still there: its file has no other copy soon."""
        chunks, streams = self._volume.store.chunk_records, self._volume.store.recipe_records
        digest = streams.describe(node.chunk).fingerprint[:DIGEST_BYTES]
        stub = StubAttribute(node.chunk, digest, node.length, 0)
        part = self._volume.content(stub, f"recipe {show_id(node.chunk)}").recipe
        if (part.level, part.length, part.content) != (level, node.length, node.fingerprint):
            return False
        for leaf in part.leaves():
            if isinstance(leaf, UnreadablePart):
                return False
            content, nodes = leaf.content, {node.chunk, leaf.node, *leaf.above}
            rows = zip(content.ids, content.lengths, content.fingerprint_checks, strict=True)
            if not all(streams.is_live(one) for one in nodes) or not all(
                row[0] == HOLE or chunks.offers(*row) for row in rows
            ):
                return False
        return True

    def save(self, checkpoint: Checkpoint) -> None:
        """Keep a checkpoint in place of the one before."""
        identity, growth, domain = checkpoint
        body = json.dumps([list(identity), growth.to_json(), domain.hex()])
        value = {"body": body, "digest": native.hashing.fingerprint(body.encode()).hex()}
        key = HintKey.UNFINISHED_FILES.of(f"{checkpoint.identity.inode:020d}")
        self._volume.hints.put(key, value)

    def clear(self) -> None:
        """Forget all of them."""
        self._volume.hints.delete_all(HintKey.UNFINISHED_FILES)


def _decode(value: dict[str, str]) -> Checkpoint | None:
    try:
        body = value["body"]
        if native.hashing.fingerprint(body.encode()).hex() != value["digest"]:
            return None
        identity, growth, *domain = json.loads(body)
        of = bytes.fromhex(domain[0]) if domain else VOLUME
        return Checkpoint(FileIdentity(*identity), RecipeProgress.from_json(growth), of)
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
