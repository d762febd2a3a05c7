"""Proves that bytes are the content of a record that remains only in references.

If both the header of a record and its table entry are lost, its fingerprint is unknown. But a stub
of a single chunk has half of the fingerprint. The leaf of a recipe has a digest of all its
fingerprints: if one is missing, only the correct fingerprint produces that digest.
"""

from collections.abc import Mapping

from dedupd_core.errors import Damaged
from dedupd_core.format import table as tbl
from dedupd_core.format.ids import HOLE
from dedupd_core.format.recipe import DIGEST_BYTES, content_digest, fingerprint_check
from dedupd_core.format.stub import Flag, StubAttribute
from dedupd_core.native.store import RecipeLeaf
from dedupd_core.store.container.table_file import LOST
from dedupd_core.store.reader import RecordReader
from dedupd_core.store.recipe.recipe_reader import HOLE_FINGERPRINT, UnreadablePart
from dedupd_core.volume.volume import Volume


class Proofs:
    """The lost records whose fingerprint is unknown, and the proofs of it.

    ``pending`` records have references, and their bytes have not been found.
    """

    def __init__(
        self, volume: Volume, records: RecordReader, lost: Mapping[int, tbl.TableEntry]
    ) -> None:
        """``records`` are the chunks; ``lost`` are the entries of lost chunks, by id."""
        self._volume = volume
        self._records = records
        self._lost = lost
        self._halves: dict[bytes, set[int]] = {}
        self._leaves: dict[tuple[int, int], list[tuple[int, RecipeLeaf]]] = {}
        self._fingerprints: dict[int, bytes | None] = {}
        self.pending: set[int] = set()

    def learn(self, stub: StubAttribute, where: str) -> None:
        """Collect the facts about lost records in a stub and its recipe."""
        if Flag.DIRECT in stub.flags:
            if self._is_unknown(stub.recipe):
                self._halves.setdefault(stub.digest, set()).add(stub.recipe)
                self.pending.add(stub.recipe)
            return
        try:
            recipe = self._volume.content(stub, where).recipe
        except Damaged:
            return
        for part in recipe.leaves():
            if isinstance(part, UnreadablePart):
                continue
            node = part.content
            for chunk, length, check in zip(
                node.ids, node.lengths, node.fingerprint_checks, strict=True
            ):
                if self._is_unknown(chunk):
                    self._leaves.setdefault((length, check), []).append((chunk, node))
                    self.pending.add(chunk)

    def prove(self, length: int, fingerprint: bytes) -> list[int]:
        """Return the records that are proven to have these bytes, each only once."""
        half = fingerprint[:DIGEST_BYTES]
        found = self._halves.pop(half, set()) & self.pending
        for chunk, leaf in self._leaves.get((length, fingerprint_check(fingerprint)), ()):
            if chunk in self.pending and self._makes_up(leaf, chunk, fingerprint):
                found.add(chunk)
        self.pending -= found
        self._fingerprints.update(dict.fromkeys(found, fingerprint))
        return sorted(found)

    def _is_unknown(self, chunk: int) -> bool:
        entry = self._lost.get(chunk)
        return entry is not None and entry.fingerprint == LOST.fingerprint

    def _makes_up(self, leaf: RecipeLeaf, chunk: int, fingerprint: bytes) -> bool:
        """Return whether a leaf matches its digest if ``chunk`` has this fingerprint."""
        parts: list[tuple[bytes, int]] = []
        for chunk_id, length in zip(leaf.ids, leaf.lengths, strict=True):
            known = fingerprint if chunk_id == chunk else self._fingerprint(chunk_id)
            if known is None:
                return False
            parts.append((known, length))
        return content_digest(parts) == leaf.content

    def _fingerprint(self, chunk: int) -> bytes | None:
        """Return the fingerprint of another chunk; None if it is unknown."""
        if chunk == HOLE:
            return HOLE_FINGERPRINT
        if chunk not in self._fingerprints:
            self._fingerprints[chunk] = self._look_up(chunk)
        return self._fingerprints[chunk]

    def _look_up(self, chunk: int) -> bytes | None:
        if self._is_unknown(chunk):
            return None
        if chunk in self._lost:
            return self._lost[chunk].fingerprint
        try:
            return self._records.describe(chunk).fingerprint
        except Damaged:
            return None
