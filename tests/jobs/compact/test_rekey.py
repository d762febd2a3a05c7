"""``compact --rekey``: a new key, and all containers with seeds made from it."""

import os
from pathlib import Path

from dedupd_core.format import container as fmt
from dedupd_core.format.container import Kind
from dedupd_core.stores.secret_files import DIRECTORIES, SECRET_FILE, read_secret
from jobs.compact.compact_job import Compact
from jobs.frame.run import JobRun
from tests.support import upkeep
from tests.support.lab import Lab, new_lab, noise
from tests.support.old_containers import make_old

CONTENTS = {f"file{number}": noise(100_000, number) for number in range(4)}


def filled(path: Path) -> Lab:
    lab = new_lab(path, "8k")
    lab.store(CONTENTS)
    lab.optimize()
    return lab


def rekey(lab: Lab) -> None:
    with lab.opened() as volume, volume.job_lock():
        Compact(volume, JobRun("compact"), rekey=True).recorded()


def stated(lab: Lab) -> dict[Kind, int]:
    return {kind: lab.seed(kind) for kind in (Kind.CHUNKS, Kind.RECIPES)}


def test_rekey_rewrites_each_container_with_a_seed_of_the_new_key(tmp_path: Path) -> None:
    lab = filled(tmp_path / "volume")
    before = stated(lab)
    rekey(lab)
    with lab.opened() as volume:
        secret = read_secret(volume.base_fd)
    assert secret is not None and len(secret.keys) == 2
    after = stated(lab)
    assert after == {kind: secret.seed(kind, 1, 2) for kind in before}
    assert {name: lab.read(name) for name in CONTENTS} == CONTENTS
    lab.verify_clean()


def test_rekey_gives_old_containers_a_seed_that_users_cannot_know(tmp_path: Path) -> None:
    lab = filled(tmp_path / "volume")
    for kind in (Kind.CHUNKS, Kind.RECIPES):
        make_old(lab.container(kind))
    assert {name: lab.read(name) for name in CONTENTS} == CONTENTS
    lab.verify_clean()
    rekey(lab)
    with lab.opened() as volume:
        for kind in (Kind.CHUNKS, Kind.RECIPES):
            header = fmt.decode_file_header(lab.container(kind).read_bytes()[:128], "")
            assert not header.is_forgeable
            assert lab.seed(kind) != fmt.public_seed(volume.space.volume_id, 1, 2)
    assert {name: lab.read(name) for name in CONTENTS} == CONTENTS
    lab.verify_clean()


def test_new_records_join_an_old_container(tmp_path: Path) -> None:
    lab = filled(tmp_path / "volume")
    for kind in (Kind.CHUNKS, Kind.RECIPES):
        make_old(lab.container(kind))
    lab.put("later", noise(50_000, 9))
    lab.optimize()
    lab.collect(full=True)
    assert lab.read("later") == noise(50_000, 9)
    lab.verify_clean()


def test_a_lost_copy_of_the_secret_is_repaired_and_a_lost_secret_costs_nothing(
    tmp_path: Path,
) -> None:
    lab = filled(tmp_path / "volume")
    copies = [lab.base / os.fsdecode(name + b"/" + SECRET_FILE) for name in DIRECTORIES]
    whole = copies[0].read_bytes()
    for damage in ("gone", "cut", "all gone"):
        for copy in copies if damage == "all gone" else copies[:1]:
            if damage == "cut":
                copy.write_bytes(whole[:40])
            else:
                copy.unlink()
        upkeep.scrub(lab.root)
        assert copies[0].read_bytes() == copies[1].read_bytes()
        assert (copies[0].read_bytes() == whole) == (damage != "all gone")
        lab.verify_clean()
    assert {name: lab.read(name) for name in CONTENTS} == CONTENTS


def test_header_and_table_lost_together_are_rescued_by_the_secret(tmp_path: Path) -> None:
    lab = filled(tmp_path / "volume")
    rekey(lab)
    with open(lab.container(Kind.CHUNKS), "r+b") as file:
        file.write(bytes(fmt.FILE_HEADER_BYTES))
    lab.table(Kind.CHUNKS).unlink()
    upkeep.scrub(lab.root)
    assert {name: lab.read(name) for name in CONTENTS} == CONTENTS
    lab.verify_clean()
