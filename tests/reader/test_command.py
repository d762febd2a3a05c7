"""dedupd-reader as an administrator uses it: its output, its refusals, and what it keeps."""

import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from dedupd_core.format.container import Kind
from dedupd_core.system.files import opened
from dedupd_core.units import KIB
from tests.support.crash import tmpfs
from tests.support.lab import OLD_NS, Lab, new_lab, noise
from tests.support.mounts import mounted_lab
from tests.support.reader import READER, raw_reader, reader, rows_of
from tests.support.upkeep import PLAIN, chunks_of, damage_record

pytestmark = pytest.mark.root

FOUR, PART = 4 * 128 * KIB, 128 * KIB


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    """With a file of several chunks, and a small file."""
    lab = new_lab(tmp_path / "volume")
    lab.set_policy(PLAIN + "redundancy_threshold = 250\n")
    lab.put("folder/below/file", noise(FOUR, 1))
    lab.put("folder/small", noise(5000, 2))
    lab.put("other", noise(5000, 3))
    os.chown(lab.data / "folder", 1234, 4321)
    os.chmod(lab.data / "folder", 0o751)
    for name in ("folder/below", "folder"):
        os.utime(lab.data / name, ns=(OLD_NS, OLD_NS))
    lab.optimize()
    return lab


def damaged(lab: Lab) -> tuple[int, int]:
    """Damage a chunk in the middle of the large file; the range that is lost."""
    chunk, start, end = chunks_of(lab, "folder/below/file")[2]
    damage_record(lab, Kind.CHUNKS, chunk)
    return start, end


def test_a_part_is_extracted_with_the_directories_above_it(lab: Lab, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert reader("extract", lab.root, "folder//below/", "--to", out).returncode == 0
    assert sorted(path.name for path in out.rglob("*")) == ["below", "file", "folder"]
    for name in ("folder", "folder/below"):
        was, got = os.stat(lab.data / name), os.stat(out / name)
        assert (got.st_mode, got.st_uid, got.st_mtime_ns) == (
            *(was.st_mode, was.st_uid, was.st_mtime_ns),
        )
    assert stat.S_IMODE(os.stat(out).st_mode) == 0o700


def test_damage_is_named_by_file_and_range_and_the_others_are_extracted(
    lab: Lab, tmp_path: Path
) -> None:
    start, end = damaged(lab)
    out = tmp_path / "out"
    done = reader("extract", lab.root, "--to", out)
    assert done.returncode == 4
    assert f"folder/below/file: bytes {start} to {end - 1} cannot be read: record 1:" in done.stderr
    assert "use --partial" in done.stderr
    assert done.stdout == "2 files extracted, 10,000 bytes; 1 damaged\n"
    assert not list((out / "folder/below").iterdir())
    assert (out / "other").read_bytes() == noise(5000, 3)


def test_the_rest_of_a_damaged_file_is_extracted_under_another_name(
    lab: Lab, tmp_path: Path
) -> None:
    start, end = damaged(lab)
    done = reader("extract", lab.root, "--partial", "--to", tmp_path / "out")
    assert done.returncode == 4
    (path,) = (tmp_path / "out/folder/below").iterdir()
    assert path.name == "file.damaged"
    right = noise(FOUR, 1)
    assert path.read_bytes() == right[:start] + bytes(end - start) + right[end:]
    path.write_bytes(b"mine")
    done = reader("extract", lab.root, "folder/below/file", "--partial", "--to", tmp_path / "out")
    assert done.returncode == 4
    assert "file.damaged exists in the target" in done.stderr
    assert [path.read_bytes() for path in path.parent.iterdir()] == [b"mine"]


def test_cat_ends_before_the_first_byte_that_is_lost(lab: Lab) -> None:
    def cat(*options: str) -> tuple[int, bytes]:
        done = raw_reader("cat", lab.root, "folder/below/file", *options)
        return done.returncode, done.stdout

    right = noise(FOUR, 1)
    assert cat() == (0, right)
    start, end = damaged(lab)
    assert cat() == (4, right[:start])
    assert cat("--partial") == (4, right[:start] + bytes(end - start) + right[end:])


def test_cat_writes_holes_as_zeros(lab: Lab) -> None:
    path = lab.put("sparse", noise(10_000, 5))
    os.truncate(path, 3 << 20)
    lab.optimize()
    done = raw_reader("cat", lab.root, "sparse")
    assert done.stdout == noise(10_000, 5).ljust(3 << 20, b"\0")


def test_a_file_that_exists_is_not_overwritten(lab: Lab, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir(mode=0o700)
    (out / "other").write_bytes(b"mine")
    (out / "folder").write_bytes(b"mine as well")
    done = reader("extract", lab.root, "--to", out)
    assert done.returncode == 1
    assert "other: it exists in the target" in done.stderr
    assert "folder: it exists in the target" in done.stderr
    assert {path.name: path.read_bytes() for path in out.iterdir()} == {
        "other": b"mine",
        "folder": b"mine as well",
    }
    assert reader("extract", lab.root, "other", "--to", tmp_path / "new").returncode == 0


def test_a_second_run_extracts_what_is_missing(lab: Lab, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert reader("extract", lab.root, "folder/small", "--to", out).returncode == 0
    os.chmod(out / "folder", 0o700)
    done = reader("extract", lab.root, "--to", out)
    assert done.returncode == 1
    assert (out / "folder/below/file").read_bytes() == noise(FOUR, 1)
    assert stat.S_IMODE(os.stat(out / "folder").st_mode) == 0o700, "it was there before"


def test_a_full_target_ends_the_run_with_whole_files_only(lab: Lab, tmp_path: Path) -> None:
    with tmpfs(tmp_path, size_mb=1) as point:
        lab.put("folder/x-large", noise(2 << 20, 9))
        out = point / "out"
        done = reader("extract", lab.root, "--to", out)
        assert done.returncode == 1
        assert "No space left on device; name another target" in done.stderr
        names = {path.name for path in out.rglob("*") if path.is_file()}
        assert names == {"file", "small"}


def test_a_name_that_leads_out_of_the_volume_is_refused(lab: Lab, tmp_path: Path) -> None:
    os.symlink(tmp_path, lab.data / "link")
    for name in ("../volume.json", "folder/../../volume.json", "link/volume", "missing"):
        done = reader("extract", lab.root, name, "--to", tmp_path / "out")
        assert done.returncode == 2, name
        assert done.stderr.startswith(f"dedupd-reader: {name}: ")
    done = reader("extract", lab.root, "--to", lab.data / "out")
    assert done.returncode == 2 and "lies in the volume" in done.stderr
    assert not (lab.data / "out").exists()


def test_names_need_not_be_text(lab: Lab, tmp_path: Path) -> None:
    name = b"no\xfftext\n\x1b[31m"
    lab.put(name, noise(5000, 7))
    lab.optimize()
    for locale in ("C.UTF-8", "C", "POSIX"):
        environment = {"LC_ALL": locale, "PYTHONCOERCECLOCALE": "0"}
        done = raw_reader("list", lab.root, environment=environment)
        assert rb"no\xfftext\n\x1b[31m" in done.stdout, locale
    rows = rows_of(reader("list", lab.root, "--json"))
    assert os.fsdecode(name) in {row["path"] for row in rows}
    out = tmp_path / "out"
    assert reader("extract", lab.root, name, "--to", out).returncode == 0
    assert os.listdir(os.fsencode(out)) == [name]


def in_depth(top: Path, names: list[str], *, make: bool) -> int:
    """A descriptor of a directory that lies deeper than a path can be long."""
    fd = os.open(top, os.O_RDONLY)
    for name in names:
        if make:
            os.mkdir(name, dir_fd=fd)
        below = os.open(name, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    return fd


def test_directories_may_be_deeper_than_paths_are_long(lab: Lab, tmp_path: Path) -> None:
    names = ["x" * 200] * 40
    with opened(in_depth(lab.data, names, make=True)) as fd:
        Path(f"/proc/self/fd/{fd}/file").write_bytes(noise(5000, 8))
    lab.optimize()
    rows = rows_of(reader("list", lab.root, "--json"))
    assert rows[-1] == {"path": "/".join([*names, "file"]), "kind": "stub", "size": 5000}
    done = reader("extract", lab.root, "--to", tmp_path / "out")
    assert (done.returncode, done.stderr) == (0, "")
    with opened(in_depth(tmp_path / "out", names, make=False)) as fd:
        assert Path(f"/proc/self/fd/{fd}/file").read_bytes() == noise(5000, 8)


def test_a_volume_in_use_is_refused(tmp_path: Path, lab: Lab) -> None:
    with lab.opened() as volume, volume.job_lock():
        done = reader("list", lab.root)
        assert done.returncode == 3 and "unmount the volume" in done.stderr
    (tmp_path / "mounted").mkdir()
    with mounted_lab(tmp_path / "mounted") as other:
        assert reader("check", other.root, "--json").returncode == 3
        done = reader("list", other.view)
        assert done.returncode == 2 and "copy files out of the mount" in done.stderr


def test_a_reader_keeps_jobs_away(lab: Lab) -> None:
    command = [sys.executable, "-I", str(READER), "cat", str(lab.root), "folder/below/file"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.read(1)
        with pytest.raises(Exception, match="in use by a job"):
            lab.optimize()
        process.stdout.close()
    assert process.returncode == -signal.SIGPIPE
    lab.optimize()


@pytest.mark.parametrize("what", ["nothing", "a file", "an empty directory", "no such directory"])
def test_what_is_no_volume_is_refused_in_words(tmp_path: Path, what: str) -> None:
    path = tmp_path / "x"
    if what == "a file":
        path.write_bytes(b"x")
    elif what == "an empty directory":
        path.mkdir()
    done = reader("check", path)
    assert done.returncode == 2
    assert "no volume, and no copy of one" in done.stderr
    assert reader("check").returncode == 2


@pytest.mark.parametrize("damage", ["missing", "empty", "no JSON", "a bit"])
def test_a_lost_volume_file_is_replaced_by_what_containers_state(
    lab: Lab, tmp_path: Path, damage: str
) -> None:
    path = lab.base / "volume.json"
    text = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(
            {"empty": b"", "no JSON": b"[1, 2]"}.get(damage, text[:-9] + b"0" + text[-8:])
        )
    done = reader("extract", lab.root, "--to", tmp_path / "out")
    assert done.returncode == 1
    assert "volume.json cannot be read" in done.stderr
    assert (tmp_path / "out/folder/below/file").read_bytes() == noise(FOUR, 1)


def test_a_library_that_is_missing_is_named() -> None:
    program = (
        "import runpy, sys; sys.modules['zstandard'] = None; sys.argv = ['reader.py'];"
        f"runpy.run_path({str(READER)!r}, run_name='__main__')"
    )
    command = [sys.executable, "-I", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("dedupd-reader: the library zstandard is missing; run `apt")
    assert done.stderr.count("\n") == 1


def test_the_help_names_every_command_and_the_version_its_file() -> None:
    text = reader("--help").stdout
    for name in ("list", "cat", "extract", "check", "deleted", "undelete"):
        assert f"    {name} " in text
        assert reader(name, "--help").stdout.startswith(f"usage: dedupd-reader {name} ")
    assert "Exit status: 0 done" in text
    assert reader("--version").stdout.strip().endswith(str(READER))


def test_json_is_one_object_per_line(lab: Lab) -> None:
    start, end = damaged(lab)
    rows = rows_of(reader("check", lab.root, "--json"))
    assert rows[0]["path"] == "folder/below/file"
    assert [(one["start"], one["end"]) for one in rows[0]["ranges"]] == [(start, end)]
    assert rows[-1] == {"summary": {"files": 2, "bytes": 10_000, "damaged": 1, "exit_status": 4}}
    done = reader("check", lab.root / "nowhere", "--json")
    assert json.loads(done.stdout)["exit_status"] == done.returncode == 2


def test_closed_streams_and_readers_that_leave_do_no_harm(lab: Lab, tmp_path: Path) -> None:
    program = f"{sys.executable} -I {READER}"
    out = tmp_path / "out"
    shell = f"{program} extract {lab.root} --to {out} <&- >&- 2>&-"
    assert subprocess.run(["sh", "-c", shell], check=False).returncode == 0
    assert (out / "other").read_bytes() == noise(5000, 3)
    shell = f"{program} list {lab.root} | head -n 1"
    done = subprocess.run(["sh", "-c", shell], capture_output=True, text=True, check=True)
    assert done.stdout.count("\n") == 1 and done.stderr == ""
