"""Objects of a store in a cluster decode to what was encoded, and nothing else decodes."""

import os

import pytest

from dedupd_core.errors import Damaged, DamagedRecipe, UsageError
from dedupd_core.format.cluster import objects
from dedupd_core.format.cluster.address import StoreAddress, parse_address
from dedupd_core.format.cluster.objects import ChunkEntry, FileId, FileRecipe, FileVersions
from dedupd_core.rados.cluster.wire import decode_holder
from tests.support.rados_hosts import fingerprint, new_chunk

VERSION = "0123456789abcdef" * 2
VOLUME = "fedcba9876543210" * 2


@pytest.mark.parametrize("raw", [b"", b"x", b"text " * 5000, os.urandom(80_000)])
def test_a_frame_gives_back_its_chunk(raw: bytes) -> None:
    assert objects.decode_frame(new_chunk(raw).frame(), fingerprint(raw)) == raw


def test_no_changed_byte_of_a_frame_passes() -> None:
    raw = b"some text that compresses, compresses, compresses, compresses" * 3
    frame = new_chunk(raw).frame()
    for at in range(len(frame)):
        damaged = bytearray(frame)
        damaged[at] ^= 0x40
        with pytest.raises(Damaged):
            objects.decode_frame(bytes(damaged), fingerprint(raw))
    for end in range(len(frame)):
        with pytest.raises(Damaged):
            objects.decode_frame(frame[:end], fingerprint(raw))


def test_the_frame_of_another_chunk_does_not_pass() -> None:
    with pytest.raises(Damaged, match="belongs to another chunk"):
        objects.decode_frame(new_chunk(b"one").frame(), fingerprint(b"two"))


def recipe_of(count: int) -> FileRecipe:
    entries = [ChunkEntry(n * 100, 90, n.to_bytes(32, "big")) for n in range(count)]
    return FileRecipe(VERSION, VOLUME, FileId(77, 3), count * 100 + 5, entries)


@pytest.mark.parametrize(
    ("count", "parts"), [(0, 1), (1, 1), (objects.PART_ENTRIES_MAX, 1), (95_400, 2)]
)
def test_a_recipe_comes_back_from_its_parts(count: int, parts: int) -> None:
    recipe = recipe_of(count)
    encoded = list(objects.encode_parts(recipe))
    assert len(encoded) == parts and max(map(len, encoded)) <= objects.PART_BYTES_MAX
    decoded = [objects.decode_part(data, VERSION, part) for part, data in enumerate(encoded)]
    assert objects.join_parts(decoded) == recipe


def test_no_changed_byte_of_a_recipe_passes() -> None:
    (data,) = objects.encode_parts(recipe_of(2))
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 1
        with pytest.raises(DamagedRecipe):
            objects.decode_part(bytes(damaged), VERSION, 0)
    with pytest.raises(DamagedRecipe, match="another recipe"):
        objects.decode_part(data, VOLUME, 0)


def test_parts_that_do_not_add_up_are_refused() -> None:
    entries = [ChunkEntry(0, 100, bytes(32)), ChunkEntry(50, 100, bytes(32))]
    overlapping = FileRecipe(VERSION, VOLUME, FileId(1, 1), 150, entries)
    (data,) = objects.encode_parts(overlapping)
    with pytest.raises(DamagedRecipe, match="overlap"):
        objects.join_parts([objects.decode_part(data, VERSION, 0)])
    longer = FileRecipe(VERSION, VOLUME, FileId(1, 1), 90, entries[:1])
    (data,) = objects.encode_parts(longer)
    with pytest.raises(DamagedRecipe, match="add up"):
        objects.join_parts([objects.decode_part(data, VERSION, 0)])


def test_what_a_file_names() -> None:
    for versions in (FileVersions(VERSION), FileVersions(VERSION, VOLUME)):
        assert objects.parse_versions(versions.value) == versions
    assert FileVersions(VERSION, "-").live == {VERSION}
    file = FileId(0x1234, 9)
    assert FileId.parse(file.text) == file and file.key == "f.0000000000001234.00000009"


@pytest.mark.parametrize(
    "text",
    [
        "rados:pool/name",
        "rados:pool/name?conf=/a/ceph.conf&user=me&keyring=/a/key&timeout=5s",
    ],
)
def test_an_address_is_written_as_it_is_read(text: str) -> None:
    assert str(parse_address(text)) == text


def test_what_an_address_says() -> None:
    found = parse_address("rados:p/n?user=client.me&timeout=2m")
    assert found == StoreAddress("p", "n", user="me", timeout_s=120)


@pytest.mark.parametrize(
    "text",
    [
        "rados:pool",
        "/a/directory",
        "rados:a/b/c",
        "rados:/b",
        "rados:a/b?x=1",
        "rados:a/b?timeout=0s",
    ],
)
def test_other_addresses_are_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_address(text)


def test_a_lock_that_nobody_holds() -> None:
    assert decode_holder(bytes.fromhex("0101090000000000000000000000ff")) is None
