"""What would save too little stays plain, is not read again, and is stored once it is there
twice."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from dedupd_core import native
from dedupd_core.config import memory_budget
from dedupd_core.store.saved_notes import NAME, SavedNotes
from dedupd_core.system.file_reader import BATCH_BYTES
from dedupd_core.units import KIB, MIB
from jobs.optimize.buffers import CutBatch, PendingBatch
from jobs.optimize.pipeline import Ingest
from jobs.tree import judged_files
from jobs.tree.candidates import SAVES_LITTLE
from tests.support.lab import OLD_NS, Lab, new_lab, noise, prose

SAVES = 'min_age = "0s"\nmin_size = 1\nmin_file_saving = 0.05\n'


def saving_lab(directory: Path) -> Lab:
    lab = new_lab(directory / "volume")
    lab.set_policy(SAVES)
    return lab


def store_bytes(lab: Lab) -> int:
    return sum(path.stat().st_size for path in (lab.base / "store").rglob("*.dat"))


def occupied_bytes(lab: Lab) -> int:
    """Blocks of the tree, and bytes of the store."""
    tree = sum(p.stat().st_blocks * 512 for p in lab.data.rglob("*") if p.is_file())
    return tree + store_bytes(lab)


def put_media(lab: Lab, count: int = 12) -> dict[str, bytes]:
    """Files that no compression makes smaller: small ones, and some of several buffers."""
    sizes = [20 * KIB, 300 * KIB, 900 * KIB, 3 * MIB]
    contents = {f"media/{at}": noise(sizes[at % 4] + at * 1000, at) for at in range(count)}
    contents["media/film"] = noise(BATCH_BYTES + 2 * MIB, 99)
    for name, content in contents.items():
        lab.put(name, content)
    return contents


def test_a_tree_of_media_is_not_stored_and_not_read_again(tmp_path: Path) -> None:
    lab = saving_lab(tmp_path)
    contents = put_media(lab)
    first = lab.optimize()
    assert (store_bytes(lab), first.files_optimized) == (0, 0)
    assert first.files_left == {SAVES_LITTLE: len(contents)}
    assert first.sums.raw_bytes == sum(map(len, contents.values()))
    second = lab.optimize()
    assert (second.sums.raw_bytes, second.partitions) == (0, 0)
    assert second.files_skipped == {SAVES_LITTLE: len(contents)}
    assert all((lab.data / name).read_bytes() == c for name, c in contents.items())


def test_what_is_copied_later_is_stored_with_its_first_owner(tmp_path: Path) -> None:
    lab = saving_lab(tmp_path)
    contents = put_media(lab)
    lab.optimize()
    copied = {name: c for at, (name, c) in enumerate(contents.items()) if at % 4 == 0}
    for name, content in copied.items():
        lab.put(f"copies/{name}", content)
    report = lab.optimize()
    assert report.files_optimized == 2 * len(copied)
    once = sum(map(len, copied.values()))
    assert once <= store_bytes(lab) <= 1.01 * once + 64 * KIB
    assert occupied_bytes(lab) <= 1.01 * sum(map(len, contents.values())) + 64 * KIB
    for name, content in copied.items():
        assert lab.stub(name) is not None
        assert lab.read(name) == lab.read(f"copies/{name}") == content
    third = lab.optimize()
    assert third.sums.raw_bytes == 0
    lab.verify_clean()


def test_copies_of_one_run_are_stored_in_it(tmp_path: Path) -> None:
    lab = saving_lab(tmp_path)
    contents = put_media(lab)
    for name, content in contents.items():
        lab.put(f"copies/{name}", content)
    lab.put("alone", noise(2 * MIB, 1234))
    report = lab.optimize()
    assert report.files_optimized == 2 * len(contents)
    assert report.files_left == {SAVES_LITTLE: 1}
    assert store_bytes(lab) <= 1.01 * sum(map(len, contents.values())) + 64 * KIB
    assert lab.optimize().sums.raw_bytes == 0
    lab.verify_clean()


def test_text_with_its_copy_is_stored_and_counted(tmp_path: Path) -> None:
    """Files that pay, beside files that do not, in one buffer."""
    lab = saving_lab(tmp_path)
    texts = {f"text {at}": prose(30 * KIB, at) for at in range(20)}
    for at, (name, content) in enumerate(texts.items()):
        lab.put(name, content)
        lab.put(f"noise {at}", noise(32 * KIB - 100, at))
    report = lab.optimize()
    assert (report.files_optimized, report.files_left) == (20, {SAVES_LITTLE: 20})
    assert {name: lab.read(name) for name in texts} == texts
    assert all(lab.stub(f"noise {at}") is None for at in range(20))
    lab.verify_clean()


def test_blocks_count_and_not_bytes(tmp_path: Path) -> None:
    """A file of a block and a bit gives two blocks up."""
    lab = saving_lab(tmp_path)
    lab.put("just over", noise(4 * KIB + 500))
    lab.put("just below", noise(8 * KIB - 500, 1))
    assert lab.optimize().files_optimized == 1
    assert (lab.stub("just over") is None, lab.stub("just below") is None) == (False, True)


def test_a_limit_of_nothing_takes_every_file(tmp_path: Path) -> None:
    lab = saving_lab(tmp_path)
    contents = put_media(lab)
    lab.optimize()
    lab.set_policy('min_age = "0s"\nmin_file_saving = 0\n')
    assert lab.optimize().files_optimized == len(contents)


def test_a_lower_limit_takes_what_it_allows(tmp_path: Path) -> None:
    lab = saving_lab(tmp_path)
    lab.put("mixed", noise(900 * KIB) + prose(60 * KIB))
    lab.put("noise", noise(900 * KIB, 1))
    lab.optimize()
    lab.set_policy('min_age = "0s"\nmin_file_saving = 0.02\n')
    report = lab.optimize()
    assert (report.files_optimized, report.sums.raw_bytes) == (1, 960 * KIB)


def test_a_file_that_was_touched_is_no_second_arrival(tmp_path: Path) -> None:
    lab = saving_lab(tmp_path)
    contents = put_media(lab)
    lab.optimize()
    for name in contents:
        os.utime(lab.data / name, ns=(OLD_NS, OLD_NS + 10**9))
    report = lab.optimize()
    assert report.sums.raw_bytes == sum(map(len, contents.values()))
    assert (store_bytes(lab), report.files_recalled) == (0, 0)


def test_a_file_that_is_gone_is_no_first_owner(tmp_path: Path) -> None:
    lab = saving_lab(tmp_path)
    for name, content in put_media(lab).items():
        lab.optimize()
        lab.put(f"moved/{name}", content)
        (lab.data / name).unlink()
    report = lab.optimize()
    assert (store_bytes(lab), report.files_optimized) == (0, 0)


def test_what_a_stored_file_contains_is_found_again_in_one_that_was_left(tmp_path: Path) -> None:
    lab = saving_lab(tmp_path)
    film = noise(2 * MIB, 5)
    lab.put("film", film)
    lab.optimize()
    lab.put("archive", prose(4 * MIB) + film)
    report = lab.optimize()
    assert (report.files_optimized, report.files_recalled) == (2, 1)
    assert lab.read("film") == film
    assert store_bytes(lab) < 4 * MIB


def test_a_large_file_whose_beginning_does_not_pay_is_read_again(tmp_path: Path) -> None:
    lab = saving_lab(tmp_path)
    content = noise(BATCH_BYTES + MIB) + prose(2 * BATCH_BYTES)
    lab.put("image", content)
    report = lab.optimize()
    assert (report.files_optimized, report.files_recalled) == (1, 1)
    assert lab.read("image") == content
    assert store_bytes(lab) < len(content) - BATCH_BYTES
    lab.verify_clean()


def test_a_large_file_whose_beginning_pays_alone_is_stored_if_it_saves_anything(
    tmp_path: Path,
) -> None:
    lab = saving_lab(tmp_path)
    content = prose(MIB) + noise(5 * BATCH_BYTES)
    lab.put("image", content)
    assert lab.optimize().files_optimized == 1
    assert store_bytes(lab) < len(content)
    lab.put("copy", content)
    assert lab.optimize().sums.new_chunks == 0
    assert lab.read("image") == lab.read("copy") == content


def test_sparse_files_give_up_what_they_have(tmp_path: Path) -> None:
    lab = saving_lab(tmp_path)
    with open(lab.put("hole", b""), "r+b") as file:
        file.truncate(40 * MIB)
    with open(lab.put("sparse", b""), "r+b") as file:
        file.seek(30 * MIB)
        file.write(noise(9 * MIB))
    lab.put("zeros", bytes(20 * MIB))
    report = lab.optimize()
    assert (lab.stub("hole"), lab.stub("sparse")) == (None, None)
    assert (report.files_optimized, report.files_left) == (1, {SAVES_LITTLE: 2})
    assert lab.read("zeros") == bytes(20 * MIB)


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    "lose", [Path.unlink, damage, lambda path: path.write_bytes(path.read_bytes()[:-8])]
)
def test_what_was_remembered_may_be_lost(tmp_path: Path, lose: Callable[[Path], None]) -> None:
    lab = saving_lab(tmp_path)
    contents = put_media(lab)
    lab.optimize()
    lose(lab.base / NAME.decode())
    for name, content in contents.items():
        lab.put(f"copies/{name}", content)
    assert lab.optimize().files_optimized + lab.optimize().files_optimized == 2 * len(contents)
    assert lab.read("media/film") == contents["media/film"]
    lab.verify_clean()


def test_notes_that_cannot_be_read_are_removed(tmp_path: Path) -> None:
    lab = saving_lab(tmp_path)
    contents = put_media(lab)
    lab.optimize()
    path = lab.base / NAME.decode()
    data = path.read_bytes()
    path.write_bytes(data[:-32] + data[-16:] + data[-32:-16])  # out of order
    lab.put("one more", noise(100 * KIB, 77))
    assert lab.optimize().files_optimized == 0
    assert not path.exists()
    assert lab.optimize().sums.raw_bytes == sum(map(len, contents.values())) + 100 * KIB
    assert path.exists()


def test_notes_of_another_volume_are_not_used(tmp_path: Path) -> None:
    one, other = saving_lab(tmp_path), new_lab(tmp_path / "other")
    put_media(one)
    one.optimize()
    shutil.copy(one.base / NAME.decode(), other.base / NAME.decode())
    with other.opened() as volume:
        assert SavedNotes.found(volume.base_fd, volume.space.volume_id) is None


def test_little_memory_saves_notes_on_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = memory_budget.NotesShares(1000, 4, 1000)
    monkeypatch.setattr(judged_files, "notes_shares", lambda _: few)
    lab = saving_lab(tmp_path)
    contents = put_media(lab)
    lab.optimize()
    for name, content in contents.items():
        lab.put(f"copies/{name}", content)
    assert lab.optimize().files_optimized == 2 * len(contents)
    assert lab.optimize().sums.raw_bytes == 0


def test_a_large_file_that_changes_while_its_parts_are_judged_stays_plain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its reader says so at any moment, also between two parts of it."""
    judged = Ingest._judged
    parts: list[bytes] = []

    def change(self: Ingest, state: PendingBatch, cut: CutBatch) -> native.ingest.Judgement:
        for segment in state.segments:
            parts.append(segment.task.candidate.path)
            if len(parts) > 1:
                segment.task.failure = "changed while it was read"
        return judged(self, state, cut)

    monkeypatch.setattr(Ingest, "_judged", change)
    lab = new_lab(tmp_path / "volume")
    content = noise(3 * BATCH_BYTES)
    lab.put("large", content)
    report = lab.optimize()
    assert len(parts) > 1 and report.files_optimized == 0
    assert lab.stub("large") is None and lab.read("large") == content
    monkeypatch.undo()
    assert lab.optimize().files_optimized == 1
    assert lab.read("large") == content
    lab.verify_clean()
