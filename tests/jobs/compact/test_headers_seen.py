"""What was seen in its place is punched without a second look, and nothing else is."""

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from dedupd_core.format import container as fmt
from dedupd_core.format import table as tbl
from dedupd_core.format.container import Kind
from dedupd_core.format.table import State
from dedupd_core.store.container.container import table_name
from dedupd_core.store.container.punching import dead_payloads
from dedupd_core.store.container.record_states import set_entries
from dedupd_core.store.container.table_file import load_table
from dedupd_core.system.files import opened
from dedupd_core.units import KIB
from jobs.check.headers_seen import HeadersSeen, verify_new_headers
from jobs.frame.run import Cancelled, JobRun
from jobs.scrub.scrub_job import Depth
from tests.conftest import MakeFileSystem
from tests.jobs.compact.test_compact import become
from tests.jobs.compact.test_punching import filled
from tests.jobs.scrub.test_scrub_disk import place_on_disk
from tests.support.lab import Lab, flip_bit, new_lab, noise, run_cli, write_out
from tests.support.upkeep import PLAIN, chunks_of, entry, scrub

CHUNKS = Kind.CHUNKS


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    """Two files, each of several chunks; nothing is dead."""
    lab = new_lab(tmp_path / "volume", "16k")
    lab.set_policy(PLAIN)
    for name in ("kept", "gone"):
        lab.put(name, noise(400 * KIB, len(name) + ord(name[0])))
    lab.optimize()
    return lab


def is_seen(lab: Lab) -> bool:
    with lab.opened() as volume, volume.containers(CHUNKS) as directory:
        (number,) = directory.numbers()
        entries = directory.entries(number)
        seen = HeadersSeen(volume).count(directory, number, entries)
        return seen == len(entries)


def place(lab: Lab, chunk: int) -> tuple[int, int]:
    """Where the payload of a chunk begins and ends."""
    said = entry(lab, CHUNKS, chunk)
    start = said.offset + fmt.RECORD_HEADER_BYTES
    return start, start + said.stored_length


def spoil_headers(lab: Lab, chunks: list[int]) -> None:
    for chunk in chunks:
        flip_bit(lab.container(CHUNKS), entry(lab, CHUNKS, chunk).offset + 9)


def chunks(lab: Lab, name: str) -> list[int]:
    """The chunks of a file that have a whole block each."""
    found = (chunk for chunk, _, _ in chunks_of(lab, name))
    return [one for one in found if entry(lab, CHUNKS, one).stored_length >= 2 * 4096]


@pytest.mark.parametrize("depth", list(Depth))
def test_the_headers_of_what_was_seen_are_not_read_again(lab: Lab, depth: Depth) -> None:
    gone = chunks(lab, "gone")
    scrub(lab.root, depth)
    assert is_seen(lab)
    spoil_headers(lab, gone)
    (lab.data / "gone").unlink()
    assert lab.collect().punched == len(gone)
    assert lab.read("kept") == noise(400 * KIB, len("kept") + ord("k"))


def test_without_a_scrub_every_header_is_read(lab: Lab) -> None:
    gone = chunks(lab, "gone")
    spoil_headers(lab, gone[:3])
    (lab.data / "gone").unlink()
    assert lab.collect().punched == len(gone) - 3


def append(lab: Lab) -> None:
    lab.put("new", noise(200 * KIB, 99))
    lab.optimize()


def rewrite(lab: Lab) -> None:
    (lab.data / "kept").unlink()
    assert lab.collect().punched and lab.compact().rewritten


def quarantine(lab: Lab) -> None:
    with lab.opened() as volume, volume.containers(CHUNKS) as directory:
        (number,) = directory.numbers()
        said = directory.entries(number)[0]
        assert said is not None
        changed = said._replace(state=State.QUARANTINED)
        set_entries(directory, directory.header(number), {0: changed})


def exchange(lab: Lab) -> None:
    """Two entries that a disk has exchanged with the blocks that they are in."""
    with lab.opened() as volume, volume.containers(CHUNKS) as directory:
        (number,) = directory.numbers()
        one, other = directory.entries(number)[0], directory.entries(number)[1]
        assert one is not None and other is not None
        set_entries(directory, directory.header(number), {0: other, 1: one})


def copy(lab: Lab) -> None:
    """The same bytes in another file, as a backup brings them back."""
    path = lab.container(CHUNKS)
    shutil.copy2(path, path.with_suffix(".copy"))
    path.with_suffix(".copy").rename(path)


@pytest.mark.parametrize("change", [append, rewrite, quarantine, exchange, copy])
def test_a_note_is_of_no_account_once_a_container_is_another(
    lab: Lab, change: Callable[[Lab], None]
) -> None:
    scrub(lab.root, Depth.QUICK)
    assert is_seen(lab)
    change(lab)
    assert not is_seen(lab)


def test_what_went_astray_with_a_later_append_stays_for_scrub(lab: Lab) -> None:
    """The new record lies in the place of a dead one, intact, and never came to its own."""
    scrub(lab.root, Depth.QUICK)
    gone = chunks(lab, "gone")
    append(lab)
    new = min(chunks(lab, "new"), key=lambda one: entry(lab, CHUNKS, one).stored_length)
    over = max(gone, key=lambda one: entry(lab, CHUNKS, one).stored_length)
    start, end = place(lab, new)
    with open(lab.container(CHUNKS), "r+b") as file:
        record = os.pread(
            file.fileno(), end - start + fmt.RECORD_HEADER_BYTES, start - fmt.RECORD_HEADER_BYTES
        )
        os.pwrite(file.fileno(), record, entry(lab, CHUNKS, over).offset)
        os.pwrite(file.fileno(), bytes(len(record)), start - fmt.RECORD_HEADER_BYTES)
    (lab.data / "gone").unlink()
    assert lab.collect().punched == len(gone) - 1
    scrub(lab.root)
    assert lab.read("new") == noise(200 * KIB, 99)


def test_of_what_was_seen_only_what_came_later_is_looked_at(lab: Lab) -> None:
    """The seen headers of dead records are damaged by now: nobody looks at them."""
    scrub(lab.root, Depth.QUICK)
    gone = chunks(lab, "gone")
    lab.put("new", noise(100 * KIB, 99))
    lab.optimize()
    spoil_headers(lab, gone)
    (lab.data / "gone").unlink()
    assert lab.collect().punched == len(gone)
    assert is_seen(lab)


def test_where_more_came_later_than_is_dead_the_dead_are_looked_at(lab: Lab) -> None:
    scrub(lab.root, Depth.QUICK)
    gone = chunks(lab, "gone")
    lab.put("new", noise(1600 * KIB, 99))
    lab.optimize()
    spoil_headers(lab, gone[:1])
    (lab.data / "gone").unlink()
    assert lab.collect().punched == len(gone) - 1
    assert not is_seen(lab)


JOBS = ["optimize", "compact", "refine"]


@pytest.mark.parametrize("job", JOBS)
def test_a_job_beside_users_looks_at_what_is_new(lab: Lab, job: str) -> None:
    lab.set_policy(PLAIN + "stop_when_busy = false\n")  # other tests keep the machine busy
    assert not is_seen(lab)
    run_cli("run", job, str(lab.root))
    assert not is_seen(lab)  # somebody waits for it
    run_cli("run", "--gentle", job, str(lab.root))
    assert is_seen(lab)
    gone = chunks(lab, "gone")
    spoil_headers(lab, gone)
    (lab.data / "gone").unlink()
    assert lab.collect().punched == len(gone)


def test_a_look_sees_the_disk_and_not_what_was_written(lab: Lab) -> None:
    """A record that is not in its place leaves no note, however its entry was written."""
    lab.set_policy(PLAIN + "stop_when_busy = false\n")
    spoil_headers(lab, chunks(lab, "kept")[:1])
    run_cli("run", "--gentle", "optimize", str(lab.root))
    assert not is_seen(lab)


def test_records_that_are_not_durable_are_not_noted(lab: Lab) -> None:
    """Their ordinals may be given to others after a crash."""
    with lab.opened() as volume, volume.containers(CHUNKS) as directory:
        (number,) = directory.numbers()
        header = directory.header(number)
        mark, entries = load_table(directory.fd, header)
        at = entries[len(entries) - 3]
        assert at is not None
        lower = replace(mark, synced_count=len(entries) - 3, synced_bytes=at.offset)
        with opened(os.open(table_name(number), os.O_WRONLY, dir_fd=directory.fd)) as fd:
            os.pwrite(fd, tbl.encode_header(lower), 0)
    with lab.opened() as volume, volume.job_lock():
        verify_new_headers(volume, JobRun("test"))
    with lab.opened() as volume, volume.containers(CHUNKS) as directory:
        seen = HeadersSeen(volume).count(directory, number, entries)
        assert seen == len(entries) - 3


def test_a_look_that_is_stopped_keeps_what_it_has_seen(lab: Lab) -> None:
    run = JobRun("test")
    passed = run.safe_point

    def stop() -> None:
        passed()
        if run.progress.phase == "checking new recipes":
            run.cancel()

    run.safe_point = stop  # type: ignore[method-assign]
    with lab.opened() as volume, volume.job_lock(), pytest.raises(Cancelled):
        verify_new_headers(volume, run)
    assert is_seen(lab)


def test_a_scrub_that_finds_anything_leaves_no_note(lab: Lab) -> None:
    scrub(lab.root, Depth.QUICK)
    spoil_headers(lab, chunks(lab, "gone")[:1])
    scrub(lab.root, Depth.QUICK)
    assert not is_seen(lab)


@pytest.mark.root
def test_headers_count_as_seen_as_they_are_on_the_disk(loop_fs: MakeFileSystem) -> None:
    """Pages that are intact lie over a header that is not."""
    point = loop_fs("ext4", "64M")
    lab = new_lab(point / "volume")
    lab.put("file", noise(400_000, 3))
    lab.optimize()
    write_out(point)
    image = point.parent / "image"
    at = place_on_disk(image, lab, chunks_of(lab, "file")[1][0])
    content = lab.container(CHUNKS).read_bytes()
    flip_bit(image, at - fmt.RECORD_HEADER_BYTES + 9)
    assert lab.container(CHUNKS).read_bytes() == content
    assert scrub(lab.root, Depth.QUICK).findings
    assert not is_seen(lab)


def test_no_payload_is_punched_into_which_a_needed_entry_leads(tmp_path: Path) -> None:
    """A record that went astray into the midst of another one, where scrub has found it."""
    store, _ = filled(tmp_path / "s")
    state = become(store, {1: (State.ORPHANED, 1), 4: (State.ORPHANED, 1)})
    with store.opened() as directory:
        moved = state.entries[2]._replace(offset=state.entries[1].offset + 8192)
        set_entries(directory, state.header, {2: moved})
        for seen in (False, True):
            found = dead_payloads(directory, store.recover_one(1), is_seen=seen)
            assert [one.ordinal for one in found] == [4]
