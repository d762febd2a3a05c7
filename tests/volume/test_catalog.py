"""The catalogue: what it keeps, and that losing or damaging it costs nothing else."""

import os
import random
import shutil
import subprocess
import sys
from itertools import count
from pathlib import Path

import pytest

from dedupd_core.errors import CatalogUnusable
from dedupd_core.system.files import opened
from dedupd_core.volume.catalog import Catalog, Catalogue
from tests.conftest import MakeFileSystem
from tests.support.lab import REPOSITORY, fill, lab_in, repeated, run_cli


def filled(directory: Path, values: int = 40) -> Path:
    with Catalog(str(directory)) as catalog:
        for at in range(values):
            catalog.put(f"run/{at:020d}", {"at": at, "text": "x" * 3000})
    return directory / "data.mdb"


def test_values_come_back_as_they_were(tmp_path: Path) -> None:
    with Catalog(str(tmp_path / "c")) as catalog:
        catalog.put("key", {"list": [1, 2.5, None], "text": "ü\udcff"})
    with Catalog(str(tmp_path / "c")) as catalog:
        assert catalog.get("key") == {"list": [1, 2.5, None], "text": "ü\udcff"}
        catalog.delete("key")
        assert catalog.get("key") is None


def test_the_latest_come_first_and_other_keys_do_not_mix_in(tmp_path: Path) -> None:
    with Catalog(str(tmp_path / "c")) as catalog:
        for at in range(9):
            catalog.put(f"run/{at:020d}", at)
        for other in ("ru", "run", "run0", "s", "a"):
            catalog.put(other, "other")
        assert catalog.latest("run/", 3) == [8, 7, 6]
        assert catalog.latest("run/", 99) == list(range(8, -1, -1))
        assert catalog.latest("none/", 5) == []


def test_readers_see_whole_transactions_while_others_write(tmp_path: Path) -> None:
    directory = str(tmp_path / "c")
    filled(tmp_path / "c")
    at = count()

    def write() -> None:
        with Catalog(directory) as catalog:
            catalog.put("key", [next(at)] * 3000)

    write()
    seen = 0
    with repeated(write, pause_s=0):
        while seen < 40:
            with Catalogue(directory) as catalogue:
                value = catalogue.get("key")
                assert len(catalogue.latest("run/", 99)) == 40
            assert value == [value[0]] * 3000 and value[0] >= seen
            seen = value[0]


def test_a_missing_or_damaged_catalogue_reads_as_an_empty_one(tmp_path: Path) -> None:
    for content in (None, b"", os.urandom(50_000)):
        if content is not None:
            (tmp_path / "data.mdb").write_bytes(content)
        with Catalogue(str(tmp_path)) as catalogue:
            assert catalogue.get("key") is None and catalogue.latest("run/", 9) == []
        if content is not None:
            assert (tmp_path / "data.mdb").read_bytes() == content


def test_messages_name_the_directory_and_no_descriptor(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with opened(os.open(tmp_path, os.O_RDONLY)) as fd:
        for kind in (Catalog, Catalogue):
            with pytest.raises(CatalogUnusable) as refusal:
                kind(f"/proc/self/fd/{fd}/file")
            assert f"{tmp_path}/file: the catalogue cannot be used now" in str(refusal.value)
            assert "/proc/self" not in str(refusal.value)


def use(directory: Path) -> "subprocess.CompletedProcess[str]":
    """Read and write a catalogue in a process of its own: damage to a map can kill."""
    program = (
        "import sys; from dedupd_core.volume.catalog import Catalog\n"
        "with Catalog(sys.argv[1]) as c:\n"
        "    c.latest('run/', 1000); c.put('key', 'value'); assert c.get('key') == 'value'"
    )
    return subprocess.run(
        [sys.executable, "-c", program, str(directory)],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("length", [0, 1, 4096, 8192, 20_000, 100_000])
def test_a_catalogue_that_was_cut_is_made_again(tmp_path: Path, length: int) -> None:
    os.truncate(filled(tmp_path / "c"), length)
    result = use(tmp_path / "c")
    assert result.returncode == 0, result.stderr


def test_a_catalogue_that_is_another_file_is_made_again(tmp_path: Path) -> None:
    filled(tmp_path / "c").write_bytes(os.urandom(50_000))
    result = use(tmp_path / "c")
    assert result.returncode == 0, result.stderr


DAMAGE = """
import random, sys
from pathlib import Path
from dedupd_core.volume.catalog import Catalog

PAGE_BYTES = 4096
path, sound = Path(sys.argv[1]) / "data.mdb", Path(sys.argv[2]).read_bytes()

def damaged(rng):
    data = bytearray(sound)
    pages = len(data) // PAGE_BYTES
    for _ in range(rng.choice((1, 1, 2))):
        one, other = (rng.randrange(pages) * PAGE_BYTES for _ in range(2))
        page = slice(one, one + PAGE_BYTES)
        how = rng.randrange(5)
        if how == 0:
            data[one + rng.randrange(PAGE_BYTES)] ^= 1 << rng.randrange(8)
        elif how == 1:
            data[one + rng.randrange(32)] ^= 1 << rng.randrange(8)
        elif how == 2:
            data[page] = bytes(PAGE_BYTES)
        elif how == 3:
            data[page] = data[other : other + PAGE_BYTES]
        else:
            start = one + rng.randrange(0, PAGE_BYTES - 64, 8)
            data[start : start + 8] = rng.randrange(pages).to_bytes(8, "little")
    return data

for seed in range(int(sys.argv[3])):
    print(seed, flush=True)
    rng = random.Random(seed)
    path.write_bytes(damaged(rng))
    for at in range(4):
        with Catalog(sys.argv[1]) as catalog:
            catalog.latest("run/", 1000)
            catalog.put(f"run/{rng.randrange(40):020d}", "y" * rng.randrange(9000))
            catalog.delete(f"run/{rng.randrange(40):020d}")
            catalog.put("key", at)
            assert catalog.get("key") == at
"""


def test_no_damage_ends_a_process(tmp_path: Path) -> None:
    """LMDB aborts where a page is not what it should be, and has no checksums to tell."""
    path = filled(tmp_path / "c")
    with Catalog(str(tmp_path / "c")) as catalog:
        for at in range(0, 40, 3):
            catalog.put(f"run/{at:020d}", "y" * (at * 300))
        catalog.delete_all("run/00000000000000000001")
    shutil.copy(path, tmp_path / "sound")
    result = subprocess.run(
        [sys.executable, "-c", DAMAGE, str(tmp_path / "c"), str(tmp_path / "sound"), "300"],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, (result.stdout[-20:], result.stderr[-2000:])


@pytest.mark.parametrize("seed", range(6))
def test_a_catalogue_that_is_sound_keeps_all(tmp_path: Path, seed: int) -> None:
    """It is looked at each time that it is opened, whatever was put into it and taken out."""
    rng, model = random.Random(seed), dict[str, str]()
    for _ in range(60):
        with Catalog(str(tmp_path / "c")) as catalog:
            for _ in range(rng.choice((1, 8, 30))):
                width = rng.choice((4, 90))
                key = f"{rng.choice('ab')}/{rng.randrange(3 ** rng.randrange(1, 6)):0{width}d}"
                if rng.random() < 0.4:
                    catalog.delete(key)
                    model.pop(key, None)
                else:
                    model[key] = rng.choice("xyz") * rng.choice((1, 40, 2000, 2022, 4100, 30_000))
                    catalog.put(key, model[key])
            if rng.random() < 0.1:
                catalog.delete_all("b/")
                model = {key: value for key, value in model.items() if key.startswith("a/")}
    with Catalog(str(tmp_path / "c")) as catalog:
        assert {key: catalog.get(key) for key in model} == model
        assert len(catalog.latest("a/", 9999)) == sum(key.startswith("a/") for key in model)


def test_a_damaged_value_counts_as_none(tmp_path: Path) -> None:
    path = filled(tmp_path / "c", 3)
    data = path.read_bytes()
    path.write_bytes(data.replace(b'{"at": 1,', b'{"at" 1,,'))
    with Catalog(str(tmp_path / "c")) as catalog:
        assert [value["at"] for value in catalog.latest("run/", 9)] == [2, 0]


@pytest.mark.root
def test_a_full_disk_is_said_and_named(loop_fs: MakeFileSystem) -> None:
    point = loop_fs(size="4M")
    with Catalog(str(point / "c")) as catalog:
        catalog.put("key", "value")
        fill_up(point)
        with pytest.raises(CatalogUnusable, match="cannot be used now"):
            for at in range(1000):
                catalog.put(f"run/{at}", "x" * 1000)
        assert catalog.get("key") == "value"


def fill_up(point: Path) -> None:
    """Use all that a file system has left."""
    with open(point / "filler", "wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)):
                pass
        except OSError:
            os.fsync(file.fileno())


def test_a_job_is_done_also_where_its_history_cannot_be_kept(tmp_path: Path) -> None:
    with lab_in(tmp_path) as lab:
        contents = fill(lab)
        shutil.rmtree(lab.base / "catalog")
        (lab.base / "catalog").write_bytes(b"in the way")
        result = run_cli("run", "optimize", lab.root)
        assert result.returncode == 0
        assert "the run is not in the history" in result.stderr
        assert {name: lab.read(name) for name in contents} == contents
