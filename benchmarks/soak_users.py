"""The users of a soak: they write, sync, rename, delete and compare, and know what they wrote."""

import os
import random
import shutil
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

BLOCK_BYTES = 16 << 10
BLOCKS_MAX = 64
TAGS = 4000
"""Different blocks that there are: few enough for files to have them in common."""
FILES = 60

PAUSE_S = 0.03
"""Between two steps of a user: these users share the machine."""


@dataclass(frozen=True)
class Signals:
    """What users are told. ``at_work`` is clear while they have a break."""

    at_work: Event
    stop: Event
    compare: Event


def block(tag: int) -> bytes:
    """The block of a tag: its number, and bytes that follow from it."""
    return tag.to_bytes(8, "little") + random.Random(tag).randbytes(BLOCK_BYTES - 8)


@dataclass
class UserReport:
    """What a user has done and seen."""

    steps: int = 0
    errors: int = 0
    compared_bytes: int = 0
    wrong: list[str] = field(default_factory=list)


class User:
    """Knows of each of its files which blocks it may hold: one each, or two after an error."""

    def __init__(self, directory: Path, seed: int) -> None:
        self._directory = directory
        self._rng = random.Random(seed)
        self._files: dict[str, list[set[int]]] = {}
        self._unsure: dict[tuple[str, str], list[set[int]]] = {}
        """Files by the two names that one of them has after a rename that failed."""
        self._next = 0
        self.report = UserReport()

    def work(self, signals: Signals) -> None:
        while not signals.stop.is_set():
            if not signals.at_work.wait(0.2):
                continue
            self.report.steps += 1
            try:
                self._step()
            except OSError:
                self.report.errors += 1
                time.sleep(0.2)
            time.sleep(PAUSE_S)

    def _step(self) -> None:
        choice = self._rng.random()
        if len(self._files) < FILES or choice < 0.1:
            self._create()
        elif choice < 0.3:
            self._overwrite()
        elif choice < 0.4:
            self._delete()
        elif choice < 0.5:
            self._rename()
        else:
            self.compare(self._rng.choice(list(self._files)))

    def _new_name(self) -> str:
        self._next += 1
        return f"f{self._next}"

    def _create(self) -> None:
        """A whole file under a temporary name, synced, then renamed."""
        tags = [self._rng.randrange(TAGS) for _ in range(self._rng.randint(1, BLOCKS_MAX))]
        name = self._new_name()
        temporary = self._directory / f".{name}"
        with open(temporary, "wb") as file:
            file.write(b"".join(map(block, tags)))
            file.flush()
            os.fsync(file.fileno())
        os.rename(temporary, self._directory / name)
        self._files[name] = [{tag} for tag in tags]

    def _overwrite(self) -> None:
        name = self._rng.choice(list(self._files))
        blocks = self._files[name]
        number, tag = self._rng.randrange(len(blocks)), self._rng.randrange(TAGS)
        blocks[number] |= {tag}
        with open(self._directory / name, "r+b", buffering=0) as file:
            os.pwrite(file.fileno(), block(tag), number * BLOCK_BYTES)
            os.fsync(file.fileno())
        blocks[number] = {tag}

    def _delete(self) -> None:
        name = self._rng.choice(list(self._files))
        blocks = self._files.pop(name)
        try:
            os.unlink(self._directory / name)
        except OSError:
            # It may or may not be gone.
            with suppress(OSError):
                if (self._directory / name).exists():
                    self._files[name] = blocks
            raise

    def _rename(self) -> None:
        old, new = self._rng.choice(list(self._files)), self._new_name()
        blocks = self._files.pop(old)
        try:
            os.rename(self._directory / old, self._directory / new)
        except OSError:
            self._unsure[old, new] = blocks
            raise
        self._files[new] = blocks

    def compare(self, name: str) -> None:
        """Every block is one of those that were written there, and whole."""
        blocks = self._files[name]
        raw = (self._directory / name).read_bytes()
        if len(raw) != len(blocks) * BLOCK_BYTES:
            self._wrong(f"{name}: {len(raw)} bytes, not {len(blocks) * BLOCK_BYTES}")
            return
        for number, allowed in enumerate(blocks):
            part = raw[number * BLOCK_BYTES : (number + 1) * BLOCK_BYTES]
            tag = int.from_bytes(part[:8], "little")
            if tag not in allowed or part != block(tag):
                self._wrong(f"{name}: block {number} is not what was written")
        self.report.compared_bytes += len(raw)

    def compare_all(self) -> None:
        for name in list(self._files):
            self._compare_last(name, name)
        for (old, new), blocks in self._unsure.items():
            name = new if (self._directory / new).exists() else old
            self._files[name] = blocks
            self._compare_last(name, f"{name}, perhaps renamed")

    def _compare_last(self, name: str, shown: str) -> None:
        """By now everything can be read; what cannot is wrong."""
        try:
            self.compare(name)
        except OSError as error:
            self._wrong(f"{shown}: {error}")

    def _wrong(self, what: str) -> None:
        if len(self.report.wrong) < 20:
            self.report.wrong.append(f"{self._directory}: {what}")


def be_user(directory: Path, seed: int, leaves: bool, signals: Signals, results: Any) -> None:
    """The process of a user; with ``leaves`` it removes all its files at the end."""
    user = User(directory, seed)
    try:
        user.work(signals)
        signals.compare.wait()
        user.compare_all()
        if leaves:
            shutil.rmtree(directory)
    except BaseException as error:
        user.report.wrong.append(f"{directory}: the user itself failed: {error!r}")
    results.put(asdict(user.report))
