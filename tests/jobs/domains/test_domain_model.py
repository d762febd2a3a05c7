"""Whatever users and jobs do, no record is reached from the files of two domains."""

import os
import shutil
from collections.abc import Hashable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dedupd_core.errors import Damaged
from dedupd_core.format.container import Kind
from dedupd_core.units import KIB
from tests.support.domains import expect_apart, refine
from tests.support.lab import Lab, new_lab, noise, prose
from tests.support.upkeep import chunks_of, damage_record, reconcile, scrub

POLICY = (
    'min_age = "0s"\nmin_size = "1"\ncompaction_min_dead = 0\nrefine_age = "0s"\n'
    'refine = "full"\npartitions = 3\nredundancy_threshold = 2\n'
)
TOPS, USERS, TYPES = ("x", "y", ""), (1001, 1002, 1003), ("t", "u")
TEXT = prose(200 * KIB, 3)
CONTENTS = (
    noise(10 * KIB, 1),
    noise(300 * KIB, 2),
    TEXT,
    TEXT[:3000] + b"an edit" + TEXT[3000:],
    bytes(100 * KIB) + noise(30 * KIB, 1),
)

tops, users, types = st.sampled_from(TOPS), st.sampled_from(USERS), st.sampled_from(TYPES)
files = st.integers(0, 30)
operations = st.one_of(
    st.tuples(st.just("put"), tops, types, users, st.sampled_from(range(len(CONTENTS)))),
    st.tuples(st.sampled_from(("chown",)), files, users),
    st.tuples(st.sampled_from(("rename",)), files, tops),
    st.tuples(st.sampled_from(("write", "delete", "damage")), files),
    st.tuples(
        st.sampled_from(
            ("optimize", "optimize", "reconcile", "refine", "gc", "compact", "scrub", "forget")
        )
    ),
)


class Model:
    """A volume, and the domain in which each of its stubs was stored last."""

    def __init__(self, lab: Lab, kind: str, partition_entries: int) -> None:
        self.lab, self.kind = lab, kind
        self.partition_entries = partition_entries
        self.contents: dict[str, bytes] = {}
        self.stored: dict[str, Hashable] = {}
        self.count = 0
        lab.set_policy(POLICY + f'dedup_domain = "{kind}"\n')

    def domain_now(self, name: str) -> Hashable:
        top, slash, _ = name.partition("/")
        if self.kind == "folder":
            return top if slash else ""
        return os.stat(self.lab.data / name).st_uid

    def named(self, at: int) -> str | None:
        names = sorted(self.contents)
        return names[at % len(names)] if names else None

    def do(self, what: str, *arguments: Any) -> None:
        if what == "put":
            top, suffix, uid, content = arguments
            self.count += 1
            name = f"{top}{'/' if top else ''}{self.count}.{suffix}"
            os.chown(self.lab.put(name, CONTENTS[content]), uid, -1)
            self.contents[name] = CONTENTS[content]
        elif arguments:
            name_or_none = self.named(arguments[0])
            if name_or_none is not None:
                getattr(self, what)(name_or_none, *arguments[1:])
        else:
            getattr(self, what)()

    def chown(self, name: str, uid: int) -> None:
        os.chown(self.lab.data / name, uid, -1)

    def rename(self, name: str, top: str) -> None:
        self.count += 1
        new = f"{top}{'/' if top else ''}{self.count}.{name[-1]}"
        (self.lab.data / new).parent.mkdir(exist_ok=True)
        os.rename(self.lab.data / name, self.lab.data / new)
        self.contents[new] = self.contents.pop(name)
        if name in self.stored:
            self.stored[new] = self.stored.pop(name)

    def write(self, name: str) -> None:
        content = self.contents[name]
        block = noise(4 * KIB, self.count)
        with open(self.lab.let_write(name), "r+b") as file:
            file.write(block)
        self.contents[name] = block + content[4 * KIB :]

    def delete(self, name: str) -> None:
        (self.lab.data / name).unlink()
        del self.contents[name]
        self.stored.pop(name, None)

    def damage(self, name: str) -> None:
        """Scrub and files that are stored again repair it, or the content is lost."""
        if name in self.stored and (chunks := [c for c, *_ in chunks_of(self.lab, name) if c]):
            damage_record(self.lab, Kind.CHUNKS, chunks[0])
            scrub(self.lab.root)
            lost = [one for one in self.contents if not self.is_whole(one)]
            for one in lost:
                self.delete(one)

    def is_whole(self, name: str) -> bool:
        try:
            return self.lab.read(name) == self.contents[name]
        except Damaged:
            return False

    def optimize(self) -> None:
        wanted = {
            name: self.domain_now(name)
            for name in self.contents
            if name not in self.stored or os.stat(self.lab.data / name).st_blocks
        }
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("jobs.optimize.partitioning.capacity", lambda *_: self.partition_entries)
            patch.setattr("dedupd_core.index.hooks.ENTRIES_MIN", 1)
            self.lab.optimize()
        for name, domain in wanted.items():
            if self.lab.stub(name) is not None:
                self.stored[name] = domain

    def reconcile(self) -> None:
        reconcile(self.lab)

    def refine(self) -> None:
        refine(self.lab)

    def gc(self) -> None:
        self.lab.collect()

    def compact(self) -> None:
        self.lab.compact()

    def scrub(self) -> None:
        scrub(self.lab.root)

    def forget(self) -> None:
        """Lose what is derived."""
        shutil.rmtree(self.lab.base / "catalog", ignore_errors=True)
        for path in (*self.lab.base.glob("saved.*"), *self.lab.base.glob("store/*/*.dir")):
            path.unlink()

    def check(self) -> None:
        expect_apart(self.lab, self.stored)
        assert all(self.lab.read(name) == content for name, content in self.contents.items())


def run(kind: str, entries: int, steps: list[tuple[Any, ...]]) -> None:
    with TemporaryDirectory(dir="/var/tmp") as directory:
        model = Model(new_lab(Path(directory) / "volume"), kind, entries)
        for step in steps:
            model.do(*step)
            if len(step) == 1:
                model.check()
        model.optimize()
        model.check()
        model.lab.verify_clean()


kinds, capacities = st.sampled_from(("owner", "folder")), st.sampled_from((3, 1000))


@settings(max_examples=6, deadline=None)
@given(kinds, capacities, st.lists(operations, min_size=4, max_size=14))
def test_no_record_is_reached_from_two_domains(
    kind: str, entries: int, steps: list[tuple[Any, ...]]
) -> None:
    run(kind, entries, steps)


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(kinds, capacities, st.lists(operations, min_size=10, max_size=60))
def test_no_record_is_reached_from_two_domains_for_long(
    kind: str, entries: int, steps: list[tuple[Any, ...]]
) -> None:
    run(kind, entries, steps)
