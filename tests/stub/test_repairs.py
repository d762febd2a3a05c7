"""What native code cannot read of a stub is repaired, and read again; and that ends."""

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from dedupd_core import native
from dedupd_core.errors import Damaged, DamagedChunk
from dedupd_core.format.container import FILE_HEADER_BYTES, Kind
from dedupd_core.stub.content import REPAIRS_MAX, StoreContent
from dedupd_core.stub.stub_file import SparseStub
from dedupd_core.system.files import opened
from dedupd_core.volume.volume import Volume
from tests.support.lab import Lab, new_lab, noise

KIB = 1 << 10
CONTENT = noise(600 * KIB, 1)


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    lab = new_lab(tmp_path / "volume")
    lab.put("file", CONTENT)
    lab.optimize()
    return lab


@pytest.fixture
def volume(lab: Lab) -> Iterator[Volume]:
    with lab.opened() as volume:
        yield volume


def content_of(lab: Lab, volume: Volume) -> StoreContent:
    stub = lab.stub("file")
    assert stub is not None
    return volume.content(stub, "file")


def destroy(lab: Lab, kind: Kind) -> None:
    """The content of a container, except its header."""
    path = lab.container(kind)
    data = path.read_bytes()
    path.write_bytes(data[:FILE_HEADER_BYTES].ljust(len(data), b"\0"))


@pytest.mark.parametrize("kind", [Kind.CHUNKS, Kind.RECIPES])
def test_what_another_source_has_is_read(
    lab: Lab, volume: Volume, monkeypatch: pytest.MonkeyPatch, kind: Kind
) -> None:
    stub = lab.stub("file")
    assert stub is not None
    records = volume.records(kind)
    ids = (
        {stub.recipe}
        if kind is Kind.RECIPES
        else {span.chunk for span in content_of(lab, volume).recipe.spans(0, len(CONTENT))}
    )
    known = {one: records.read(one) for one in ids}
    read: list[int] = []

    def from_elsewhere(record_id: int) -> object:
        read.append(record_id)
        return known[record_id]

    destroy(lab, kind)
    if kind is Kind.RECIPES:
        with lab.opened() as fresh:  # each has a second copy
            assert content_of(lab, fresh).read(0, len(CONTENT)) == CONTENT
        destroy(lab, Kind.RECIPE_COPIES)
    with lab.opened() as fresh:
        with pytest.raises(Damaged):
            content_of(lab, fresh).read(0, len(CONTENT))
        monkeypatch.setattr(fresh.records(kind), "read", from_elsewhere)
        found = content_of(lab, fresh)
        assert found.read(0, len(CONTENT)) == CONTENT
        assert found.read(100 * KIB, 500 * KIB) == CONTENT[100 * KIB : 500 * KIB]
    assert set(read) == ids


def test_bytes_that_are_not_meant_are_no_repair(
    lab: Lab, volume: Volume, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = content_of(lab, volume)
    first, second, *_ = (span.chunk for span in content.recipe.spans(0, len(CONTENT)))
    known = {first: volume.store.chunk_records.read(second)}
    destroy(lab, Kind.CHUNKS)
    with lab.opened() as fresh:
        monkeypatch.setattr(fresh.store.chunk_records, "read", known.__getitem__)
        with pytest.raises(DamagedChunk, match="bytes that differ"):
            content_of(lab, fresh).read(0, 10)


class NeverRead:
    """Native code that never reads a part, however often it is repaired."""

    def __init__(self, unreadable: list[native.store.Unreadable]) -> None:
        self.unreadable, self.reads = unreadable, 0

    def read(self, *_: object, **__: object) -> list[native.store.Unreadable]:
        self.reads += 1
        return self.unreadable


def test_a_repair_that_does_not_help_ends(
    lab: Lab, volume: Volume, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub = lab.stub("file")
    assert stub is not None
    read = content_of(lab, volume).recipe.spans(0, 10)
    (chunk,) = (span.chunk for span in read)
    known = {chunk: volume.store.chunk_records.read(chunk)}
    destroy(lab, Kind.CHUNKS)
    with lab.opened() as fresh:
        monkeypatch.setattr(fresh.store.chunk_records, "read", known.__getitem__)
        contents = fresh.contents
        named = stub.recipe, stub.digest, False, stub.covered
        found = contents.native.read(-1, named, (), 0, 10, waits=True)
        assert isinstance(found, list) and [one.part for one in found] == ["chunk"]
        never = NeverRead(found)
        monkeypatch.setattr(contents, "native", never)
        with pytest.raises(DamagedChunk, match="cannot be read"):
            contents.of(stub, "file").read(0, 10)
    assert never.reads == REPAIRS_MAX + 1


@pytest.mark.parametrize("at_once", [False, True])
def test_a_write_to_a_part_of_a_block_gets_the_rest_from_another_source(
    lab: Lab, volume: Volume, monkeypatch: pytest.MonkeyPatch, at_once: bool
) -> None:
    spans = content_of(lab, volume).recipe.spans(0, len(CONTENT))
    known = {span.chunk: volume.store.chunk_records.read(span.chunk) for span in spans}
    destroy(lab, Kind.CHUNKS)
    with lab.opened() as fresh, opened(os.open(lab.data / "file", os.O_RDWR)) as fd:
        stub = lab.stub("file")
        assert stub is not None
        load = partial(fresh.content, where="file")
        sparse = SparseStub(fd, stub, fresh.stub_files, load)
        with pytest.raises(Damaged):
            sparse.write(5000, b"new")
        assert os.fstat(fd).st_blocks == 0, "nothing was written"
        monkeypatch.setattr(fresh.store.chunk_records, "read", known.__getitem__)
        if at_once:
            assert sparse.write_at_once(5000, b"new") is None
        assert sparse.write(5000, b"new") == 3
        assert os.fstat(fd).st_blocks == 8
        expected = CONTENT[:5000] + b"new" + CONTENT[5003:]
        assert sparse.read(0, len(CONTENT)) == expected
