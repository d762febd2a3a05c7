"""Arrivals, retirements and collections of the same chunks, one operation at a time in any order.

Each actor is a thread with a connection of its own; before each operation on the store it waits for
its turn. A seed says whose turn it is, so what fails once fails again. After every operation the
model is compared: each live version has all its chunks, referenced and whole.
"""

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from dedupd_core.format.cluster.objects import (
    ChunkEntry,
    FileId,
    FileRecipe,
    chunk_object,
    garbage_shard,
    tag_key,
)
from dedupd_core.rados.garbage import Collection, Retirement
from dedupd_core.rados.recipes import Recipes
from dedupd_core.rados.store import RadosStore
from tests.support.rados_hosts import Site, fingerprint, new_chunk

CHUNKS = [f"chunk {n}".encode() * 30 for n in range(3)]
SHARDS = sorted({garbage_shard(fingerprint(raw)) for raw in CHUNKS})
STEPS_MAX = 2000
_TURN_S = 30.0


class Turns:
    """Lets one actor at a time make one operation."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self._changed = threading.Condition()
        self._waiting: set[str] = set()
        self._running: set[str] = set()
        self._turn: str | None = None

    def begin(self, actor: str) -> None:
        self._running.add(actor)

    def end(self, actor: str) -> None:
        with self._changed:
            self._running.discard(actor)
            self._changed.notify_all()

    def wait(self, actor: str) -> None:
        with self._changed:
            self._waiting.add(actor)
            self._changed.notify_all()
            assert self._changed.wait_for(lambda: self._turn == actor, _TURN_S)
            self._turn = None
            self._waiting.discard(actor)

    def next(self) -> bool:
        """Give one actor its turn, once all of them wait; False where all have ended."""
        with self._changed:
            everybody = lambda: self._turn is None and self._waiting == self._running  # noqa: E731
            assert self._changed.wait_for(everybody, _TURN_S)
            if not self._running:
                return False
            self._turn = self.random.choice(sorted(self._waiting))
            self._changed.notify_all()
            assert self._changed.wait_for(everybody, _TURN_S)
            return True


@dataclass
class Model:
    """What must be readable: version → the chunks that it has."""

    live: dict[str, list[bytes]] = field(default_factory=dict)


class Actors:
    """Writers and collectors, each in a thread."""

    def __init__(self, site: Site, seed: int) -> None:
        self.site, self.turns, self.model = site, Turns(seed), Model()
        self.random = random.Random(seed + 1)
        self.errors: list[BaseException] = []
        self._threads: list[threading.Thread] = []

    def add(self, name: str, act: Callable[[str, RadosStore, random.Random], None]) -> None:
        chance = random.Random(self.random.random())

        def run() -> None:
            try:
                with RadosStore.open(self.site.address, operations_at_once=1) as store:
                    store.cluster.gate = lambda operation: self.turns.wait(name)
                    act(name, store, chance)
            except BaseException as error:
                self.errors.append(error)
            finally:
                self.turns.end(name)

        self.turns.begin(name)
        self._threads.append(threading.Thread(target=run, name=name))

    def run(self) -> None:
        for thread in self._threads:
            thread.start()
        steps = 0
        while self.turns.next():
            steps += 1
            assert steps < STEPS_MAX
            self.check()
        for thread in self._threads:
            thread.join()
        assert self.errors == []

    def check(self) -> None:
        cluster = self.site.cluster
        for version, chunks in list(self.model.live.items()):
            for raw in chunks:
                tag = tag_key(version)
                oid = chunk_object(fingerprint(raw))
                assert cluster.value(oid, tag) is not None, f"{oid} has lost {version}"
                assert self.site.store.chunks.read(fingerprint(raw)) == raw

    # --- what actors do -----------------------------------------------------------------------

    def write(self, name: str, store: RadosStore, chance: random.Random) -> None:
        """Store versions and retire some of them."""
        retirement = Retirement(store.recipes, store.chunks)
        mine: list[str] = []
        for number in range(3):
            version = f"{name}{number}".encode().hex().rjust(32, "0")
            chunks = chance.sample(CHUNKS, chance.randint(1, len(CHUNKS)))
            Recipes(store.cluster).write(recipe_of(version, chunks))
            for raw in chunks:
                chunk = new_chunk(raw, is_expected=chance.random() < 0.5)
                store.chunks.put(chunk, [version])
            self.model.live[version] = chunks
            mine.append(version)
            if chance.random() < 0.7:
                gone = mine.pop(chance.randrange(len(mine)))
                del self.model.live[gone]
                assert retirement.retire([gone]) == []

    def collect(self, name: str, store: RadosStore, chance: random.Random) -> None:
        """Collect candidates of any age, again and again."""
        for _ in range(4):
            Collection(store.chunks, 0.0).run(SHARDS)


def recipe_of(version: str, chunks: list[bytes]) -> FileRecipe:
    entries = [ChunkEntry(n * 1000, len(raw), fingerprint(raw)) for n, raw in enumerate(chunks)]
    return FileRecipe(version, "0" * 32, FileId(1, 1), 10_000, entries)


def race(site: Site, seed: int) -> None:
    actors = Actors(site, seed)
    for writer in "abc":
        actors.add(writer, actors.write)
    for collector in "xy":
        actors.add(collector, actors.collect)
    actors.run()
    # All that is left goes, and leaves nothing.
    retirement = Retirement(site.store.recipes, site.store.chunks)
    assert retirement.retire(list(actors.model.live)) == []
    site.collect()
    left = [name for name in site.cluster.names() if name[:2] in ("c.", "m.")]
    assert left == [], f"seed {seed}"
    assert not any(site.cluster.page(f"z.{shard:02x}").items for shard in SHARDS)  # type: ignore[union-attr]


def test_no_order_of_operations_loses_or_leaks_a_chunk(site: Site) -> None:
    for seed in range(6):
        race(site, seed)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 1000, 100))
def test_no_order_of_many_loses_or_leaks_a_chunk(site: Site, first: int) -> None:
    for seed in range(first, first + 100):
        race(site, 1000 + seed)
