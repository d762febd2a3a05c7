"""Refining with dictionaries: each is a record on which others lean, and no reader notices."""

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from dedupd_core.config.policy import RefineMode
from dedupd_core.errors import Damaged
from dedupd_core.format.container import Codec, Kind
from dedupd_core.format.ids import container_of
from dedupd_core.format.table import State
from dedupd_core.store.second_copies import all_copies
from dedupd_core.units import KIB
from jobs.frame.run import JobRun
from jobs.rebuild import Rebuild
from jobs.refine import dictionaries
from jobs.refine.refine_job import Refine, RefineReport
from jobs.scrub.scrub_job import Depth
from tests.jobs.refine.test_refine import POLICY, chunk_of, contents, deltas, entries
from tests.support.gc_oracle import COLLECTED, expect_collected
from tests.support.lab import Lab, new_lab, noise, stop_at
from tests.support.upkeep import damage_record, entry, scrub

FULL = POLICY.replace('"quick"', '"full"')


def refine(lab: Lab, mode: RefineMode | None = None) -> RefineReport:
    with lab.opened() as volume, volume.job_lock():
        return Refine(volume, JobRun("refine"), mode).run()


def texts(seed: int, count: int, size: int = 3 * KIB) -> Iterator[bytes]:
    """Contents of the same words in another order each: no two are alike."""
    random_ = random.Random(seed)
    words = ["".join(random_.choices("abcdefghijklmnop", k=9)) for _ in range(300)]
    for _ in range(count):
        yield " ".join(random_.choices(words, k=size // 10)).encode()


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    """Texts of two kinds, and what does not compress; optimized and not refined."""
    lab = new_lab(tmp_path / "volume")
    lab.set_policy(FULL)
    for kind in range(2):
        for number, content in enumerate(texts(kind + 1, 40)):
            lab.put(f"{kind}/{number}", content)
    lab.put("alone", noise(20 * KIB, 99))
    lab.optimize()
    return lab


def users(lab: Lab) -> dict[int, int]:
    """Chunks that lean on dictionaries, and these."""
    found = {one: e for one, e in entries(lab).items() if e.codec == Codec.DICTIONARY}
    return {one: e.base for one, e in found.items() if e.state == State.LIVE}


def copies(lab: Lab) -> dict[int, int]:
    """Records that have a second copy, and that one."""
    with lab.opened() as volume, volume.containers(Kind.CHUNK_COPIES) as directory:
        found = all_copies(directory.fd, directory.kind, directory.volume_id)
        return {copy.entry.target: copy.copy_id for copy in found}


def test_what_has_its_words_in_common_is_smaller_with_a_dictionary(lab: Lab) -> None:
    before, size = contents(lab), store_bytes(lab)
    ids = {name: chunk_of(lab, name) for name in before}
    report = refine(lab)
    leaning = users(lab)
    assert report.new_dictionaries == report.dictionaries == len(set(leaning.values())) >= 1
    assert report.new_with_dictionary == len(leaning) > 60
    assert store_bytes(lab) < 0.85 * size
    assert contents(lab) == before
    assert {name: chunk_of(lab, name) for name in before} == ids
    known = entries(lab)
    for dictionary in set(leaning.values()):
        assert known[dictionary].state == State.LIVE and known[dictionary].rank == 0
    assert set(copies(lab)) >= set(leaning.values())
    lab.verify_clean()


def store_bytes(lab: Lab) -> int:
    return sum(path.stat().st_size for path in (lab.base / "store").rglob("*.dat"))


def test_a_second_run_has_nothing_to_do_and_a_later_one_uses_what_there_is(lab: Lab) -> None:
    refine(lab)
    assert refine(lab).outcome == "no new chunks are cold"
    before = set(users(lab).values())
    new = put_more(lab)
    report = refine(lab)
    assert (report.new_dictionaries, report.new_with_dictionary) == (0, len(new))
    assert {users(lab)[chunk_of(lab, name)] for name in new} <= before
    assert {name: lab.read(name) for name in new} == new
    lab.verify_clean()


def test_new_ones_are_made_of_what_those_that_there_are_do_little_for(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dictionaries, "TRAIN_AGAIN", 0)
    refine(lab)
    before = set(users(lab).values())
    put_more(lab)
    assert refine(lab).new_dictionaries == 0
    for number, text in enumerate(texts(7, 80)):
        lab.put(f"other/{number}", text)
    lab.optimize()
    report = refine(lab)
    assert 0 < report.new_dictionaries < report.dictionaries
    others = {users(lab)[chunk_of(lab, f"other/{number}")] for number in range(80)}
    assert not others & before
    assert before <= set(users(lab).values())
    lab.verify_clean()


def put_more(lab: Lab) -> dict[str, bytes]:
    """More texts of the first kind, optimized."""
    new = {f"new/{number}": text for number, text in enumerate([*texts(1, 60)][40:])}
    for name, content in new.items():
        lab.put(name, content)
    lab.optimize()
    return new


def test_dictionaries_that_nothing_names_are_found_by_what_leans_on_them(lab: Lab) -> None:
    from dedupd_core.volume.hints import HintKey

    refine(lab)
    before = set(users(lab).values())
    with lab.opened() as volume:
        volume.hints.delete([HintKey.DICTIONARIES])
    new = put_more(lab)
    assert refine(lab).new_dictionaries == 0
    assert {users(lab)[chunk_of(lab, name)] for name in new} <= before


def test_a_dictionary_stays_for_one_chunk_alone_and_goes_with_it(lab: Lab) -> None:
    refine(lab)
    leaning = users(lab)
    kept = next(name for name in contents(lab) if chunk_of(lab, name) in leaning)
    content, dictionary = lab.read(kept), leaning[chunk_of(lab, kept)]
    for name in contents(lab):
        if name != kept:
            (lab.data / name).unlink()
    lab.collect()
    expect_collected(lab)
    assert entry(lab, Kind.CHUNKS, dictionary).state == State.LIVE
    lab.compact()
    assert lab.read(kept) == content
    assert dictionary in copies(lab)
    lab.verify_clean()
    (lab.data / kept).unlink()
    lab.collect()
    known = entries(lab)
    assert dictionary not in known or known[dictionary].state in COLLECTED
    lab.compact()
    scrub(lab.root)
    assert copies(lab) == {}
    lab.verify_clean()


def test_no_chunk_is_live_whose_dictionary_was_collected(lab: Lab) -> None:
    """Also not while a collection is under way."""
    refine(lab)
    for name in contents(lab):
        (lab.data / name).unlink()
    for _ in range(3):
        with stop_at("gc.swept"):
            lab.collect()
        known = entries(lab)
        for one in known.values():
            if one.leans and one.state == State.LIVE:
                assert known[one.base].state == State.LIVE
        lab.verify_clean()


def test_a_damaged_dictionary_is_read_from_its_copy_and_repaired_with_it(lab: Lab) -> None:
    refine(lab)
    before = contents(lab)
    found = set(users(lab).values())
    for one in found:
        damage_record(lab, Kind.CHUNKS, one)
    assert contents(lab) == before
    report = scrub(lab.root)
    assert report.losses == [] and report.repaired["from the second copy"] == len(found)
    assert contents(lab) == before
    lab.verify_clean()
    report = scrub(lab.root)
    assert report.repaired == dict.fromkeys(report.repaired, 0)
    assert contents(lab) == before


def test_a_dictionary_that_is_lost_costs_its_users_alone_and_each_is_named(lab: Lab) -> None:
    refine(lab)
    before, leaning = contents(lab), users(lab)
    dictionary = next(iter(leaning.values()))
    hit = {name for name in before if leaning.get(chunk_of(lab, name)) == dictionary}
    copy = copies(lab)[dictionary]
    damage_record(lab, Kind.CHUNKS, dictionary)
    damage_record(lab, Kind.CHUNK_COPIES, copy)
    for name, content in before.items():
        if name in hit:
            with pytest.raises(Damaged):
                lab.read(name)
        else:
            assert lab.read(name) == content
    report = lab.verify()
    assert {f.where for f in report.findings if f.invariant == "recipe-chunks"} == hit
    for depth in (Depth.FULL, Depth.QUICK):
        assert {loss.path for loss in scrub(lab.root, depth).losses} == hit
    damage_record(lab, Kind.CHUNK_COPIES, copy)
    assert scrub(lab.root).losses == []
    assert contents(lab) == before
    lab.verify_clean()


def test_scrub_gives_a_dictionary_its_copy_back_whatever_the_threshold(lab: Lab) -> None:
    refine(lab)
    for path in (lab.base / "store/copies/chunks").iterdir():
        path.unlink()
    lab.set_policy(FULL + "redundancy_threshold = 0\n")
    report = scrub(lab.root, Depth.QUICK)
    assert report.copies_written == len(set(users(lab).values())) == len(copies(lab))
    lab.verify_clean()


def test_a_delta_may_lean_on_a_chunk_that_leans_on_a_dictionary(lab: Lab) -> None:
    refine(lab)
    names = [name for name in contents(lab) if chunk_of(lab, name) in users(lab)][:10]
    new = {f"new/{name}": lab.read(name).replace(b" ", b"\n", 1) + b" and more" for name in names}
    for name, content in new.items():
        lab.put(name, content)
    lab.optimize()
    assert refine(lab).new_deltas == len(new)
    leaning = {one: found for one, found in entries(lab).items() if found.rank == 2}
    assert {found.base for found in leaning.values()} == {chunk_of(lab, name) for name in names}
    before = contents(lab)
    assert {name: before[name] for name in new} == new
    base = chunk_of(lab, names[0])
    lab.verify_clean()
    dictionary = users(lab)[base]
    copy = copies(lab)[dictionary]
    damage_record(lab, Kind.CHUNKS, dictionary)
    assert contents(lab) == before
    damage_record(lab, Kind.CHUNK_COPIES, copy)
    hit = {name for name in names if users(lab)[chunk_of(lab, name)] == dictionary}
    hit |= {f"new/{name}" for name in hit}
    for name in hit:
        with pytest.raises(Damaged):
            lab.read(name)
    assert hit <= {loss.path for loss in scrub(lab.root).losses}
    damage_record(lab, Kind.CHUNK_COPIES, copy)
    assert scrub(lab.root).losses == []
    assert contents(lab) == before
    lab.verify_clean()


def test_the_store_is_read_by_its_containers_alone(lab: Lab) -> None:
    refine(lab)
    before, leaning = contents(lab), users(lab)
    for path in (lab.base / "store").rglob("*"):
        if path.suffix in (".dir", ".sketch"):
            path.unlink()
    with lab.opened() as volume, volume.job_lock():
        Rebuild(volume, JobRun("rebuild")).run()
    assert users(lab) == leaning
    assert contents(lab) == before
    lab.verify_clean()


def test_what_was_quick_becomes_full(lab: Lab) -> None:
    content = bytearray(next(texts(9, 1, 30 * KIB)))
    for number in range(4):
        lab.put(f"version/{number}", bytes(content))
        content[1000 * number : 1000 * number + 40] = noise(40, number)
    lab.optimize()
    before = contents(lab)
    refine(lab, RefineMode.QUICK)
    leaning, size = set(deltas(lab)), store_bytes(lab)
    assert len(leaning) == 3 and not users(lab)
    report = refine(lab)
    assert report.containers_waiting == 1 and users(lab)
    assert leaning <= set(deltas(lab))
    assert store_bytes(lab) < size
    assert contents(lab) == before
    assert refine(lab).outcome == "no new chunks are cold"
    assert refine(lab, RefineMode.QUICK).outcome == "no new chunks are cold"
    lab.verify_clean()


@pytest.mark.parametrize(
    "point",
    ["refine.dictionaries-durable", "refine.dictionaries-copied", "refine.dictionaries-noted"],
)
def test_a_run_that_dies_before_it_used_a_dictionary_leaves_garbage_at_most(
    lab: Lab, point: str
) -> None:
    before = contents(lab)
    with stop_at(point):
        refine(lab)
    lab.verify_clean()
    lab.collect()
    lab.compact()
    assert refine(lab).new_with_dictionary > 60
    assert contents(lab) == before
    lab.collect()
    lab.compact()
    known = entries(lab)
    held = set(users(lab).values())
    assert held <= known.keys()
    assert {container_of(one) for one in held} <= {container_of(one) for one in known}
    lab.verify_clean()


def test_a_file_that_has_the_bytes_of_a_dictionary_is_a_file_like_others(lab: Lab) -> None:
    refine(lab)
    dictionary = next(iter(users(lab).values()))
    with lab.opened() as volume:
        raw = volume.chunk_records.read(dictionary)[1]
    lab.put("dictionary", raw)
    lab.put("much like it", raw[:-100] + os.urandom(100))
    lab.optimize()
    refine(lab)
    before = contents(lab)
    assert before["dictionary"] == raw
    assert entry(lab, Kind.CHUNKS, dictionary).rank == 0
    lab.verify_clean()
