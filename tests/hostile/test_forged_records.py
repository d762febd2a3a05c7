"""A user writes a file whose bytes are a record: it is never taken for one, whatever is damaged."""

import itertools
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from dedupd_core import native
from dedupd_core.errors import Damaged
from dedupd_core.format import container as fmt
from dedupd_core.format import table as tbl
from dedupd_core.format.container import Kind
from dedupd_core.format.ids import ordinal_of
from tests.jobs.test_rebuild import rebuild
from tests.support import upkeep
from tests.support.lab import Lab, flip_bit, new_lab, noise
from tests.support.old_containers import make_old
from tests.support.upkeep import chunks_of, entry

VICTIM, EVIL = noise(3000, 1), noise(3000, 2)

pytestmark = pytest.mark.hostile


def forged(lab: Lab, ordinal: int, fingerprint: bytes, kind: fmt.RecordKind, target: int) -> bytes:
    """A record as a user can make it: with the only seed that he can know."""
    with lab.opened() as volume:
        seed = fmt.public_seed(volume.space.volume_id, 1, 1)
    payload = EVIL if kind == fmt.RecordKind.DATA else b""
    record = fmt.Record(
        ordinal=ordinal,
        kind=kind,
        codec=fmt.Codec.RAW,
        raw_length=len(EVIL),
        stored_length=len(payload),
        fingerprint=fingerprint,
        target=target,
        checksum=native.hashing.xxh3_64(payload),
    )
    buffer = bytearray(fmt.record_size(len(payload)))
    fmt.pack_record_into(memoryview(buffer), 0, record, seed)
    buffer[fmt.RECORD_HEADER_BYTES : fmt.RECORD_HEADER_BYTES + len(payload)] = payload
    return bytes(buffer)


def claims_victims_fingerprint(lab: Lab, ordinal: int) -> bytes:
    return forged(lab, ordinal, native.hashing.fingerprint(VICTIM), fmt.RecordKind.DATA, 0)


def states_its_own_fingerprint(lab: Lab, ordinal: int) -> bytes:
    """A recipe compares four bytes of a fingerprint only, and these can be found by trying."""
    return forged(lab, ordinal, native.hashing.fingerprint(EVIL), fmt.RecordKind.DATA, 0)


def leads_to_a_chunk_of_the_users(lab: Lab, ordinal: int) -> bytes:
    own = chunks_of(lab, "evil")[0][0]
    fingerprint = native.hashing.fingerprint(VICTIM)
    return forged(lab, ordinal, fingerprint, fmt.RecordKind.FORWARD, own)


Forge = Callable[[Lab, int], bytes]
FORGERIES: list[Forge] = [
    claims_victims_fingerprint,
    states_its_own_fingerprint,
    leads_to_a_chunk_of_the_users,
]


def volume_of(path: Path, forge: Forge, *, is_old: bool, comes_first: bool) -> Lab:
    """A volume with a victim's file, and a forged one before or after it in the container."""
    lab = new_lab(path, "8k")
    lab.put("evil", EVIL)
    lab.optimize()
    ordinals = (2, 1) if comes_first else (1, 2)
    for ordinal in sorted(ordinals):
        if ordinal == ordinals[0]:
            lab.put("victim", VICTIM)
        else:
            # Records begin at multiples of 8, and so do payloads.
            lab.put("forged", noise(8, 3) + forge(lab, ordinals[0]) + noise(24, 4))
        lab.optimize()
    assert ordinal_of(chunks_of(lab, "victim")[0][0]) == ordinals[0]
    if is_old:
        make_old(lab.container(Kind.CHUNKS))
    lab.verify_clean()
    return lab


def damage(lab: Lab, what: str) -> None:
    """Two faults: one of the forged chunk's record, one of what says where the victim's lies."""
    ours, theirs = (entry(lab, Kind.CHUNKS, chunks_of(lab, n)[0][0]) for n in ("forged", "victim"))
    ordinal = ordinal_of(chunks_of(lab, "victim")[0][0])
    of_record, of_table = what.split("+")
    at = ours.offset + (fmt.RECORD_HEADER_BYTES + 3 if of_record == "payload" else 9)
    flip_bit(lab.container(Kind.CHUNKS), at)
    if of_table == "entry":
        flip_bit(lab.table(Kind.CHUNKS), tbl.HEADER_BYTES + ordinal * tbl.ENTRY_BYTES + 6)
    elif of_table == "table":
        lab.table(Kind.CHUNKS).unlink()
    elif of_table == "victim":
        flip_bit(lab.container(Kind.CHUNKS), theirs.offset + fmt.RECORD_HEADER_BYTES + 11)
    else:
        flip_bit(lab.container(Kind.CHUNKS), 60)


JOBS: dict[str, Callable[[Lab], object]] = {
    "nothing": lambda lab: None,
    "scrub": lambda lab: upkeep.scrub(lab.root),
    "gc": lambda lab: lab.collect(full=True),
    "rebuild": rebuild,
    "optimize": lambda lab: (lab.put("new", noise(5000, 9)), lab.optimize()),
}


def reads_right_or_fails(lab: Lab, ordinal: int) -> None:
    """And no entry leads to a forged record, even where its four bytes would tell a reader."""
    table = lab.table(Kind.CHUNKS)
    if table.exists():
        data = table.read_bytes()
        said = tbl.decode_entry(
            data[tbl.HEADER_BYTES + ordinal * tbl.ENTRY_BYTES :],
            tbl.decode_header(data[: tbl.HEADER_BYTES], "").seed,
        )
        assert said is None or said.fingerprint in (native.hashing.fingerprint(VICTIM), bytes(32))
    try:
        assert lab.read("victim") == VICTIM
    except (Damaged, OSError):
        return


FAULTS = [
    f"{one}+{two}" for one in ("payload", "header") for two in ("entry", "table", "victim", "head")
]
VOLUMES = [(forge, is_old) for forge in FORGERIES for is_old in (False, True)]
"""In a container with a seed of its own, and in one of format 1, whose seed users can know."""


def never_reads_a_forged_record(root: Path, number: int, fault: str, job: str) -> None:
    """In one of the volumes."""
    forge, is_old = VOLUMES[number]
    lab = volume_of(root, forge, is_old=is_old, comes_first=number % 4 < 2)
    ordinal = ordinal_of(chunks_of(lab, "victim")[0][0])
    damage(lab, fault)
    try:
        JOBS[job](lab)
    except (Damaged, OSError):
        pass  # a job may refuse; it must not believe
    reads_right_or_fails(lab, ordinal)
    upkeep.scrub(lab.root)
    reads_right_or_fails(lab, ordinal)


@pytest.mark.parametrize("job", JOBS)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_forged_record_is_never_read(tmp_path: Path, fault: str, job: str) -> None:
    """Each fault in each volume, and each job in all of them."""
    first = FAULTS.index(fault) + 2 * [*JOBS].index(job)
    for number in (first % len(VOLUMES), (first + 1) % len(VOLUMES)):
        never_reads_a_forged_record(tmp_path / f"{number}", number, fault, job)


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_no_job_reads_a_forged_record_after_any_fault(tmp_path: Path, fault: str) -> None:
    for job, number in itertools.product(JOBS, range(len(VOLUMES))):
        never_reads_a_forged_record(tmp_path / f"{job}{number}", number, fault, job)


def test_seeds_differ_and_are_stated_twice(tmp_path: Path) -> None:
    lab = new_lab(tmp_path / "volume")
    lab.put("file", os.urandom(300_000))
    lab.optimize()
    seeds = {kind: lab.seed(kind) for kind in (Kind.CHUNKS, Kind.RECIPES)}
    assert len(set(seeds.values())) == 2
    with lab.opened() as volume:
        for kind, seed in seeds.items():
            assert seed != fmt.public_seed(volume.space.volume_id, 1, 1)
            head = lab.container(kind).read_bytes()[: fmt.FILE_HEADER_BYTES]
            assert fmt.seeds_in(head) == (seed, seed)
            assert tbl.decode_header(lab.table(kind).read_bytes()[:64], "").seed == seed
