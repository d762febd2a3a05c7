"""docs/design/format.md says what the code does: offsets, sizes, numbers, fail points,
invariants."""

import hashlib
import importlib
import os
import pkgutil
import re
import struct
from array import array
from collections.abc import Iterator
from dataclasses import fields, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, cast

import pytest

import dedupd_core
import jobs
from dedupd_core import failpoint, native
from dedupd_core.format import container as fmt
from dedupd_core.format import deletion, merge_log, recipe, stream, stub
from dedupd_core.format import table as tbl
from dedupd_core.format.cluster import objects
from dedupd_core.format.derived import saved_marks, saved_notes
from dedupd_core.format.domain import VOLUME, of_folder, of_lost, of_owner
from dedupd_core.format.volume_parameters import FORMAT
from dedupd_core.stores.local_store import STORE_DIRS
from dedupd_core.volume.base_directory import DISABLING, ENABLING, VOLUME_FILE
from dedupd_core.volume.volume import POLICY_FILE
from jobs.check.invariants import INVARIANTS
from tests.support.lab import lab_in

TEXT = (Path(__file__).resolve().parents[2] / "docs/design/format.md").read_text(encoding="utf-8")

UUID = bytes(range(100, 116))
DIGEST = bytes(range(200, 216))
HASH = bytes(range(32, 64))


def rows(heading: str) -> Iterator[list[str]]:
    """The cells of the first table below a heading, without its head."""
    section = re.split(r"^#+ ", TEXT.split(f"# {heading}\n")[1], maxsplit=1, flags=re.M)[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    for line in lines[2:]:
        yield [cell.strip() for cell in line.strip("|").split(" | ")]


def layout(heading: str) -> dict[str, tuple[int, int]]:
    """Field → offset and size, checked to leave no gap."""
    found: dict[str, tuple[int, int]] = {}
    end = 0
    for offset, size, field, *_ in rows(heading):
        assert int(offset) == end, f"{heading}: a gap before {field}"
        end += int(size)
        if field != "reserved":
            found[field.strip("`")] = int(offset), int(size)
    stated = re.search(r"\((\d+) bytes\)", heading)
    assert stated and int(stated[1]) == end
    return found


def number(data: bytes, place: tuple[int, int], signed: bool = False) -> int:
    offset, size = place
    return int.from_bytes(data[offset : offset + size], "little", signed=signed)


def expect(data: bytes, places: dict[str, tuple[int, int]], values: dict[str, Any]) -> None:
    """Every documented field is where the document says, with the value that was encoded."""
    assert places.keys() == values.keys()
    for field, value in values.items():
        offset, size = places[field]
        if isinstance(value, bytes):
            assert data[offset : offset + size] == value, field
        else:
            assert number(data, places[field], signed=value < 0) == value, field


def test_the_container_header() -> None:
    plain = fmt.FileHeader(fmt.Kind.RECIPES, 0x1234, 7, 9, UUID, 0x123456789A, seed=0x1122)
    places = layout("Container header (128 bytes)")
    for header, version in (
        (plain, fmt.FORMAT),
        (replace(plain, domain=of_owner(1000)), fmt.FORMAT_APART),
    ):
        data = fmt.encode_file_header(header)
        values = {f.name: getattr(header, f.name) for f in fields(header)} | {"seed_again": 0x1122}
        checksum = number(data, places["checksum"])
        own = {"magic": b"DEDUPCNT", "format": version, "checksum": checksum}
        expect(data, places, {**values, **own})
        assert len(data) == fmt.FILE_HEADER_BYTES == 128


def test_the_domains() -> None:
    kinds = {int(row[0]) for row in rows("Domains")}
    made = (VOLUME, of_owner(0x1234), of_folder(UUID, b"top"), of_lost(7))
    assert kinds == {one[0] for one in made} and {len(one) for one in made} == {16}
    assert of_owner(0x1234) == bytes([1, 0, 0, 0, 0x34, 0x12]) + bytes(10)
    digest = hashlib.blake2b(b"top", digest_size=15, key=UUID).digest()
    assert of_folder(UUID, b"top") == bytes([2]) + digest


def test_the_record_header() -> None:
    record = fmt.Record(
        ordinal=5,
        kind=1,
        codec=1,
        raw_length=1000,
        stored_length=900,
        hint=800,
        fingerprint=HASH,
        target=0xABCDEF,
        checksum=0x1122334455,
    )
    buffer = bytearray(fmt.RECORD_HEADER_BYTES)
    fmt.pack_record_into(memoryview(buffer), 0, record, 3)
    data = bytes(buffer)
    places = layout("Record header (80 bytes)")
    values = {f.name: getattr(record, f.name) for f in fields(record)}
    own = number(data, places["header_checksum"])
    expect(data, places, {**values, "magic": b"DDRC", "header_checksum": own})


def test_the_table_header() -> None:
    plain = tbl.TableHeader(fmt.Kind.CHUNKS, 0x1234, 7, 9, 0x77, 0x88, 0x123456789A, 77, 66)
    places = layout("Table header (64 bytes)")
    for header, version in (
        (plain, fmt.FORMAT),
        (replace(plain, is_apart=True), fmt.FORMAT_APART),
    ):
        data = tbl.encode_header(header)
        values = {f.name: getattr(header, f.name) for f in fields(header)}
        del values["is_apart"]  # says the format
        checksum = number(data, places["checksum"])
        own = {"magic": b"DEDUPDIR", "format": version, "checksum": checksum}
        expect(data, places, {**values, **own})
        assert len(data) == tbl.HEADER_BYTES


def test_the_table_entry() -> None:
    entry = tbl.TableEntry(HASH, 0x1234567890, 0x99887766, 900, 1000, 800, tbl.State.MERGED, 1)
    data = tbl.encode_entry(entry, 5)
    places = layout("Table entry (64 bytes)")
    values = entry._asdict()
    expect(data, places, {**values, "check": number(data, places["check"])})
    assert len(data) == tbl.ENTRY_BYTES


def test_the_merge_log_header() -> None:
    header = merge_log.LogHeader(7, UUID, 0x1122334455)
    data = merge_log.encode_header(header)
    places = layout("Merge log header (64 bytes)")
    values = {f.name: getattr(header, f.name) for f in fields(header)}
    checksum = number(data, places["checksum"])
    expect(data, places, {**values, "magic": b"DEDUPMRG", "format": 1, "checksum": checksum})
    assert len(data) == merge_log.HEADER_BYTES
    pair = layout("Merge log pair (16 bytes)")
    expect(struct.pack("<QQ", 5, 6), pair, {"merged": 5, "stays": 6})


def test_the_frames_of_a_stream() -> None:
    frame = stream.Frame(stream.FrameKind.TREE, 1, 77, b"payload")
    data = stream.encode_frame(frame, 5, 9)
    places = layout("Frame header (32 bytes)")
    seed = native.hashing.xxh3_64(b"payload", 9)
    values = {
        "magic": b"DDSF",
        "kind": 5,
        "codec": 1,
        "sequence": 5,
        "raw_length": 77,
        "stored_length": 7,
        "checksum": native.hashing.xxh3_64(data[:24], seed),
    }
    expect(data, places, values)
    assert len(data) == stream.HEADER_BYTES + 7
    kinds = [int(row[0]) for row in rows("Kinds of frames")]
    assert kinds == [int(kind) for kind in stream.FrameKind]


def test_the_nodes_of_a_stream() -> None:
    attributes = ((b"user.a", b"value"), (b"user.b", b""))
    flags = stream.NodeFlag.RECIPE | stream.NodeFlag.LINKED
    names = ("mode", "uid", "gid", "device", "inode", "size", "atime_ns", "mtime_ns")
    numbers = dict(zip(names, (1, 2, 3, 4, 5, 6, -7, 8), strict=True))
    node = stream.StreamNode(
        b"a/path", flags, **cast(Any, numbers), recipe=9, attributes=attributes
    )
    data = stream.encode_node(node)
    tail = 6 + 6 + 6 + 5 + 6 + 6
    values = {
        "flags": 6,
        "path_bytes": 6,
        "target_bytes": 0,
        "attributes": 2,
        "attributes_bytes": tail - 6,
        "recipe": 9,
        **numbers,
    }
    places = layout("Tree node (68 bytes)")
    expect(data, places, {name: values[name] for name in places})
    assert len(data) == 68 + tail
    assert list(stream.decode_nodes(data * 2, "")) == [node, node]


def test_a_chunk_in_a_cluster() -> None:
    data = objects.encode_frame(b"payload", 1, 77, HASH)
    places = layout("Chunk frame (32 bytes)")
    values = {
        "magic": b"DDRF",
        "format": objects.FORMAT,
        "codec": 1,
        "stored_length": 7,
        "raw_length": 77,
        "checksum": native.hashing.xxh3_64(b"payload"),
        "header_check": native.hashing.xxh3_64(data[:24], int.from_bytes(HASH[:8], "little")),
    }
    expect(data, places, values)
    flags = {row[0].strip("`"): row[1] for row in rows("Flags of a chunk")}
    assert flags == {one.value: one.name.lower() for one in objects.ChunkState}


def test_a_recipe_in_a_cluster() -> None:
    entry = objects.ChunkEntry(0x123456789A, 1000, HASH)
    file = objects.FileId(0x1122334455, 6)
    recipe = objects.FileRecipe(DIGEST.hex(), UUID.hex(), file, 0x223456789A, [entry])
    (data,) = objects.encode_parts(recipe)
    values = {
        "magic": b"DDRM",
        "format": objects.FORMAT,
        "part": 0,
        "parts": 1,
        "count": 1,
        "length": recipe.length,
        "version": DIGEST,
        "volume_id": UUID,
        "inode": file.inode,
        "generation": 6,
        "body_checksum": native.hashing.xxh3_64(data[96:]),
        "checksum": native.hashing.xxh3_64(data[:88]),
    }
    expect(data, layout("Recipe part (96 bytes)"), values)
    expect(data[96:], layout("Chunk entry (44 bytes)"), entry._asdict())


def test_the_saved_marks_header() -> None:
    header = saved_marks.MarksHeader(3, 4, UUID, 0x123456789A, 0x1122334455)
    data = saved_marks.encode_header(header)
    places = layout("Saved marks header (64 bytes)")
    values = {f.name: getattr(header, f.name) for f in fields(header)}
    checksum = native.hashing.xxh3_64(data[:56])
    expect(data, places, {**values, "magic": b"DEDUPGCM", "format": 1, "checksum": checksum})
    head = saved_marks.SectionHead(5, 6, 0x1122334455)
    section = layout("Saved marks section (16 bytes)")
    expect(saved_marks.encode_section(head), section, head._asdict())


def test_the_saved_notes_header() -> None:
    header = saved_notes.NotesHeader(UUID, 3, 4, 5, 0x123456789A, True)
    data = saved_notes.encode_header(header)
    assert saved_notes.decode_header(data, "here") == header
    places = layout("Saved notes header (64 bytes)")
    values = {f.name: getattr(header, f.name) for f in fields(header) if f.name != "is_joined"}
    checksum = native.hashing.xxh3_64(data[:56])
    own = {"magic": b"DEDUPNOT", "format": 1, "flags": 1, "checksum": checksum}
    expect(data, places, {**values, **own})


def test_saved_marks(tmp_path: Path) -> None:
    with lab_in(tmp_path, chunk_size="4k") as lab:
        lab.put("file", os.urandom(100_000))
        lab.optimize()
        report = lab.collect()
        stub = lab.stub("file")
        data = (lab.base / "saved.marks").read_bytes()
        table = lab.table(fmt.Kind.RECIPES).read_bytes()
    header = saved_marks.decode_header(data, "")
    assert (header.chunk_containers, header.recipe_containers) == (1, 1)
    body = data[64:]
    assert (header.body_bytes, header.body_checksum) == (len(body), native.hashing.xxh3_64(body))
    count = report.chunks
    bits = (2**count - 1).to_bytes(-(-count // 64) * 8, "little")
    fingerprints = native.hashing.xxh3_64(table[64:96], 0)
    assert stub is not None and stub.covered == 100_000
    assert body == (
        struct.pack("<IIQ", 1, count, 0)
        + bits
        + struct.pack("<IIQ", 1, 1, fingerprints)
        + struct.pack("<QQQ", 100_000, 100_000, 0)
    )


def test_the_recipe_node() -> None:
    data = recipe.encode_node(0, DIGEST, [(0x55, 1000, HASH), (0, 2**40, bytes(32))])
    places = layout("Recipe node header (40 bytes)")
    expect(
        data,
        places,
        {
            "magic": b"DDRP",
            "format": recipe.FORMAT,
            "level": 0,
            "count": 2,
            "length": 2**40 + 1000,
            "content": DIGEST,
        },
    )
    entry_places = layout("Recipe entry (16 bytes)")
    first = data[recipe.HEADER_BYTES :]
    check = int.from_bytes(HASH[:4], "little")
    expect(first, entry_places, {"id": 0x55, "length": 1000 | check << 32})
    expect(first[recipe.ENTRY_BYTES :], entry_places, {"id": 0, "length": 2**40})


def test_the_stub_attribute() -> None:
    attribute = stub.StubAttribute(0x1_0000_0002, DIGEST, 12345, -5, stub.Flag.DIRECT, 8192)
    data = stub.encode_stub(attribute, UUID, 0x7788)
    places = layout("Stub attribute (64 bytes)")
    expect(
        data,
        places,
        {
            "format": stub.FORMAT,
            "flags": 4,
            "reserved": 0,
            "check": number(data, places["check"]),
            "recipe": 0x1_0000_0002,
            "digest": DIGEST,
            "covered": 12345,
            "mtime_ns": -5,
            "binding": 0x7788,
            "local": 8192,
        },
    )
    assert len(data) == stub.HEAD_BYTES


def test_the_saved_table_header(tmp_path: Path) -> None:
    fd = os.open(tmp_path, os.O_RDONLY)
    try:
        index = native.index.TableIndex(fd, UUID, 1, capacity=0, page_entries=1, cache_entries=1)
        index.insert(HASH + DIGEST + DIGEST, array("Q", [1 << 32, 5 << 32]))
        index.begin_snapshot()
        parts = list(iter(partial(next, map(index.snapshot_part, count())), None))
    finally:
        os.close(fd)
    header, lists, *planes = parts
    places = layout("Saved table header (64 bytes)")
    values = {
        "magic": b"DEDUPTBL",
        "format": 2,
        "kind": 1,
        "group_bits": 6,
        "groups": len(planes),
        "volume_id": UUID,
        "entries": 2,
        "containers": 2,
        "blocks": 2,
        "planes": len(planes),
        "stashed": 0,
    }
    expect(header, places, {**values, "checksum": native.hashing.xxh3_64(header[:56])})
    assert len(lists) == 2 * 24 + 2 * 8 + 4 * len(planes) + 8
    assert {len(plane) for plane in planes} == {64 * 48 + 8}
    for part in (lists, *planes):
        assert part[-8:] == native.hashing.xxh3_64(part[:-8]).to_bytes(8, "little")


def test_the_saved_chains(tmp_path: Path) -> None:
    fd = os.open(tmp_path, os.O_RDONLY)
    path = tmp_path / "chains"
    path.touch()
    hashes = [n.to_bytes(8, "little") + bytes([5]) * 24 for n in range(0, 520 << 32, 1 << 32)]
    try:
        with path.open("r+b") as file:
            index = native.index.BloomIndex(
                *(fd, UUID, 1, file.fileno(), None),
                reserve_bytes=0,
                capacity=0,
                page_entries=1,
                cache_entries=1,
            )
        assert not index.restore(0)
        index.insert(b"".join(hashes), array("Q", range(1 << 32, (1 << 32) + 520)))
        index.write_lists()
        index.write_header()
    finally:
        os.close(fd)
    data = path.read_bytes()
    values = {
        "magic": b"DEDUPBLM",
        "format": 1,
        "kind": 1,
        "partitions": 16,
        "volume_id": UUID,
        "entries": 520,
        "containers": 1,
        "blocks": 1,
        "chains": 1,
        "buffered": 9,
        "checksum": native.hashing.xxh3_64(data[:56]),
    }
    expect(data[:64], layout("Saved chains header (64 bytes)"), values)
    lists = data[161 * 4096 :]
    assert len(lists) == 24 + 8 + 8 + 9 * 12 + 8
    assert lists[32:40] == struct.pack("<II", 0, 1)
    assert lists[-8:] == native.hashing.xxh3_64(lists[:-8]).to_bytes(8, "little")
    page, unit = data[33 * 4096 : 34 * 4096], 33
    assert page[:-8] == b"".join(struct.pack("<II", n, n) for n in range(511))
    assert page[-8:] == native.hashing.xxh3_64(page[:-8], unit).to_bytes(8, "little")
    for signature in range(511):
        block, rows_ = place_of(signature)
        start = (1 + block) * 4096
        assert all(data[start + row * 16] & 1 for row in rows_)


def test_the_deletion_log() -> None:
    header = deletion.LogHeader(
        *(0x1234, UUID, 0x123456789A, 0x1122334455667788), uid=0x55667788, first=0x4440
    )
    data = deletion.encode_header(header)
    places = layout("Deletion log header (64 bytes)")
    own = {"magic": b"DEDUPDEL", "format": 2, "checksum": number(data, places["checksum"])}
    fields = {name: value for name, value in header._asdict().items() if name in places}
    expect(data, places, {**fields, **own})
    assert len(data) == deletion.LOG_HEADER_BYTES

    flags = stub.Flag.DIRECT | stub.Flag.WRITTEN
    attribute = stub.StubAttribute(0x1122334455, DIGEST, 55, 0, flags, 44)
    one = deletion.Deletion(
        *(deletion.Cause.CUT, 0x1234567890, 66, b"a/path", 0o100640, 11, 12, 0x99887766, 13, 77),
        *(-5, -6, attribute, ((b"user.x", b"value"),)),
    )
    row = deletion.encode_deletion(one, 9, 4096)
    places = layout("Deletion (136 bytes)")
    tail = b"a/path" + struct.pack("<HI", 6, 5) + b"user.xvalue"
    place = native.hashing.xxh3_64(struct.pack("<Q", 4096), 9)
    checksum = native.hashing.xxh3_64(row[:128], place)
    values = {field: getattr(one, field) for field in one._fields if field in places}
    own = {"magic": b"DDDL", "flags": 12, "path_bytes": 6, "attributes": 1, "checksum": checksum}
    own |= {"attributes_bytes": 17, "recipe": 0x1122334455, "digest": DIGEST}
    own |= {"tail_checksum": native.hashing.xxh3_64(tail, place)}
    expect(row, places, {**values, **own, "covered": 55, "local": 44})
    assert row[136 : 136 + len(tail)] == tail
    assert "at most 1 MiB" in TEXT
    assert deletion.DELETION_BYTES_MAX == 1 << 20


def mix(value: int) -> int:
    """The finalizer of SplitMix64."""
    mask = (1 << 64) - 1
    value = (value + 0x9E3779B97F4A7C15) & mask
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & mask
    value = (value ^ value >> 27) * 0x94D049BB133111EB & mask
    return value ^ value >> 31


def place_of(signature: int) -> tuple[int, list[int]]:
    """Block and rows of a signature, as the text has it."""
    rows_ = mix(~signature & (1 << 64) - 1).to_bytes(8, "little")
    return mix(signature) >> 59, [byte * 255 // 256 for byte in rows_]


@pytest.mark.parametrize(
    ("heading", "field", "numbers"),
    [
        ("Container header (128 bytes)", "kind", fmt.Kind),
        ("Record header (80 bytes)", "kind", fmt.RecordKind),
        ("Record header (80 bytes)", "codec", fmt.Codec),
        ("Table entry (64 bytes)", "state", tbl.State),
        ("Stub attribute (64 bytes)", "flags", stub.Flag),
        ("Deletion (136 bytes)", "cause", deletion.Cause),
    ],
)
def test_the_numbers_have_the_names_that_the_code_gives_them(
    heading: str, field: str, numbers: Any
) -> None:
    text = next(row[3] for row in rows(heading) if row[2] == f"`{field}`")
    stated = {name: int(value) for value, name in re.findall(r"(\d+) (\w+)", text)}
    assert stated == {member.name.lower(): member.value for member in numbers}


def test_the_limits_in_the_text() -> None:
    assert FORMAT == 3 and "`format` is 3." in TEXT
    assert fmt.CONTAINER_BYTES_MAX == 1 << 30 and "up to 1 GiB" in TEXT
    assert fmt.ALIGN_BYTES == 8 and "each beginning at a multiple of 8" in TEXT
    assert recipe.FANOUT_MAX == 4096 and "1 to 4096" in TEXT
    assert stub.HEAD_BYTES <= 64 and "a clean stub costs no block" in TEXT


def test_every_fail_point_is_in_the_text_and_no_other() -> None:
    for package in (dedupd_core, jobs):
        for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
            if not module.name.startswith("dedupd_core.native"):
                importlib.import_module(module.name)
    groups = {name.partition(".")[0] for name in failpoint.POINTS}
    named = {
        name for name in re.findall(r"`(\w+\.[\w-]+)`", TEXT) if name.partition(".")[0] in groups
    }
    assert named == set(failpoint.POINTS)


def test_every_invariant_is_in_the_text_word_for_word() -> None:
    assert {name.strip("`"): text for name, text in rows("What verify checks")} == INVARIANTS


def test_the_directory_is_what_a_volume_has(tmp_path: Path) -> None:
    documented = {cell.strip("`") for row in rows("The directory") for cell in row[0].split(", ")}
    assert {n.decode() for n in (VOLUME_FILE, POLICY_FILE, ENABLING, DISABLING)} <= documented
    assert {f"{directory}/NNNNNNNN.dat" for directory in STORE_DIRS.values()} <= documented
    with lab_in(tmp_path) as lab:
        lab.put("file", os.urandom(300_000))
        lab.optimize()
        lab.collect()
        for path in lab.base.rglob("*"):
            relative = path.relative_to(lab.base)
            if relative.parts[0] in ("data", "catalog") or path.is_dir():
                continue
            name = re.sub(r"\d{8}", "NNNNNNNN", str(relative))
            assert name in documented or name.replace(".dir", ".dat") in documented, name


def test_links_within_the_text_lead_somewhere() -> None:
    anchors = {
        re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")
        for heading in re.findall(r"^#+ (.+)$", TEXT, re.M)
    }
    assert set(re.findall(r"\]\(#([\w-]+)\)", TEXT)) <= anchors
