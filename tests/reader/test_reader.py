"""The independent reader, written by docs/design/format.md alone, reads what the program reads."""

import os
import random
import stat
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from dedupd_core.format import container as fmt
from dedupd_core.format.container import Kind
from dedupd_core.system.paths import show_path
from dedupd_core.units import KIB
from tests.support.lab import flip_bit, new_lab, noise
from tests.support.reader import mixed_lab, reader, restored, rows_of
from tests.support.trees import seen

pytestmark = pytest.mark.root


def test_the_reader_takes_out_what_the_program_does(tmp_path: Path) -> None:
    lab = mixed_lab(tmp_path / "volume")
    assert restored(lab, tmp_path / "by-the-program") == set()
    done = reader("extract", lab.root, "--to", tmp_path / "by-the-reader", "--privileges")
    assert (done.returncode, done.stderr) == (0, "")
    assert seen(tmp_path / "by-the-reader") == seen(tmp_path / "by-the-program")
    assert reader("check", lab.base).returncode == 0
    lines = reader("list", lab.root).stdout.splitlines()
    assert len(lines) == sum(len(files) for _, _, files in os.walk(lab.data))
    assert [line.split()[0] for line in lines if line.endswith(" prose")] == ["stub"]


@pytest.mark.parametrize("lost", ["nothing", "headers"])
def test_the_reader_reads_a_store_of_several_domains(tmp_path: Path, lost: str) -> None:
    lab = new_lab(tmp_path / "volume")
    lab.set_policy('min_age = "0s"\nmin_size = "1"\ndedup_domain = "folder"\n')
    contents = {f"{top}/{name}": noise(80 * KIB, name) for top in "ab" for name in range(2)}
    for name, content in contents.items():
        lab.put(name, content)
    lab.optimize()
    if lost == "headers":
        for path in (lab.base / "store").rglob("*.dat"):
            with open(path, "r+b") as file:
                file.write(bytes(128))
    out = tmp_path / "out"
    done = reader("extract", lab.root, "--to", out, "--privileges")
    assert (done.returncode, done.stderr) == (0, "")
    assert {name: (out / name).read_bytes() for name in contents} == contents


@pytest.mark.parametrize("seed", range(3))
def test_the_reader_names_what_bits_hit_and_gets_all_else(tmp_path: Path, seed: int) -> None:
    lab = mixed_lab(tmp_path / "volume")
    whole = tmp_path / "whole"
    assert restored(lab, whole) == set()
    rng = random.Random(seed)
    files = sorted((lab.base / "store").rglob("*.d??"))
    weights = [path.stat().st_size for path in files]
    for path in rng.choices(files, weights, k=100):
        flip_bit(path, rng.randrange(path.stat().st_size), rng.randrange(8))
    out = tmp_path / "out"
    done = reader("extract", lab.root, "--to", out, "--privileges", "--json")
    named = {row["path"] for row in rows_of(done) if "problem" in row}
    right, got = seen(whole), seen(out)
    assert done.returncode == 4
    assert set(right) - set(got) == named
    for name, row in got.items():
        assert row[-1] == right[name][-1], f"{name} has wrong bytes"
    # Nothing is left out that the program can read.
    by_program = tmp_path / "by-the-program"
    assert restored(lab, by_program) == {show_path(os.fsencode(name)) for name in named}
    assert seen(by_program) == got


def test_the_reader_makes_no_volume_of_its_target(tmp_path: Path) -> None:
    """Older versions let users have an entry of that name at the top."""
    lab, out = new_lab(tmp_path / "volume"), tmp_path / "out"
    for name in (".dedupd/volume.json", "folder/.dedupd/x"):
        lab.put(name, b"of a user")
    done = reader("extract", lab.root, "--to", out)
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(os.listdir(out)) == ["dedupd-of-a-user", "folder"]
    assert (out / "dedupd-of-a-user/volume.json").read_bytes() == b"of a user"
    assert (out / "folder/.dedupd/x").read_bytes() == b"of a user"


def test_the_reader_takes_no_privileges_unasked(tmp_path: Path) -> None:
    lab = new_lab(tmp_path / "volume")
    os.chmod(lab.put("file", b"x"), 0o6755)
    os.setxattr(lab.put("other", b"x"), "trusted.x", b"1")
    os.mknod(lab.data / "device", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    (lab.data / "shared").mkdir()
    os.chmod(lab.data / "shared", 0o3777)
    subprocess.run(["setfacl", "-d", "-m", "u:1234:rwx", tmp_path], check=True)
    done = reader("extract", lab.root, "--to", tmp_path / "out")
    assert "3 names without privileges" in done.stderr
    found = seen(tmp_path / "out")
    modes = {name: stat.S_IMODE(int(str(row[0]))) for name, row in found.items()}
    assert modes == {"file": 0o755, "other": 0o644, "shared": 0o3777}
    assert all(row[6] == {} for row in found.values())
    before = seen(lab.data)
    subprocess.run(["setfacl", "-k", tmp_path], check=True)
    reader("extract", lab.root, "--to", tmp_path / "all", "--privileges")
    assert seen(tmp_path / "all") == before


def test_the_reader_refuses_a_target_that_users_reach(tmp_path: Path) -> None:
    lab, out = new_lab(tmp_path / "volume"), tmp_path / "out"
    lab.put("file", b"x")
    for owner, mode in ((0, 0o755), (1000, 0o700)):
        out.mkdir(exist_ok=True)
        os.chown(out, owner, owner)
        os.chmod(out, mode)
        done = reader("extract", lab.root, "--to", out)
        assert (done.returncode, os.listdir(out)) == (2, [])
        assert "other users may reach this directory" in done.stderr


def test_what_the_reader_does_not_know_it_names(tmp_path: Path) -> None:
    """A later format is no damage, and is never taken for anything else."""
    lab = new_lab(tmp_path / "volume")
    lab.put("file", noise(10 * KIB, 1))
    lab.optimize()
    path = lab.container(Kind.CHUNKS)
    data = bytearray(path.read_bytes())
    seed = fmt.seed_of(fmt.decode_file_header(bytes(data), ""))
    record = fmt.unpack_record(bytes(data), fmt.FILE_HEADER_BYTES, seed)
    assert record is not None
    later = replace(record, codec=77)
    fmt.pack_record_into(memoryview(data), fmt.FILE_HEADER_BYTES, later, seed)
    path.write_bytes(data)
    done = reader("check", lab.root)
    assert done.returncode == 4
    assert "codec 77: this version does not know it" in done.stderr


def test_the_reader_takes_no_zeros_for_content(tmp_path: Path) -> None:
    lab = mixed_lab(tmp_path / "volume")
    copy = tmp_path / "copy"
    subprocess.run(["rsync", "-aX", f"{lab.base}/", copy], check=True)
    done = reader("extract", copy, "--to", tmp_path / "out")
    assert done.returncode == 4
    right = seen(lab.data)
    stubs = {
        n for n in right if "trusted.dedupd" in os.listxattr(lab.data / n, follow_symlinks=False)
    }
    assert stubs and not stubs & set(seen(tmp_path / "out"))
    subprocess.run(["rsync", "-a", f"{lab.base}/", tmp_path / "bare"], check=True)
    assert reader("check", tmp_path / "bare").returncode == 4
