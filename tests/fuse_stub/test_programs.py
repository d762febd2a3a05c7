"""Real programs on the mount, over stubs: what they make and keep must be what they expect."""

import filecmp
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import textwrap
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.lab import noise, prose
from tests.support.mounts import MountedLab, mounted_lab
from tests.support.samba import samba_share
from tests.support.service import reserved_port

pytestmark = [pytest.mark.root, pytest.mark.slow]


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[MountedLab]:
    with mounted_lab(tmp_path) as lab:
        yield lab
        lab.unmount()
        lab.verify_clean()


def need(program: str) -> None:
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")


def run(*command: str | Path, cwd: Path | None = None) -> str:
    result = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert result.returncode == 0, f"{command}: {result.stdout}{result.stderr}"
    return result.stdout


def fill(root: Path, seed: int) -> None:
    """A small project: text that compresses, pictures that do not, links, odd names."""
    rng = random.Random(seed)
    for number in range(60):
        path = root / f"part{number % 7}" / f"file {number}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(prose(rng.randrange(100, 200_000), seed + number))
    for number in range(8):
        (root / f"picture{number}.bin").write_bytes(noise(rng.randrange(50_000, 900_000), number))
    os.link(root / "picture0.bin", root / "a hard link")
    (root / "a link").symlink_to("picture1.bin")
    os.chmod(root / "picture2.bin", 0o4751)
    os.utime(root / "picture3.bin", ns=(10**18, 10**18 + 123_456_789))


def same(left: Path, right: Path) -> None:
    run("rsync", "--version")
    changes = run(
        "rsync", "-aHAXnic", "--delete", "--exclude=/.git", f"{left}/", f"{right}/"
    ).splitlines()
    assert [line for line in changes if not line.startswith(".d..t")] == []


def test_git_clones_checks_and_repacks(lab: MountedLab, tmp_path: Path) -> None:
    need("git")
    source = tmp_path / "source"
    fill(source, 1)
    git = ["git", "-c", "user.name=x", "-c", "user.email=x@example.org"]
    run(*git, "init", "-q", cwd=source)
    for step in range(6):
        (source / "changing.txt").write_bytes(prose(150_000 + step * 500, 5))
        run(*git, "add", "-A", cwd=source)
        run(*git, "commit", "-qm", f"step {step}", cwd=source)
    clone = lab.view / "clone"
    run(*git, "clone", "-q", "--no-hardlinks", source, clone)
    for command in (["fsck", "--full"], ["repack", "-adq"], ["gc", "-q"], ["fsck", "--full"]):
        lab.optimize()
        run(*git, *command, cwd=clone)
    assert run(*git, "status", "--porcelain", cwd=clone) == ""
    (clone / "changing.txt").write_bytes(b"edited on a stub\n")
    lab.optimize()
    run(*git, "commit", "-qam", "on the mount", cwd=clone)
    run(*git, "checkout", "-q", "HEAD~3", cwd=clone)
    run(*git, "fsck", "--full", cwd=clone)


def test_sqlite_survives_kills_of_its_program_and_of_the_mount(lab: MountedLab) -> None:
    path = lab.view / "data.db"
    with sqlite3.connect(path) as db:
        db.execute("create table t (n integer primary key, body blob)")
        db.executemany("insert into t values (?, ?)", [(n, noise(900, n)) for n in range(2000)])
    writer = textwrap.dedent(
        """
        import random, sqlite3, sys
        db = sqlite3.connect(sys.argv[1], isolation_level=None)
        rng = random.Random(int(sys.argv[2]))
        while True:
            db.execute("begin immediate")
            for _ in range(rng.randrange(1, 30)):
                db.execute("update t set body = ? where n = ?",
                           (rng.randbytes(rng.randrange(1, 3000)), rng.randrange(2000)))
            db.execute("commit")
            print("x", flush=True)
        """
    )
    rng = random.Random(3)
    for round_ in range(25):
        lab.optimize()
        process = subprocess.Popen(
            [sys.executable, "-c", writer, str(path), str(round_)], stdout=subprocess.PIPE
        )
        assert process.stdout is not None
        for _ in range(rng.randrange(1, 20)):
            process.stdout.readline()
        if round_ % 3 == 0:
            lab.kill()
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        if round_ % 3 == 0:
            lab.mount()
        with sqlite3.connect(path) as db:
            assert db.execute("pragma integrity_check").fetchall() == [("ok",)]
            assert db.execute("select count(*) from t").fetchone() == (2000,)
        db.close()


def test_a_c_program_is_built_on_stubs(lab: MountedLab) -> None:
    need("gcc")
    need("make")
    here = lab.view / "c"
    here.mkdir()
    parts = 30
    for number in range(parts):
        body = f"int f{number}(int x) {{ return x + {number}; }}\n"
        padding = "".join(f"/* line {line} */\n" for line in range(3000))
        (here / f"f{number}.c").write_text(padding + body)
    calls = "".join(f"int f{n}(int);\n" for n in range(parts))
    total = " + ".join(f"f{n}(0)" for n in range(parts))
    (here / "main.c").write_text(f"{calls}int main(void) {{ return ({total}) != 435; }}\n")
    objects = " ".join(f"f{n}.o" for n in range(parts))
    (here / "Makefile").write_text(f"main: main.o {objects}\n\tgcc -o main main.o {objects}\n")
    lab.optimize()
    run("make", "-j2", cwd=here)
    run(here / "main")
    lab.optimize()
    assert "up to date" in run("make", cwd=here)
    (here / "f3.c").write_text((here / "f3.c").read_text() + "/* edited */\n")
    run("make", cwd=here)
    run(here / "main")


def test_tar_and_rsync_bring_a_tree_there_and_back(lab: MountedLab, tmp_path: Path) -> None:
    need("rsync")
    source = tmp_path / "source"
    fill(source, 2)
    run("tar", "-C", source, "-cf", tmp_path / "a.tar", ".")
    (lab.view / "tar").mkdir()
    run("tar", "-C", lab.view / "tar", "-xpf", tmp_path / "a.tar")
    lab.optimize()
    same(source, lab.view / "tar")
    run("rsync", "-aHAX", f"{lab.view}/tar/", f"{lab.view}/rsync/")
    lab.optimize()
    same(source, lab.view / "rsync")
    # Changes by rsync's own way of patching files in place, and by its usual one.
    (source / "picture4.bin").write_bytes(noise(700_000, 99))
    (source / "part1" / "file 1.txt").write_bytes(prose(190_000, 98))
    run("rsync", "-aHAX", "--inplace", "--no-whole-file", f"{source}/", f"{lab.view}/rsync/")
    run("rsync", "-aHAX", "--no-whole-file", f"{source}/", f"{lab.view}/tar/")
    for name in ("tar", "rsync"):
        same(source, lab.view / name)
    run("tar", "-C", lab.view / "tar", "-cf", lab.view / "b.tar", ".")
    (tmp_path / "back").mkdir()
    run("tar", "-C", tmp_path / "back", "-xpf", lab.view / "b.tar")
    same(source, tmp_path / "back")


def test_tar_reads_stubs_also_where_it_looks_for_holes(lab: MountedLab, tmp_path: Path) -> None:
    names = [f"file {number}.bin" for number in range(5)]
    for number, name in enumerate(names):
        lab.make_stub(name, noise(50_000 * number + 40_000, number))
    run("tar", "-C", lab.view, "--sparse", "-cf", tmp_path / "a.tar", ".")
    (tmp_path / "back").mkdir()
    run("tar", "-C", tmp_path / "back", "-xf", tmp_path / "a.tar")
    assert filecmp.cmpfiles(lab.view, tmp_path / "back", names, shallow=False)[0] == names


def test_documents_are_saved_by_rename(lab: MountedLab) -> None:
    """As word processors do: a new zip beside the old one, then a rename over it."""
    path = lab.view / "document.odt"
    texts = {f"part{n}.xml": prose(60_000, n) for n in range(5)}
    for step in range(8):
        texts["content.xml"] = prose(200_000 + step * 1000, step)
        fresh = lab.view / f".~lock{step}.tmp"
        with zipfile.ZipFile(fresh, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, text in texts.items():
                archive.writestr(name, text)
        if path.exists():
            os.rename(path, lab.view / "document.odt~")
        os.rename(fresh, path)
        lab.optimize()
        with zipfile.ZipFile(path, "a") as archive:
            archive.writestr(f"note {step}", b"added in place")
        lab.optimize()
        with zipfile.ZipFile(path) as archive:
            assert archive.testzip() is None
            assert all(archive.read(name) == text for name, text in texts.items())


# --- over the network -------------------------------------------------------------------------


@pytest.fixture
def port() -> Iterator[int]:
    with reserved_port() as port:
        yield port


@pytest.fixture
def samba(lab: MountedLab, tmp_path: Path, port: int) -> Iterator[list[str]]:
    """The start of an ``smbclient`` command for the mount as a share."""
    with samba_share(lab.view, tmp_path / "samba", port) as client:
        yield client


def test_samba_serves_the_mount(lab: MountedLab, samba: list[str], tmp_path: Path) -> None:
    source, back = tmp_path / "source", tmp_path / "back"
    source.mkdir()
    back.mkdir()
    names = [f"file {number}.bin" for number in range(12)]
    for number, name in enumerate(names):
        (source / name).write_bytes(noise(50_000 * number + 17, number))

    def talk(command: str) -> None:
        run(*samba, "-c", command)

    talk(f"prompt; recurse; lcd {source}; mput *")
    lab.optimize()
    assert lab.stub(names[-1]) is not None
    talk(f'prompt; lcd {back}; mget "file *"')
    assert filecmp.cmpfiles(source, back, names, shallow=False)[0] == names
    (source / names[3]).write_bytes(noise(400_000, 77))
    talk(f'lcd {source}; put "{names[3]}"; rename "{names[4]}" "renamed.bin"; rm "{names[5]}"')
    lab.optimize()
    talk(f'prompt; lcd {back}; get "{names[3]}"; get renamed.bin')
    assert (back / names[3]).read_bytes() == noise(400_000, 77)
    assert (back / "renamed.bin").read_bytes() == (source / names[4]).read_bytes()
    assert not (lab.view / names[5]).exists()
