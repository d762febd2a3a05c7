"""Recipes: trees of any height say the same as a plain list of chunks."""

from itertools import accumulate
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dedupd_core import native
from dedupd_core.errors import DamagedContainer, DamagedRecipe, NoSpace
from dedupd_core.format import recipe
from dedupd_core.format import table as tbl
from dedupd_core.format.container import Kind
from dedupd_core.format.ids import HOLE, make_id
from dedupd_core.format.recipe import RecipeRef, fingerprint_check
from dedupd_core.format.stub import Flag, StubAttribute
from dedupd_core.store.reader import RecordReader
from dedupd_core.store.recipe.recipe_reader import HOLE_FINGERPRINT, Leaf, RecipeReader, Span
from dedupd_core.store.recipe.recipe_writer import RecipeBuilder, RecipeWriter
from dedupd_core.stub.content import Contents, Recipe
from tests.support.lab import flip_bit, noise
from tests.support.stores import SECRET, DictIndex, FullDisk, LazyDisk, Records

Chunk = tuple[int, int]
"""Id and length."""

chunk = st.tuples(st.integers(1, 9), st.integers(1, 1000))
hole = st.tuples(st.just(HOLE), st.integers(1, 1 << 40))
files = st.lists(chunk | hole, min_size=1, max_size=60)


def fingerprint_of(chunk_id: int) -> bytes:
    return HOLE_FINGERPRINT if chunk_id == HOLE else native.hashing.fingerprint(b"%d" % chunk_id)


class Streams:
    """A store of recipes and the chunks that direct ones name."""

    def __init__(self, directory: Path) -> None:
        self.streams = Records(directory / "streams", kind=Kind.RECIPES, disk=LazyDisk())
        self.chunks = Records(directory / "chunks", disk=LazyDisk())
        self.index = DictIndex()
        self.recipes = RecipeWriter(self.streams.writer, self.index, "blake3")

    def store(self, chunks: list[Chunk]) -> RecipeRef:
        builder = RecipeBuilder(self.recipes)
        for chunk_id, length in chunks:
            builder.push(chunk_id, length, fingerprint_of(chunk_id))
        ref = builder.finish()
        self.recipes.flush()
        return ref

    def open(self, ref: RecipeRef) -> Recipe:
        return recipe_of(self.streams.reader(), self.chunks.reader(), ref)


def recipe_of(streams: RecordReader, chunks: RecordReader, ref: RecipeRef) -> Recipe:
    cache = native.store.ChunkCache(0)
    stub_bytes = native.store.StubBytes(chunks.native_reader, streams.native_reader, cache, 1)
    contents = Contents(stub_bytes, cache, chunks, RecipeReader(streams))
    return contents.of(stub_of(ref), "the file").recipe


def stub_of(ref: RecipeRef) -> StubAttribute:
    return StubAttribute(ref.recipe, ref.digest, 0, 0, Flag.DIRECT if ref.direct else Flag(0))


@pytest.fixture(scope="module")
def streams(tmp_path_factory: pytest.TempPathFactory) -> Streams:
    return Streams(tmp_path_factory.mktemp("recipes"))


def expected(chunks: list[Chunk]) -> list[Span]:
    """The list that a tree has to equal: holes that touch are one."""
    rows: list[Chunk] = []
    for chunk_id, length in chunks:
        if chunk_id == HOLE and rows and rows[-1][0] == HOLE:
            rows[-1] = HOLE, rows[-1][1] + length
        else:
            rows.append((chunk_id, length))
    offsets = accumulate((length for _, length in rows), initial=0)
    return [
        Span(
            offset,
            length,
            chunk_id,
            0 if chunk_id == HOLE else fingerprint_check(fingerprint_of(chunk_id)),
        )
        for offset, (chunk_id, length) in zip(offsets, rows, strict=False)
    ]


@given(files, st.integers(2, 5), st.data())
def test_a_tree_of_any_height_equals_the_list(
    streams: Streams, chunks: list[Chunk], fanout: int, data: st.DataObject
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recipe, "FANOUT_MAX", fanout)
        ref = streams.store(chunks)
    if ref.direct:
        assert len(chunks) == 1
        return
    found = streams.open(ref)
    oracle = expected(chunks)
    assert_leaves_are(found, oracle)
    length = sum(n for _, n in chunks)
    assert found.length == length
    assert list(found.spans(0, length)) == oracle
    start = data.draw(st.integers(0, length))
    end = data.draw(st.integers(0, length + 5))
    assert list(found.spans(start, end)) == [
        span
        for span in oracle
        if span.offset < min(end, length) and span.offset + span.length > start and start < end
    ]


def assert_leaves_are(found: Recipe, oracle: list[Span]) -> None:
    spans: list[Span] = []
    for leaf in found.leaves():
        assert isinstance(leaf, Leaf)
        rows = leaf.content
        columns = (rows.offsets, rows.lengths, rows.ids, rows.fingerprint_checks)
        spans += [Span(leaf.offset + at, *row) for at, *row in zip(*columns, strict=True)]
    assert spans == oracle


def test_a_recipe_of_millions_of_bytes_has_levels(streams: Streams) -> None:
    chunks = [(1 + at % 9, 100 + at % 7) for at in range(3 * recipe.FANOUT_MAX + 5)]
    ref = streams.store(chunks)
    found = streams.open(ref)
    assert len(list(found.leaves())) == 4
    assert list(found.inner_ids()) == []
    assert list(found.spans(0, found.length)) == expected(chunks)


def test_a_full_disk_loses_no_node_wherever_it_strikes(tmp_path: Path) -> None:
    """Nodes wait in several containers at once; each is appended where its id says."""
    disk = FullDisk()
    records = Records(tmp_path / "s", kind=Kind.RECIPES, disk=disk, container_bytes_max=400)
    writer = RecipeWriter(records.writer, DictIndex(), "blake3")
    refs = []
    for at in range(1, 30):
        disk.room = 200  # for a new container, and no record
        builder = RecipeBuilder(writer)
        for _ in range(3):
            builder.push(at, 100, fingerprint_of(at))
        refs.append(builder.finish())
    for _ in range(12):
        disk.room = 900
        try:
            writer.flush()
            break
        except NoSpace:
            continue
    else:
        pytest.fail("it never got through")
    reader = records.reader()
    for at, ref in enumerate(refs, 1):
        spans = recipe_of(reader, reader, ref).spans(0, 300)
        assert [span.chunk for span in spans] == [at] * 3


def test_equal_content_shares_one_recipe(streams: Streams) -> None:
    chunks = [(1, 500), (HOLE, 77), (2, 600)]
    first = streams.store(chunks)
    size = streams.streams.data().stat().st_size
    assert streams.store(chunks) == first
    assert streams.streams.data().stat().st_size == size


def test_the_content_digest_does_not_depend_on_where_chunks_are(tmp_path: Path) -> None:
    streams = Streams(tmp_path)
    digests = set()
    for base in (1, make_id(7, 3)):
        builder = RecipeBuilder(streams.recipes)
        for at in range(3):
            builder.push(base + at, 100, native.hashing.fingerprint(b"%d" % at))
        ref = builder.finish()
        streams.recipes.flush()
        digests.add(streams.open(ref).content)
    assert len(digests) == 1


def test_a_file_of_one_chunk_names_the_chunk_itself(streams: Streams) -> None:
    (one,) = streams.chunks.append(noise(300))
    fingerprint = native.hashing.fingerprint(noise(300))
    builder = RecipeBuilder(streams.recipes)
    builder.push(one, 300, fingerprint)
    ref = builder.finish()
    assert ref == RecipeRef(one, fingerprint[:16], direct=True)
    found = streams.open(ref)
    assert list(found.spans(0, 300)) == [Span(0, 300, one, fingerprint_check(fingerprint))]


def test_a_direct_recipe_of_another_chunk_is_refused(streams: Streams) -> None:
    (one,) = streams.chunks.append(noise(310, 3))
    with pytest.raises(
        DamagedRecipe, match=r"the file: chunk .* differs from the chunk in the stub"
    ):
        streams.open(RecipeRef(one, bytes(16), direct=True))


def test_a_direct_recipe_survives_a_wrong_table(tmp_path: Path) -> None:
    """A table's check has 16 bits only; what it says is never the last word."""
    streams = Streams(tmp_path)
    (one,) = streams.chunks.append(noise(300))
    wrong = tbl.TableEntry(bytes(32), 128, 0, 300, 77, 0, tbl.State.LIVE, 0)
    with open(streams.chunks.table(), "r+b") as file:
        file.seek(tbl.HEADER_BYTES)
        file.write(tbl.encode_entry(wrong, SECRET.seed(Kind.CHUNKS, 1, 1)))
    found = streams.open(RecipeRef(one, native.hashing.fingerprint(noise(300))[:16], direct=True))
    assert found.length == 300


def test_a_recipe_that_is_not_the_one_named_is_refused(streams: Streams) -> None:
    ref = streams.store([(1, 400), (2, 300)])
    with pytest.raises(
        DamagedRecipe, match=r"the file: recipe .* differs from the recipe in the stub"
    ):
        streams.open(RecipeRef(ref.recipe, bytes(16)))


def test_a_node_in_the_wrong_place_of_a_tree_is_refused(tmp_path: Path) -> None:
    streams = Streams(tmp_path)
    leaf = streams.store([(1, 400), (2, 300)])
    above = recipe.encode_node(1, bytes(16), [(leaf.recipe, 701, b"")])
    (root,) = streams.streams.append(above)
    found = streams.open(RecipeRef(root, native.hashing.fingerprint(above)[:16]))
    with pytest.raises(DamagedRecipe, match="differs from the part in the parent recipe"):
        list(found.spans(0, 701))


def test_a_tree_that_goes_in_a_circle_ends(tmp_path: Path) -> None:
    streams = Streams(tmp_path)
    itself = recipe.encode_node(1, bytes(16), [(make_id(1, 0), 100, b"")])
    (root,) = streams.streams.append(itself)
    found = streams.open(RecipeRef(root, native.hashing.fingerprint(itself)[:16]))
    with pytest.raises(DamagedRecipe):
        list(found.spans(0, 100))


def test_a_bit_flipped_anywhere_in_a_recipe_is_reported(tmp_path: Path) -> None:
    streams = Streams(tmp_path)
    ref = streams.store([(1, 400), (HOLE, 300), (2, 50)])
    streams.streams.writer.sync()
    size = streams.streams.data().stat().st_size
    begin = size - recipe.HEADER_BYTES - 3 * recipe.ENTRY_BYTES - 80
    for bit in range(begin * 8, size * 8, 3):
        flip_bit(streams.streams.data(), bit // 8, bit % 8)
        with pytest.raises(DamagedContainer):
            streams.open(ref)
        flip_bit(streams.streams.data(), bit // 8, bit % 8)
    assert streams.open(ref).length == 750
