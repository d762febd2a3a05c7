"""The native side of the study: the table of files, and writing Parquet."""

import os
import shutil
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dedupd import native

NOWHERE = (0, 0)
KINDS = {"u16": np.uint16, "u32": np.uint32, "u64": np.uint64, "i64": np.int64}


def read(path: Path, columns: str = "*") -> list[tuple[Any, ...]]:
    return duckdb.execute(f"SELECT {columns} FROM read_parquet(?)", [str(path)]).fetchall()


def packed(kind: str, items: list[Any]) -> bytes:
    if kind in KINDS:
        return np.array(items, KINDS[kind]).tobytes()
    encoded = [item.encode() if kind == "text" else item for item in items]
    return b"".join(len(item).to_bytes(4, "little") + item for item in encoded)


@given(
    rows=st.lists(
        st.tuples(
            st.integers(0, 2**16 - 1),
            st.integers(0, 2**32 - 1),
            st.integers(0, 2**64 - 1),
            st.integers(-(2**63), 2**63 - 1),
            st.binary(max_size=20),
            st.text(st.characters(codec="utf-8"), max_size=20),
        )
    )
)
def test_a_database_reads_what_was_written(
    rows: list[tuple[Any, ...]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "table.parquet"
    columns = [
        (kind, kind, packed(kind, [row[at] for row in rows]))
        for at, kind in enumerate([*KINDS, "bytes", "text"])
    ]
    native.study.write_parquet(str(path), columns, len(rows))
    assert read(path) == rows
    [types] = read(path, "any_value(typeof(u16)), any_value(typeof(u64)), any_value(typeof(text))")
    assert types == (("USMALLINT", "UBIGINT", "VARCHAR") if rows else (None, None, None))


def test_tables_of_many_rows_are_divided_into_groups(tmp_path: Path) -> None:
    path = tmp_path / "table.parquet"
    count = 300_001
    numbers = np.arange(count, dtype=np.uint32)
    texts = packed("text", [str(number) for number in range(count)])
    native.study.write_parquet(
        str(path), [("number", "u32", numbers.tobytes()), ("text", "text", texts)], count
    )
    found = read(path, "count(*), sum(number), count(DISTINCT text), count_if(text = number::TEXT)")
    assert found == [(count, count * (count - 1) // 2, count, count)]
    groups = duckdb.execute(
        "SELECT DISTINCT row_group_id FROM parquet_metadata(?)", [str(path)]
    ).fetchall()
    assert len(groups) == 3


@pytest.mark.parametrize(
    "column", [("c", "u32", bytes(7)), ("c", "u32", bytes(12)), ("c", "bytes", b"\x09\0\0\0")]
)
def test_columns_of_another_length_are_refused(
    tmp_path: Path, column: tuple[str, str, bytes]
) -> None:
    with pytest.raises(ValueError, match="has not 2 items"):
        native.study.write_parquet(str(tmp_path / "table"), [column], 2)


def test_the_table_of_files_says_what_stat_says(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    names = ["plain", "d\udcff/e/Photo.JPEG", "d\udcff/e/empty", "é/lib.so.1.2", "é/é/x.É"]
    for number, name in enumerate(names):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_bytes(b"x" * 1000 * number)
    (tree / "plain").write_bytes(b"")
    os.link(tree / "plain", tmp_path / "a name elsewhere")
    os.truncate(tree / "é/lib.so.1.2", 10_000_000)
    walk = native.study.TreeWalk(os.fsencode(tree), NOWHERE, 10)
    found = walk.next(1000)
    assert found is not None and walk.next(1) is None
    found.write(str(tmp_path / "part"), 7, 100)
    rows = {row[2]: row for row in read(tmp_path / "part")}
    assert sorted(row[:2] for row in rows.values()) == [(7, 100 + at) for at in range(len(names))]
    for name in names:
        status = (tree / name).stat()
        assert rows[os.fsencode(name)][5:] == (
            status.st_ino,
            status.st_size,
            status.st_mtime_ns,
            status.st_ctime_ns,
            status.st_nlink,
            status.st_blocks * 512,
        )
    shown = {(row[3], row[4]) for row in rows.values()}
    assert shown == {("", ""), ("d\\xff/e", "jpeg"), ("d\\xff/e", ""), ("é", "so"), ("é/é", "é")}


def test_what_has_content_is_what_there_is_to_read(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / name).write_bytes(b"" if name == "b" else name.encode() * 10)
    found = native.study.TreeWalk(os.fsencode(tmp_path), NOWHERE, 10).next(1000)
    assert found is not None and len(found) == 3
    numbers, paths, ends, identities = found.with_content()
    assert sorted(paths.split(b"\0")) == [b"", b"a", b"c"]
    assert np.frombuffer(ends, np.uint64).tolist() == [2, 4]
    assert len(np.frombuffer(numbers, np.uint32)) == 2
    assert np.frombuffer(identities, np.uint64).reshape(-1, 4)[:, 1].tolist() == [10, 10]


def test_second_names_are_passed_over_as_far_as_memory_reaches(tmp_path: Path) -> None:
    for number in range(10):
        (tmp_path / f"{number}").write_bytes(b"x")
        os.link(tmp_path / f"{number}", tmp_path / f"{number} again")
    for names_max, expected in ((10, 10), (9, 11), (0, 20)):
        walk = native.study.TreeWalk(os.fsencode(tmp_path), NOWHERE, names_max)
        found = walk.next(1000)
        assert found is not None
        assert len(found) == expected
        assert walk.beyond_names == (expected > 10)


def test_a_walk_goes_on_where_another_one_was(tmp_path: Path) -> None:
    """Also in a directory with more entries than the kernel lists at once."""
    for place in ("a", "a/b", "c", "d/e"):
        (tmp_path / place).mkdir(parents=True, exist_ok=True)
        for number in range(600):
            (tmp_path / place / f"{'n' * 200}{number}").write_bytes(b"x")
    root = os.fsencode(tmp_path)
    whole = native.study.TreeWalk(root, NOWHERE, 10).next(10_000)
    assert whole is not None and len(whole) == 4 * 600
    paths, steps = b"", 0
    state = native.study.TreeWalk(root, NOWHERE, 10).state()
    while True:
        walk = native.study.TreeWalk(root, NOWHERE, 10)
        walk.resume(state)
        if (found := walk.next(1)) is None:
            break
        paths += found.with_content()[1]
        state = walk.state()
        steps += 1
    assert steps > 4
    assert paths == whole.with_content()[1]


def test_a_walk_goes_on_without_a_directory_that_vanished(tmp_path: Path) -> None:
    for place in ("a/b", "c"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "file").write_bytes(b"x")
    for number in range(600):
        (tmp_path / "a" / f"{'n' * 200}{number}").write_bytes(b"x")
    walk = native.study.TreeWalk(os.fsencode(tmp_path), NOWHERE, 10)
    assert walk.next(1) is not None
    state = walk.state()
    shutil.rmtree(tmp_path / "a")
    again = native.study.TreeWalk(os.fsencode(tmp_path), NOWHERE, 10)
    again.resume(state)
    found = again.next(1000)
    assert found is not None
    assert (found.with_content()[1], found.failures) == (b"c/file\0", [])


@pytest.mark.parametrize("state", [b"", bytes(11), b"\xff" * 12 + b"no end"])
def test_what_is_not_the_state_of_a_walk_is_refused(tmp_path: Path, state: bytes) -> None:
    with pytest.raises(ValueError, match="not that of a walk"):
        native.study.TreeWalk(os.fsencode(tmp_path), NOWHERE, 10).resume(state)
