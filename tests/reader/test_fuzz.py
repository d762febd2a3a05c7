"""Whatever damage hits the files of a volume: no wrong byte is extracted, and nothing is lost in
silence."""

import json
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dedupd_reader import reader
from tests.support.lab import Lab
from tests.support.reader import mixed_lab
from tests.support.trees import Seen, seen

pytestmark = pytest.mark.root

Damage = Callable[[random.Random, bytes], bytes]


def flipped(rng: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.choice((1, 3, 30))):
        changed[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def zeroed(rng: random.Random, data: bytes) -> bytes:
    start = rng.randrange(len(data)) & -512
    count = min(rng.choice((512, 4096, 65536)), len(data) - start)
    return data[:start] + bytes(count) + data[start + count :]


def shortened(rng: random.Random, data: bytes) -> bytes:
    return data[: rng.randrange(len(data))]


def moved(rng: random.Random, data: bytes) -> bytes:
    """A block is written to the place of another one."""
    source, target = (rng.randrange(len(data)) & -512 for _ in range(2))
    block = data[source : source + 4096]
    return data[:target] + block + data[target + len(block) :]


def overwritten(rng: random.Random, data: bytes) -> bytes:
    start = rng.randrange(len(data))
    noise = rng.randbytes(min(200, len(data) - start))
    return data[:start] + noise + data[start + len(noise) :]


DAMAGES: tuple[Damage, ...] = (flipped, zeroed, shortened, moved, overwritten)


class Victim:
    """A volume that is damaged again and again, and is as before between."""

    def __init__(self, lab: Lab) -> None:
        self.lab, self.right = lab, seen(lab.data)
        volume = reader.Volume(str(lab.root))
        self.contents = {
            name: volume.content(name)
            for name, row in self.right.items()
            if row[-1] is not None and not os.path.islink(lab.data / name)
        }
        paths = (path for path in lab.base.rglob("*") if path.is_file())
        self.files = {
            path: path.read_bytes()
            for path in sorted(paths)
            if not path.is_relative_to(lab.data) and path.stat().st_size
        }

    def damage(self, rng: random.Random) -> list[Path]:
        hit = rng.sample(sorted(self.files), rng.choice((1, 1, 2, 4)))
        if rng.random() < 0.2:
            heads = [path for path in self.files if path.suffix in (".dat", ".dir")]
            for path in heads:
                with open(path, "r+b") as file:
                    file.write(bytes(128 if path.suffix == ".dat" else 64))
            secrets = [path for path in self.files if path.name == "secret.json"]
            for path in secrets:
                path.unlink()
            return [*heads, *secrets, *self._hit(rng, hit)]
        return self._hit(rng, hit)

    def _hit(self, rng: random.Random, hit: list[Path]) -> list[Path]:
        for path in hit:
            if rng.random() < 0.05:
                path.unlink(missing_ok=True)
            else:
                path.write_bytes(rng.choice(DAMAGES)(rng, self.files[path]))
        return hit

    def repair(self, hit: list[Path]) -> None:
        for path in hit:
            path.write_bytes(self.files[path])


@pytest.fixture(scope="module")
def victim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Victim]:
    yield Victim(mixed_lab(tmp_path_factory.mktemp("fuzz") / "volume"))


def expect_no_wrong_byte(
    victim: Victim, seed: int, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hit = victim.damage(random.Random(seed))
    try:
        status = reader.run(
            ["extract", str(victim.lab.root), "--to", str(out), "--privileges", "--json"]
        )
        printed = capsys.readouterr().out
    finally:
        victim.repair(hit)
    rows = [json.loads(line) for line in printed.splitlines()]
    if rows and "error" in rows[-1]:
        assert status in (2, 4) and not (out.exists() and os.listdir(out)), rows
        return
    named = {row["path"] for row in rows if "problem" in row}
    got: Seen = seen(out)
    assert set(victim.right) - set(got) == named, (seed, hit)
    assert status == (4 if named else 1 if any("note" in row for row in rows) else 0)
    for name, row in got.items():
        if name in victim.contents:
            assert row[-1] == victim.contents[name], f"{name} has wrong bytes ({seed}, {hit})"
            assert row[:7] == victim.right[name][:7]


@pytest.mark.parametrize("seed", range(12))
def test_random_damage_gives_no_wrong_byte(
    victim: Victim, seed: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expect_no_wrong_byte(victim, seed, tmp_path / "out", capsys)


@pytest.mark.slow
def test_much_random_damage_gives_no_wrong_byte(
    victim: Victim, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for seed in range(1000, 2000):
        expect_no_wrong_byte(victim, seed, tmp_path / str(seed), capsys)
