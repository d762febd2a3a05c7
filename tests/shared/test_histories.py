"""Random histories of volumes on a shared store, against a model: what each file holds."""

import random
from pathlib import Path

import pytest

from dedupd_core.errors import UnseenMember
from dedupd_core.system.disk import Disk
from dedupd_core.units import KIB
from tests.support.disabling import disable
from tests.support.lab import Lab, new_lab, noise
from tests.support.shared import SharedLab, move, rejoin

NAMES = "a", "b", "c"
FILES = tuple(f"f{at}" for at in range(6))
CONTENTS = tuple(noise(20 * KIB * at, at % 4) + noise(60 * KIB, 9) for at in range(1, 9))
"""Some begin alike, and all end alike: nearly every file shares chunks with others."""


class History:
    """Volumes, what users have in them, and what may be done to them."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.rng = random.Random(seed)
        self.shared = SharedLab(directory)
        self.labs = {name: self.shared.volume(name) for name in NAMES}
        self.files: dict[str, dict[str, bytes]] = {name: {} for name in NAMES}
        self.on_store = set(NAMES)
        self.done: list[str] = []

    def step(self) -> None:
        weights = {
            self.write: 8,
            self.remove: 4,
            self.optimize: 6,
            self.collect: 4,
            self.compact: 2,
            self.unoptimize: 1,
            self.move: 2,
            self.rename: 1,
            self.hide: 1,
            self.leave: 1,
        }
        (act,) = self.rng.choices(list(weights), list(weights.values()))
        name = self.rng.choice(NAMES)
        self.done.append(f"{act.__name__} {name}")
        act(name)

    def write(self, name: str) -> None:
        for file in self.rng.sample(FILES, 2):
            content = self.rng.choice(CONTENTS)
            self.labs[name].put(file, content)
            self.files[name][file] = content

    def remove(self, name: str) -> None:
        if self.files[name]:
            file = self.rng.choice(sorted(self.files[name]))
            (self.labs[name].data / file).unlink()
            del self.files[name][file]

    def optimize(self, name: str) -> None:
        self.labs[name].optimize()

    def unoptimize(self, name: str) -> None:
        self.labs[name].unoptimize()

    def collect(self, name: str) -> None:
        report = self.labs[name].collect(all_garbage=True)
        assert report.messages == []

    def compact(self, name: str) -> None:
        assert self.labs[name].compact().messages == []

    def move(self, name: str) -> None:
        is_leaving = name in self.on_store
        move(self.labs[name], None if is_leaving else self.shared)
        (self.on_store.discard if is_leaving else self.on_store.add)(name)

    def rename(self, name: str) -> None:
        """The volume is somewhere else; nothing is collected before it has rejoined."""
        lab = self.labs[name]
        root = lab.root.with_name(f"{name}{self.rng.randrange(1000)}")
        if root.exists():
            return
        lab.root.rename(root)
        self.labs[name] = Lab(root)
        if name in self.on_store:
            self.refuse_all()
            assert rejoin(self.labs[name]).losses == []

    def hide(self, name: str) -> None:
        """The volume is out of sight for a while."""
        root = self.labs[name].root
        root.rename(root.with_name("hidden"))
        if name in self.on_store:
            for other in self.on_store - {name}:
                with pytest.raises(UnseenMember):
                    self.labs[other].collect()
        root.with_name("hidden").rename(root)

    def leave(self, name: str) -> None:
        """The volume is a plain directory for a moment."""
        lab = self.labs[name]
        lab.unoptimize()
        disable(str(lab.root), disk=Disk())
        for file, content in self.files[name].items():
            assert (lab.root / file).read_bytes() == content
        with self.shared.opened() as shared:
            new_lab(lab.root, shared=shared)
        self.on_store.add(name)

    def refuse_all(self) -> None:
        for name in self.on_store:
            with pytest.raises(UnseenMember):
                self.labs[name].collect()

    def check(self) -> None:
        for name, files in self.files.items():
            lab = self.labs[name]
            assert {file: lab.read(file) for file in files} == files, self.done
            assert {path.name for path in lab.data.iterdir()} == files.keys()
        assert self.shared.known() == {self.labs[name].root.name for name in self.on_store}

    def end(self) -> None:
        for lab in self.labs.values():
            lab.verify_clean()


def live_through(directory: Path, seed: int, steps: int) -> None:
    history = History(directory, seed)
    for _ in range(steps):
        history.step()
        history.check()
    history.end()


@pytest.mark.parametrize("seed", range(2))
def test_volumes_keep_what_users_have(tmp_path: Path, seed: int) -> None:
    live_through(tmp_path, seed, 25)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(100, 130))
def test_volumes_keep_what_users_have_for_long(tmp_path: Path, seed: int) -> None:
    live_through(tmp_path, seed, 120)
