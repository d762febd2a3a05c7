"""Containers of format 1, as older versions wrote them: users can know their seed."""

import struct
from dataclasses import replace
from pathlib import Path

from dedupd_core.format import container as fmt
from dedupd_core.format import table as tbl
from dedupd_core.format.sealed_header import seal
from dedupd_core.store.container.container import table_name

_FILE = struct.Struct("<8sHBBIII16sQ")
_TABLE = struct.Struct("<8sHBBIII16sIHHII")


def make_old(data: Path) -> None:
    """Rewrite a container whose records are all intact, and its table, in format 1."""
    whole = bytearray(data.read_bytes())
    header = fmt.decode_file_header(bytes(whole[: fmt.FILE_HEADER_BYTES]), "")
    seed, old = fmt.seed_of(header), replace(header, seed=0)
    public = fmt.seed_of(old)
    at = fmt.FILE_HEADER_BYTES
    while at < len(whole):
        record = fmt.unpack_record(memoryview(whole), at, seed)
        assert record is not None
        fmt.pack_record_into(memoryview(whole), at, record, public)
        at += fmt.record_size(record.stored_length)
    whole[: fmt.FILE_HEADER_BYTES] = seal(
        _FILE.pack(
            *(fmt.FILE_MAGIC, fmt.FORMAT_PUBLIC, header.kind, header.punches, header.container),
            *(header.generation, header.partition, header.volume_id, header.created_ns),
        ),
        fmt.FILE_HEADER_BYTES,
    )
    data.write_bytes(whole)
    table = data.parent / table_name(header.container).decode()
    body = table.read_bytes()
    mark = tbl.decode_header(body[: tbl.HEADER_BYTES], "")
    assert mark.map_lines == 0
    entries = tbl.decode_entries(body[tbl.HEADER_BYTES :], seed)
    head = _TABLE.pack(
        *(tbl.MAGIC, fmt.FORMAT_PUBLIC, mark.kind, mark.punches, mark.container, mark.generation),
        *(mark.partition, header.volume_id, mark.synced_bytes & 0xFFFF_FFFF),
        *(mark.synced_bytes >> 32, 0, mark.synced_count, mark.reconciled),
    )
    packed = (tbl.encode_entry(entry, public) for entry in entries if entry is not None)
    table.write_bytes(seal(head) + b"".join(packed))
