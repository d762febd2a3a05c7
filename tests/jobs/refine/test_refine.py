"""Refining: what is alike is stored as the difference, and nobody who reads it notices."""

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from dedupd_core import native
from dedupd_core.config.policy import RefineMode
from dedupd_core.errors import Damaged
from dedupd_core.format import container as fmt
from dedupd_core.format import stream
from dedupd_core.format.container import Kind
from dedupd_core.format.ids import container_of
from dedupd_core.format.recipe import fingerprint_check
from dedupd_core.format.table import State, TableEntry
from dedupd_core.units import KIB
from jobs.frame.run import JobRun
from jobs.rebuild import Rebuild
from jobs.refine.refine_job import Refine, RefineReport
from jobs.scrub.scrub_job import Depth
from tests.support.gc_oracle import COLLECTED, expect_collected
from tests.support.lab import Lab, new_lab, noise, stop_at
from tests.support.stub_chunks import StubOfChunks
from tests.support.upkeep import chunks_of, damage_record, entry, reconcile, scrub

POLICY = (
    'min_age = "0s"\nmin_size = "1"\ncompaction_min_dead = 0\nrefine = "quick"\nrefine_age = "0s"\n'
)
SIZE = 31 * KIB
"""Of a file: one chunk."""


def refine(lab: Lab, mode: RefineMode | None = None) -> RefineReport:
    with lab.opened() as volume, volume.job_lock():
        return Refine(volume, JobRun("refine"), mode).run()


def versions(seed: int, count: int, size: int = SIZE) -> Iterator[bytes]:
    """Contents that are nearly the same, and do not compress by themselves."""
    content = bytearray(noise(size, seed))
    random_ = random.Random(seed)
    for number in range(count):
        yield bytes(content)
        at = random_.randrange(size - 100)
        content[at : at + 50] = noise(50, 1000 * seed + number)


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    """Families of files that are alike, optimized and not refined."""
    lab = new_lab(tmp_path / "volume")
    lab.set_policy(POLICY)
    for family in range(3):
        for number, content in enumerate(versions(family + 1, 4)):
            lab.put(f"{family}/{number}", content)
    lab.put("alone", noise(SIZE, 99))
    lab.optimize()
    return lab


def contents(lab: Lab) -> dict[str, bytes]:
    names = [
        os.path.relpath(os.path.join(directory, name), lab.data)
        for directory, _, names in os.walk(lab.data)
        for name in names
    ]
    return {name: lab.read(name) for name in names}


def entries(lab: Lab) -> dict[int, TableEntry]:
    """All chunks, by id."""
    found: dict[int, TableEntry] = {}
    with lab.opened() as volume, volume.containers(Kind.CHUNKS) as directory:
        for number in directory.numbers():
            for ordinal, one in enumerate(directory.entries(number)):
                assert one is not None
                found[number << 32 | ordinal] = one
    return found


def deltas(lab: Lab) -> dict[int, int]:
    """Chunks that lean on others, and these."""
    return {one: entry.base for one, entry in entries(lab).items() if entry.base}


def chunk_of(lab: Lab, name: str) -> int:
    ((chunk, _, _),) = chunks_of(lab, name)
    return chunk


def test_what_is_alike_leans_on_one_and_reads_as_before(lab: Lab) -> None:
    before, size = contents(lab), lab.container(Kind.CHUNKS).stat().st_size
    ids = {name: chunk_of(lab, name) for name in before}
    report = refine(lab)
    assert (report.rewritten, report.new_deltas) == (1, 9)
    leaning = deltas(lab)
    bases = set(leaning.values())
    assert len(leaning) == 9 and len(bases) == 3
    assert not bases & leaning.keys()
    assert report.saved_bytes == size - lab.container(Kind.CHUNKS).stat().st_size > 8 * SIZE
    assert contents(lab) == before
    assert {name: chunk_of(lab, name) for name in before} == ids
    lab.verify_clean()


def test_most_of_what_shares_less_than_half_is_found(tmp_path: Path) -> None:
    """Pairs of files with 13 of 31 KiB in common, here and there."""
    lab = new_lab(tmp_path / "volume")
    lab.set_policy(POLICY)
    for pair in range(16):
        first, second = noise(SIZE, pair), bytearray(noise(SIZE, 100 + pair))
        for at in range(0, SIZE, SIZE // 6):
            second[at : at + 2200] = first[at : at + 2200]
        lab.put(f"{pair}/first", first)
        lab.put(f"{pair}/second", bytes(second))
    lab.optimize()
    before = contents(lab)
    assert refine(lab).new_deltas >= 12
    assert contents(lab) == before
    lab.verify_clean()


def test_a_second_run_has_nothing_to_do_and_a_later_one_takes_what_is_new(lab: Lab) -> None:
    refine(lab)
    assert refine(lab).outcome == "no new chunks are cold"
    generation = lab.container(Kind.CHUNKS).read_bytes()[16]
    refine(lab)
    assert lab.container(Kind.CHUNKS).read_bytes()[16] == generation
    *_, content = versions(1, 6)
    lab.put("new", content)
    lab.optimize()
    assert refine(lab).new_deltas == 1
    assert deltas(lab)[chunk_of(lab, "new")] in deltas(lab).values()
    assert lab.read("new") == content
    lab.verify_clean()


def test_nothing_is_refined_before_its_time_or_against_the_policy(lab: Lab) -> None:
    lab.set_policy(POLICY.replace('refine_age = "0s"', 'refine_age = "7d"'))
    report = refine(lab)
    assert (report.rewritten, report.containers_young) == (0, 1)
    lab.set_policy(POLICY.replace('"quick"', '"off"'))
    assert refine(lab).outcome == "refine is off in the policy"
    assert deltas(lab) == {}
    assert refine(lab, RefineMode.QUICK).new_deltas == 9


def test_what_saves_nothing_is_left_as_it_is(tmp_path: Path) -> None:
    lab = new_lab(tmp_path / "volume")
    lab.set_policy(POLICY)
    for number in range(5):
        lab.put(f"{number}", noise(SIZE, number))
    lab.optimize()
    before = lab.container(Kind.CHUNKS).read_bytes()
    report = refine(lab)
    assert (report.rewritten, report.not_worth_it) == (0, 1)
    assert lab.container(Kind.CHUNKS).read_bytes() == before
    assert refine(lab).outcome == "no new chunks are cold"
    lab.verify_clean()


def test_what_saves_nothing_takes_nothing_and_is_found_by_what_comes_next(tmp_path: Path) -> None:
    lab = new_lab(tmp_path / "volume")
    lab.set_policy(POLICY + "partitions = 2\n")  # a container for each type
    families = [list(versions(family, 2)) for family in range(5)]
    for family, (old, _) in enumerate(families):
        lab.put(f"{family}.a", old)
    lab.optimize()
    before = store_bytes(lab)
    assert refine(lab).not_worth_it == 1
    assert store_bytes(lab) == before
    for family, (_, new) in enumerate(families):
        lab.put(f"{family}.b", new)
    lab.optimize()
    assert refine(lab).new_deltas == len(families)
    bases = {chunk_of(lab, f"{family}.b"): chunk_of(lab, f"{family}.a") for family in range(5)}
    assert deltas(lab) == bases
    assert len(list(lab.base.rglob("*.sketch"))) == 2
    assert [lab.read(f"{family}.b") for family in range(5)] == [new for _, new in families]
    lab.verify_clean()


def store_bytes(lab: Lab) -> int:
    return sum(path.stat().st_size for path in (lab.base / "store").rglob("*") if path.is_file())


def test_a_base_stays_for_a_delta_alone_and_goes_with_it(lab: Lab) -> None:
    refine(lab)
    leaning = deltas(lab)
    base = next(iter(leaning.values()))
    family = container_names(lab, base)
    ids = {name: chunk_of(lab, name) for name in family}
    kept = next(name for name, one in ids.items() if one != base)
    content = lab.read(kept)
    for name in family:
        if name != kept:
            (lab.data / name).unlink()
    lab.collect()
    expect_collected(lab)
    assert entry(lab, Kind.CHUNKS, base).state == State.LIVE
    lab.compact()
    assert lab.read(kept) == content
    lab.verify_clean()
    (lab.data / kept).unlink()
    lab.collect()
    assert entry(lab, Kind.CHUNKS, base).state in COLLECTED
    expect_collected(lab)
    lab.compact()
    lab.verify_clean()


def container_names(lab: Lab, base: int) -> list[str]:
    """The files of one family: those whose chunk is, or leans on, a base."""
    leaning = deltas(lab)
    names = [name for name in contents(lab) if name != "alone"]
    return [n for n in names if (one := chunk_of(lab, n)) == base or leaning.get(one) == base]


def test_a_delta_whose_base_was_collected_is_never_named_again(lab: Lab) -> None:
    """Its table forgets that it was garbage, as a table does that is damaged."""
    refine(lab)
    delta, base = next(iter(deltas(lab).items()))
    (name,) = [n for n in contents(lab) if n != "alone" and chunk_of(lab, n) == delta]
    content = lab.read(name)
    for path in list(contents(lab)):
        if path != "alone":
            (lab.data / path).unlink()
    lab.collect()
    became(lab, delta, State.LIVE, base)
    assert entry(lab, Kind.CHUNKS, base).state in COLLECTED
    lab.put("again", content)
    lab.optimize()
    assert chunk_of(lab, "again") != delta
    lab.compact()
    assert lab.read("again") == content


def became(lab: Lab, record_id: int, state: State, target: int) -> None:
    from dedupd_core.store.container.record_states import set_states

    with lab.opened() as volume, volume.containers(Kind.CHUNKS) as directory:
        found = directory.entry(record_id)
        assert found is not None
        set_states(directory, {record_id: found._replace(state=state, target=target)})


def test_a_table_made_again_by_a_scan_knows_what_leans_on_what(lab: Lab) -> None:
    before = contents(lab)
    refine(lab)
    leaning, table = deltas(lab), lab.table(Kind.CHUNKS).read_bytes()
    lab.table(Kind.CHUNKS).unlink()
    assert contents(lab) == before
    scrub(lab.root)
    assert deltas(lab) == leaning
    assert lab.table(Kind.CHUNKS).read_bytes() == table
    for path in lab.base.rglob("*.sketch"):
        path.unlink()
    assert refine(lab).outcome == "no new chunks are cold"


def test_damage_to_a_base_is_told_of_every_file_that_leans_on_it(lab: Lab) -> None:
    refine(lab)
    base = next(iter(deltas(lab).values()))
    family = container_names(lab, base)
    before = contents(lab)
    damage_record(lab, Kind.CHUNKS, base)
    for name in before:
        if name in family:
            with pytest.raises(Damaged):
                lab.read(name)
        else:
            assert lab.read(name) == before[name]
    report = lab.verify()
    assert {"record-payload", "delta-base"} <= set(report.by_invariant)
    hit = {f.where for f in report.findings if f.invariant == "recipe-chunks"}
    assert hit == set(family)
    for depth in (Depth.FULL, Depth.QUICK):
        lost = {loss.path for loss in scrub(lab.root, depth).losses}
        assert lost == set(family)
    damage_record(lab, Kind.CHUNKS, base)
    report_after = scrub(lab.root)
    assert report_after.losses == []
    assert contents(lab) == before
    lab.verify_clean()


@pytest.mark.parametrize("depth", Depth)
def test_a_base_is_repaired_first_and_its_deltas_are_sound_with_it(lab: Lab, depth: Depth) -> None:
    refine(lab)
    before = contents(lab)
    base = next(iter(deltas(lab).values()))
    count = len(deltas(lab))
    name = next(n for n in container_names(lab, base) if chunk_of(lab, n) == base)
    damage_record(lab, Kind.CHUNKS, base)
    lab.put("found", before[name])
    with pytest.raises(Damaged):
        lab.read(name)
    report = scrub(lab.root, depth)
    assert report.losses == []
    assert report.repaired["from a file"] == 1
    assert len(deltas(lab)) == count
    assert {n: lab.read(n) for n in before} == before
    lab.verify_clean()


def test_what_many_lean_on_has_a_second_copy_that_serves_all_of_them(lab: Lab) -> None:
    lab.set_policy(POLICY + "redundancy_threshold = 3\n")
    refine(lab)
    report = scrub(lab.root)
    bases = set(deltas(lab).values())
    assert report.copies_written == len(bases)
    before = contents(lab)
    for base in bases:
        damage_record(lab, Kind.CHUNKS, base)
    assert contents(lab) == before
    assert scrub(lab.root).repaired["from the second copy"] == len(bases)
    assert contents(lab) == before
    lab.verify_clean()


def test_a_damaged_delta_costs_its_own_files_alone(lab: Lab) -> None:
    refine(lab)
    delta = next(iter(deltas(lab)))
    before = contents(lab)
    damage_record(lab, Kind.CHUNKS, delta)
    hit = [name for name in before if name != "alone" and chunk_of(lab, name) == delta]
    assert {loss.path for loss in scrub(lab.root).losses} == set(hit)
    lab.put(hit[0], before[hit[0]])
    lab.optimize()
    assert contents(lab) == before
    lab.verify_clean()


def test_a_compaction_keeps_what_leans_on_what(lab: Lab) -> None:
    refine(lab)
    leaning = deltas(lab)
    (lab.data / "alone").unlink()
    lab.collect()
    assert lab.compact().rewritten == 1
    assert deltas(lab) == leaning
    lab.verify_clean()


def test_other_bytes_in_the_place_of_a_base_are_never_taken_for_it(lab: Lab) -> None:
    """A store of which a part came back from an older copy."""
    refine(lab)
    delta, base = next(iter(deltas(lab).items()))
    with lab.opened() as volume, volume.containers(Kind.CHUNKS) as directory:
        raw = directory.bases.native.raw(base)
        assert raw is not None
        found = directory.open(container_of(delta)).read_stored(delta & 0xFFFF_FFFF)
    record, payload = found
    wrong = raw[:-1] + bytes([raw[-1] ^ 1])
    arguments = payload, fmt.Codec.DELTA, record.raw_length, record.checksum
    assert len(native.codec.decode(*arguments, raw)) == record.raw_length
    with pytest.raises(native.codec.CorruptPayload):
        native.codec.decode(*arguments, wrong)


def test_a_stream_has_what_leans_on_others_by_payloads_that_stand_alone(lab: Lab) -> None:
    before = contents(lab)
    refine(lab)
    known, leaning = entries(lab), deltas(lab)
    keys = [
        (chunk, known[chunk].raw_length, fingerprint_check(known[chunk].fingerprint))
        for chunk in leaning
    ]
    with lab.opened() as volume:
        records = volume.store.chunk_records
        for key in keys:
            ahead = native.store.BlocksAhead(0)
            frames, fingerprint, unreadable = records.frame_chunks([key], 0, 7, ahead, 1)
            assert unreadable is None and fingerprint == known[key[0]].fingerprint
            head = stream.decode_head(frames[: stream.HEADER_BYTES], "here")
            assert head.codec in fmt.STANDALONE
            payload = frames[stream.HEADER_BYTES :]
            frame = stream.decode_frame(head, frames[: stream.HEADER_BYTES], payload, 7, "here")
            stored = frame.payload[stream.FINGERPRINT_BYTES :]
            checksum = native.hashing.xxh3_64(stored)
            raw = native.codec.decode(stored, head.codec, key[1], checksum, None)
            assert native.hashing.fingerprint(raw, "blake3") == fingerprint
    assert contents(lab) == before


def test_native_reads_decode_what_leans_on_others(lab: Lab) -> None:
    before = contents(lab)
    refine(lab)
    leaning = deltas(lab)
    with lab.opened() as volume:
        for name, content in before.items():
            spans = chunks_of(lab, name)
            known = entries(lab)
            wanted = [
                (chunk, end - start, int.from_bytes(known[chunk].fingerprint[:4], "little"))
                for chunk, start, end in spans
            ]
            found = StubOfChunks(volume.store.chunk_records, wanted).read(0, len(content))
            assert found == content
    assert leaning


def test_reconciliation_never_merges_a_base_into_what_leans_on_another(tmp_path: Path) -> None:
    """The second partition has a chunk as the base of others, the first one has it as a delta."""
    lab = new_lab(tmp_path / "volume")
    lab.set_policy(POLICY + "partitions = 2\n")
    one, two, three, four = versions(5, 4)
    lab.store({"0.a": one, "1.a": two, "0.b": two, "1.b": three, "2.b": four})
    refine(lab)
    before = contents(lab)
    assert reconcile(lab).merged.chunks == 1
    assert contents(lab) == before
    for delta, base in deltas(lab).items():
        found = entries(lab)[base]
        while found.state == State.MERGED:
            found = entries(lab)[found.target]
        assert not found.leans, f"{delta:#x} leans on {base:#x}"
    lab.collect()
    lab.compact()
    assert contents(lab) == before
    lab.verify_clean()


def test_an_orphan_whose_base_is_gone_is_no_finding(lab: Lab) -> None:
    refine(lab)
    base = next(iter(deltas(lab).values()))
    family = container_names(lab, base)
    for name in family:
        (lab.data / name).unlink()
    with stop_at("gc.swept"):
        lab.collect()
    lab.verify_clean()
    lab.collect()
    lab.verify_clean()
    lab.compact()
    lab.verify_clean()
    with lab.opened() as volume, volume.job_lock():
        Rebuild(volume, JobRun("rebuild")).run()
    lab.verify_clean()
