"""``du`` says what deleting, collecting and compacting then really give back."""

import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from dedupd_core.errors import UsageError
from dedupd_core.stores.local_store import STORE_DIRS
from jobs.frame.run import JobRun
from jobs.usage.groups import By
from jobs.usage.usage import Usage, usage
from jobs.usage.what_if import WhatIf, what_if
from tests.support.lab import Lab, lab_in, noise, prose

BLOCK_BYTES = 4096


def du(lab: Lab, *paths: str, by: By = "", with_shares: bool = False) -> Usage:
    with lab.opened() as volume:
        named = [(b"" if path == "." else os.fsencode(path), path) for path in paths]
        found = usage(volume, JobRun("du"), named, by, with_shares=with_shares)
    assert found.messages == []
    return found


def would(lab: Lab, **values: str) -> WhatIf:
    with lab.opened() as volume:
        return what_if(volume, JobRun("du"), values)


def allocated(lab: Lab) -> int:
    """Blocks of files, directories and store. Logs, locks and saved marks are no part of it."""
    tops = [lab.data, *(lab.base / name for name in STORE_DIRS.values())]
    return sum(
        os.lstat(path).st_blocks * 512
        for top in tops
        for directory, folders, files in os.walk(top)
        for path in (os.path.join(directory, name) for name in folders + files)
    )


def freed(lab: Lab, names: list[str]) -> int:
    """What deleting some folders or files really frees: everything unneeded is compacted."""
    before = allocated(lab)
    for name in names:
        path = lab.data / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    lab.collect(all_garbage=True)
    lab.compact()
    return before - allocated(lab)


def compacted_at_once(lab: Lab, more: str = "") -> None:
    text = f'min_age = "0s"\nmin_size = "1"\ncompaction_min_dead = 0\n{more}'
    lab.set_policy(text)


def odd_volume(lab: Lab, rng: random.Random, folders: int = 14) -> list[str]:
    """Folders that share chunks, whole files, names and recipes, and have much of their own."""
    pieces = [noise(rng.randrange(30_000, 400_000), seed) for seed in range(folders * 2)]
    names = [f"f{at}" for at in range(folders)]
    for at, name in enumerate(names):
        for file in range(rng.randrange(3, 9)):
            parts = rng.choices(pieces, k=rng.randrange(1, 5))
            parts.append(noise(rng.randrange(1, 400_000), rng.randrange(1 << 30)))
            parts.append(prose(rng.randrange(1, 90_000), rng.randrange(1 << 30)))
            rng.shuffle(parts)
            lab.put(f"{name}/file{file}.bin", b"".join(parts))
        lab.put(f"{name}/same", pieces[0])
        lab.put(f"{name}/deep/er/small{at % 3}", noise(1000 + at % 3, at % 3))
        lab.put(f"{name}/sparse", bytes(500_000) + pieces[at])
    os.link(lab.data / names[0] / "file0.bin", lab.data / names[1] / "second name")
    os.link(lab.data / names[0] / "file1.bin", lab.data / names[0] / "own second name")
    return names


def sets_of(names: list[str], rng: random.Random, count: int) -> list[list[str]]:
    return [rng.sample(names, rng.randrange(1, len(names) // 2)) for _ in range(count)]


def compare(directory: Path, seed: int, sets: int) -> list[float]:
    """How far off the figure was for each of some random sets of folders: deleted from the same
    volume one after the other, until little is left."""
    rng = random.Random(seed)
    errors: list[float] = []
    volume = 0
    while len(errors) < sets:
        volume += 1
        with lab_in(directory / str(volume), "4k" if volume % 2 else "64k") as lab:
            compacted_at_once(lab)
            names = odd_volume(lab, rng)
            lab.optimize()
            lab.put(f"{names[2]}/plain", noise(70_000, 999))
            path = lab.let_write(f"{names[3]}/file0.bin")
            with open(path, "r+b") as file:
                file.write(noise(30_000, 998))
            lab.collect()
            lab.compact()
            while len(names) > 2 and len(errors) < sets:
                chosen = rng.sample(names, rng.randrange(1, min(4, len(names))))
                expected = du(lab, *chosen)
                really = freed(lab, chosen)
                assert really > 0
                errors.append(abs(expected.together.frees_bytes - really) / really)
                names = [name for name in names if name not in chosen]
    return errors


@pytest.fixture
def roots(tmp_path: Path) -> Path:
    for at in range(1, 40):
        (tmp_path / str(at)).mkdir()
    return tmp_path


def test_what_a_set_of_folders_would_free_is_what_deleting_it_frees(roots: Path) -> None:
    errors = compare(roots, seed=1, sets=8)
    assert max(errors) <= 0.01, errors


@pytest.mark.slow
def test_what_fifty_sets_of_folders_would_free_is_what_deleting_them_frees(roots: Path) -> None:
    errors = compare(roots, seed=2, sets=50)
    assert max(errors) <= 0.01, sorted(errors)


def small_volume(lab: Lab) -> None:
    """Two folders that share a chunk, with something of their own, and a name in both."""
    compacted_at_once(lab)
    common = noise(300_000, 1)
    lab.put("a/one.mp4", common + noise(40_000, 2))
    lab.put("a/two.txt", noise(50_000, 3))
    lab.put("b/three.txt", common + noise(60_000, 4))
    lab.put("b/four.mp4", noise(90_000, 5))
    os.link(lab.data / "b/four.mp4", lab.data / "a/linked")
    os.chown(lab.data / "b/three.txt", 12345, 12345)
    lab.optimize()


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with lab_in(tmp_path, "4k") as lab:
        small_volume(lab)
        yield lab


SETS = (["a"], ["b"], ["a", "b"], ["a/one.mp4"], ["a/linked"], ["a/linked", "b/four.mp4"])


@pytest.mark.parametrize("names", SETS)
def test_files_and_folders_free_what_only_they_need(lab: Lab, names: list[str]) -> None:
    found = du(lab, *names)
    really = freed(lab, names)
    assert abs(found.together.frees_bytes - really) <= max(0.01 * really, 4 * BLOCK_BYTES)
    if len(names) == 1:
        assert found.rows[0].frees_bytes == found.together.frees_bytes


def test_a_name_elsewhere_keeps_a_file(lab: Lab) -> None:
    assert du(lab, "a/linked").together.frees_bytes == 0
    assert du(lab, "a/linked", "b/four.mp4").together.frees_bytes > 90_000


def test_what_is_shared_is_counted_in_both_folders_and_once_in_all(lab: Lab) -> None:
    found = du(lab, "a", "b")
    a, b = sorted(found.rows, key=lambda row: row.name)
    assert a.shared_bytes > 300_000
    assert b.shared_bytes > 300_000
    assert a.takes_bytes == a.frees_bytes + a.shared_bytes
    everything = du(lab, ".").together
    assert everything.store_bytes == found.together.store_bytes
    assert a.store_bytes + b.store_bytes > found.together.store_bytes + 300_000
    assert found.rest.files == 0


def test_shares_add_up_to_all_that_the_volume_takes(lab: Lab) -> None:
    whole = du(lab, ".", with_shares=True).together
    assert whole.share_bytes is not None
    assert abs(whole.share_bytes - whole.takes_bytes) <= 8
    kinds: tuple[By, ...] = ("owner", "type", "folder")
    for by in kinds:
        found = du(lab, ".", by=by, with_shares=True)
        assert abs(sum(row.share_bytes or 0 for row in found.rows) - whole.takes_bytes) <= (
            BLOCK_BYTES * 4  # folders are of no owner and no type
        )
        assert found.together.store_bytes == whole.store_bytes
    # A chunk that two files need is paid for by half by each.
    a, b = sorted(du(lab, "a", "b", with_shares=True).rows, key=lambda row: row.name)
    assert a.share_bytes is not None
    assert b.share_bytes is not None
    assert abs((a.share_bytes - a.frees_bytes) - (b.share_bytes - b.frees_bytes)) < 100_000


def test_files_are_told_apart(lab: Lab) -> None:
    assert {row.name for row in du(lab, ".", by="type").rows} == {"mp4", "txt", "(none)"}
    assert {row.name for row in du(lab, ".", by="owner").rows} == {"root", "12345"}
    assert {row.name for row in du(lab, ".", by="folder").rows} >= {"./a", "./b"}
    (row,) = (row for row in du(lab, ".", by="owner").rows if row.name == "12345")
    assert row.files == 1
    assert row.logical_bytes == 360_000


def test_a_path_within_another_one_is_refused(lab: Lab) -> None:
    with pytest.raises(UsageError, match="is inside a"):
        du(lab, "a", "a/one.mp4")


def test_a_volume_whose_recipes_have_several_nodes_is_counted(tmp_path: Path) -> None:
    with lab_in(tmp_path, "4k") as lab:
        compacted_at_once(lab)
        long = prose(30_000_000, 1)
        lab.put("a/long", long)
        lab.put("b/half", long[:12_000_000] + noise(2_000_000, 2))
        lab.optimize()
        found = du(lab, "a")
        really = freed(lab, ["a"])
        assert abs(found.together.frees_bytes - really) <= 0.01 * really


def test_an_excluded_type_costs_what_making_it_plain_costs(lab: Lab) -> None:
    before = allocated(lab)
    found = would(lab, exclude_types="mp4")
    assert found.files_left_out == 1  # the other one has a name of another type
    lab.unoptimize(b"a/one.mp4")
    lab.collect()
    lab.compact()
    really = allocated(lab) - before
    assert abs(found.costs_bytes - really) <= max(0.01 * really, 2 * BLOCK_BYTES)


def test_files_that_another_policy_would_take_are_counted(lab: Lab) -> None:
    lab.put("a/left.iso", noise(10_000, 9))
    compacted_at_once(lab, 'exclude_types = ["iso"]\n')
    found = would(lab, exclude_types="")
    assert (found.files_taken, found.bytes_taken, found.files_left_out) == (1, 10_000, 0)


def test_more_second_copies_cost_their_chunks(lab: Lab) -> None:
    found = would(lab, redundancy_threshold="1")
    assert 300_000 < found.copies_bytes_more < 500_000


def test_keys_that_need_reading_are_refused(lab: Lab) -> None:
    with pytest.raises(UsageError, match="min_size"):
        would(lab, min_age="0s")
