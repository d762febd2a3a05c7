"""Differences leave a base that nothing else needs any more, and all reads as before."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from dedupd_core.config.policy import RefineMode
from dedupd_core.format.container import Codec, Kind
from dedupd_core.format.table import State
from dedupd_core.units import KIB
from jobs.refine import leaving_bases
from tests.jobs.refine.test_refine import (
    POLICY,
    SIZE,
    chunk_of,
    contents,
    deltas,
    entries,
    refine,
)
from tests.support.gc_oracle import COLLECTED, expect_collected
from tests.support.lab import Lab, new_lab, noise, prose, stop_at
from tests.support.upkeep import entry


def versions(seed: int, count: int) -> Iterator[bytes]:
    """Contents that have most in common: a difference to another one takes more than a block."""
    content = bytearray(noise(SIZE, seed))
    for number in range(count):
        yield bytes(content)
        content[9000:14_000] = noise(5000, 1000 * seed + number)


def new_volume(root: Path, policy: str = "") -> Lab:
    lab = new_lab(root)
    lab.set_policy(POLICY + policy)
    return lab


def refined(lab: Lab, *groups: list[bytes]) -> None:
    """Files of each group that lean on its first one, which is deleted then, and collected."""
    for number, group in enumerate(groups):
        lab.store({f"{number}/{version}": content for version, content in enumerate(group)})
    refine(lab)
    leaning = deltas(lab)
    assert len(leaning) == sum(len(group) - 1 for group in groups)
    for number in range(len(groups)):
        (lab.data / f"{number}/0").unlink()
    lab.collect()
    expect_collected(lab)


@pytest.mark.parametrize("mode", [RefineMode.QUICK, RefineMode.FULL])
def test_the_only_difference_to_a_base_takes_its_place(tmp_path: Path, mode: RefineMode) -> None:
    lab = new_volume(tmp_path / "volume")
    refined(lab, list(versions(1, 2)), list(versions(2, 2)))
    before = contents(lab)
    bases = set(deltas(lab).values())
    # A container that was looked at is looked at again for what is to be won there.
    assert refine(lab, mode).bases_left == 2
    assert deltas(lab) == {}
    assert contents(lab) == before
    lab.verify_clean()
    lab.collect()
    expect_collected(lab)
    assert all(entry(lab, Kind.CHUNKS, base).state in COLLECTED for base in bases)
    lab.compact()
    assert contents(lab) == before
    lab.verify_clean()


def test_a_base_is_left_for_little_where_its_container_is_written_anyway(tmp_path: Path) -> None:
    lab = new_volume(tmp_path / "volume")
    refined(
        lab, *([noise(SIZE, one), noise(SIZE, one)[:-300] + noise(300, 99)] for one in range(3))
    )
    lab.store({f"new/{number}": content for number, content in enumerate(versions(50, 3))})
    before = contents(lab)
    assert refine(lab).bases_left == 3
    assert contents(lab) == before
    lab.verify_clean()


def test_of_several_the_first_is_what_the_others_lean_on(tmp_path: Path) -> None:
    lab = new_volume(tmp_path / "volume")
    refined(lab, list(versions(3, 5)))
    before = contents(lab)
    (base,) = set(deltas(lab).values())
    assert refine(lab).bases_left == 1
    leaning = deltas(lab)
    assert len(leaning) == 3 and set(leaning.values()) == {chunk_of(lab, "0/1")} != {base}
    assert contents(lab) == before
    lab.verify_clean()
    lab.collect()
    assert entry(lab, Kind.CHUNKS, base).state in COLLECTED
    lab.compact()
    assert contents(lab) == before
    lab.verify_clean()


def test_many_that_have_grown_away_from_their_base_leave_it(tmp_path: Path) -> None:
    lab = new_volume(tmp_path / "volume")
    old = noise(SIZE, 20)
    grown = old[:9000] + noise(5000, 21) + old[14_000:]
    count = leaving_bases.MEMBERS_MAX // 2
    refined(lab, [old, *(grown[:-100] + noise(100, 22 + number) for number in range(count))])
    before = contents(lab)
    found = [entries(lab)[one].stored_length for one in deltas(lab)]
    assert min(found) > 5000
    assert refine(lab).bases_left == 1
    found = [entries(lab)[one].stored_length for one in deltas(lab)]
    assert len(found) == count - 1 and max(found) < 200
    assert contents(lab) == before
    lab.verify_clean()


def test_what_compresses_is_compressed_when_it_stands_alone(tmp_path: Path) -> None:
    lab = new_volume(tmp_path / "volume")
    text = prose(SIZE, 4)
    refined(lab, [text, text[:9000] + noise(5000, 5) + text[14_000:]])
    before = contents(lab)
    assert refine(lab).bases_left == 1
    found = entry(lab, Kind.CHUNKS, chunk_of(lab, "0/1"))
    assert found.codec == Codec.ZSTD and found.stored_length < found.raw_length // 2
    assert contents(lab) == before
    lab.verify_clean()


def test_a_difference_leans_on_another_that_is_like_it_where_there_is_one(tmp_path: Path) -> None:
    lab = new_volume(tmp_path / "volume")
    old, kept, new = versions(6, 3)
    refined(lab, [old, kept])
    lab.put("new", new)
    lab.optimize()
    before = contents(lab)
    refine(lab)
    assert deltas(lab) == {chunk_of(lab, "new"): chunk_of(lab, "0/1")}
    assert contents(lab) == before
    lab.verify_clean()


def test_a_base_of_many_and_one_that_a_file_needs_stay(tmp_path: Path) -> None:
    lab = new_volume(tmp_path / "volume")
    refined(lab, list(versions(7, leaving_bases.MEMBERS_MAX + 2)))
    assert refine(lab).outcome == "no new chunks are cold"
    other = new_volume(tmp_path / "other")
    for version, content in enumerate(versions(8, 2)):
        other.put(f"{version}", content)
    other.optimize()
    refine(other)
    other.collect()
    assert refine(other).outcome == "no new chunks are cold"
    assert len(deltas(other)) == 1


def test_a_hint_that_is_wrong_costs_a_chunk_and_no_byte(tmp_path: Path) -> None:
    """The base was deleted and collected, and has come back since: optimize names it again."""
    lab = new_volume(tmp_path / "volume")
    old, kept = versions(9, 2)
    refined(lab, [old, kept])
    base = next(iter(deltas(lab).values()))
    lab.put("again", old)
    lab.optimize()
    assert chunk_of(lab, "again") == base
    refine(lab)
    lab.collect()
    assert entry(lab, Kind.CHUNKS, base).state == State.LIVE
    assert (lab.read("again"), lab.read("0/1")) == (old, kept)
    lab.verify_clean()


def test_what_was_tried_in_vain_is_not_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = new_volume(tmp_path / "volume")
    content = noise(20 * KIB, 10)
    # Without its base the difference takes all that both take now.
    refined(lab, [content, content + noise(10 * KIB, 11)])
    monkeypatch.setattr(leaving_bases.Group, "gain_bytes", property(lambda _: SIZE))
    assert refine(lab).bases_left == 0
    assert refine(lab).outcome == "no new chunks are cold"
    assert len(deltas(lab)) == 1


def in_two_containers(lab: Lab, one: bytes, two: bytes, three: bytes, four: bytes) -> None:
    """Each has a type of its own; their chunks lie in the order of the numbers."""
    for files in ({"1.a": one, "3.b": three}, {"2.a": two, "4.b": four}):
        for name, content in files.items():
            lab.put(name, content)
        lab.optimize()


@pytest.fixture
def any_gain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Containers are small here."""
    monkeypatch.setattr(leaving_bases, "GAIN_BYTES_MIN", 1)


@pytest.mark.usefixtures("any_gain")
def test_a_group_in_two_containers_leaves_in_their_order(tmp_path: Path) -> None:
    lab = new_volume(tmp_path / "volume", "partitions = 2\n")
    in_two_containers(lab, *versions(12, 4))
    refine(lab)
    assert len(deltas(lab)) == 3 and len({one >> 32 for one in deltas(lab)}) == 2
    (lab.data / "1.a").unlink()
    lab.collect()
    before = contents(lab)
    assert refine(lab).bases_left == 1
    assert set(deltas(lab).values()) == {chunk_of(lab, "2.a")}
    assert contents(lab) == before
    lab.verify_clean()
    lab.collect()
    lab.compact()
    assert contents(lab) == before
    lab.verify_clean()


@pytest.mark.usefixtures("any_gain")
def test_where_the_first_container_stays_as_it_is_the_others_do_too(tmp_path: Path) -> None:
    """The base of a group is there as long as one of it leans on it."""
    lab = new_volume(tmp_path / "volume", "partitions = 2\n")
    in_two_containers(lab, *versions(13, 4))
    refine(lab)
    (lab.data / "1.a").unlink()
    lab.collect()
    before, leaning = contents(lab), deltas(lab)
    with stop_at("compact.copied"):
        refine(lab)
    assert deltas(lab) == leaning
    with stop_at("compact.switched"):
        refine(lab)
    assert contents(lab) == before
    lab.verify_clean()
    refine(lab)
    lab.collect()
    refine(lab)
    assert contents(lab) == before
    assert not set(deltas(lab).values()) & deltas(lab).keys()
    lab.verify_clean()


def test_a_second_run_reads_nothing_but_tables(tmp_path: Path) -> None:
    """Every payload is gone, and it does not notice."""
    lab = new_volume(tmp_path / "volume")
    refined(lab, list(versions(14, leaving_bases.MEMBERS_MAX + 2)))
    container = lab.container(Kind.CHUNKS)
    known = [one for one in entries(lab).values() if one.state == State.LIVE]
    with open(container, "r+b") as file:
        for one in known:
            file.seek(one.offset + 80)
            file.write(bytes(one.stored_length))
    with lab.opened() as volume:
        assert volume.chunk_records is not None
    report = refine(lab)
    assert report.outcome == "no new chunks are cold"
    assert report.messages == []
