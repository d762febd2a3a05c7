"""dedup_domain: files of different domains share no record (docs/design/partitions.md,
"Domains")."""

import os
import random
import shutil
import struct
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from dedupd.cli.policy import DOMAINS_STAY
from dedupd_core.config.policy import IndexChoice, Policy
from dedupd_core.errors import PolicyError, UsageError
from dedupd_core.format.container import Codec, Kind
from dedupd_core.format.domain import PartitionKey, of_lost, of_owner
from dedupd_core.format.ids import PackedPairs
from dedupd_core.format.store_kinds import CLUSTER
from dedupd_core.format.table import State
from dedupd_core.index.bloom_index import BloomIndex
from dedupd_core.index.hooks import HookedIndex
from dedupd_core.index.table_index import TableIndex
from dedupd_core.store.container.record_states import set_states
from dedupd_core.store.merge_log import MergeLogWriter
from dedupd_core.store.recipe.recipe_writer import RecipeProgress
from dedupd_core.stub.transition import FileIdentity
from dedupd_core.system.files import opened
from dedupd_core.units import KIB
from dedupd_core.volume.domains import require_domains
from dedupd_core.volume.unfinished_files import Checkpoint, Checkpoints
from jobs.backup.sender import Sender
from jobs.frame.run import JobRun
from jobs.importing import Import
from jobs.optimize.plan import slices
from jobs.optimize.store_session import StoreSession
from jobs.tree.candidate_cache import ROW_BYTES, CandidateCache
from tests.support.domains import Reach, expect_apart, refine
from tests.support.gc_oracle import entries
from tests.support.lab import Lab, lab_in, new_lab, noise, prose, run_cli
from tests.support.upkeep import chunks_of, damage_record, reconcile, scrub

TAKES_ALL = 'min_age = "0s"\nmin_size = "1"\ncompaction_min_dead = 0\nrefine_age = "0s"\n'
BY_OWNER = TAKES_ALL + 'dedup_domain = "owner"\n'
BY_FOLDER = TAKES_ALL + 'dedup_domain = "folder"\n'
SINGLE, LARGE = noise(20 * KIB, 1), noise(400 * KIB, 2)
USERS = {"a": 1001, "b": 1002}


def put(lab: Lab, name: str, content: bytes, uid: int | None = None) -> None:
    path = lab.put(name, content)
    os.chown(path, USERS[name[0]] if uid is None else uid, -1)


def put_equal(lab: Lab) -> dict[str, str]:
    """The same files of two users in two folders; the domain of each."""
    names = [f"{user}/{name}" for user in USERS for name in ("single", "large", "copy of large")]
    for name in names:
        put(lab, name, SINGLE if "single" in name else LARGE)
    return {name: name[0] for name in names}


def domain_of(lab: Lab, name: str) -> bytes:
    """The domain that the chunks of a file are in."""
    with lab.opened() as volume, volume.containers(Kind.CHUNKS) as directory:
        found = {directory.header(chunk >> 32).domain for chunk, *_ in chunks_of(lab, name)}
    (domain,) = found
    return domain


def texts(seed: int, count: int) -> Iterator[bytes]:
    """Contents of the same words in another order each."""
    chosen = random.Random(seed)
    words = ["".join(chosen.choices("abcdefghijklmnop", k=9)) for _ in range(300)]
    for _ in range(count):
        yield " ".join(chosen.choices(words, k=300)).encode()


def stored_bytes(lab: Lab) -> int:
    return sum(path.stat().st_size for path in (lab.base / "store/chunks").glob("*.dat"))


@pytest.mark.parametrize("policy", [BY_OWNER, BY_FOLDER])
def test_equal_files_share_within_a_domain_alone(tmp_path: Path, policy: str) -> None:
    with lab_in(tmp_path) as lab:
        lab.set_policy(policy)
        of = put_equal(lab)
        report = lab.optimize()
        assert (report.files_optimized, report.partitions) == (6, 2)
        found = expect_apart(lab, of)
        assert found["a/large"] == found["a/copy of large"], "one domain shares its recipes"
        assert 2 * len(SINGLE + LARGE) < stored_bytes(lab) < 2.1 * len(SINGLE + LARGE)
        assert lab.read("a/large") == lab.read("b/copy of large") == LARGE


def test_files_at_the_top_and_files_of_one_owner_in_several_folders(tmp_path: Path) -> None:
    with lab_in(tmp_path) as lab:
        lab.set_policy(BY_FOLDER)
        for name in ("top", "other at the top", "folder/inside", "folder/deep/er"):
            put(lab, name, LARGE, 0)
        lab.optimize()
        of = dict.fromkeys(("top", "other at the top"), "") | dict.fromkeys(
            ("folder/inside", "folder/deep/er"), "folder"
        )
        found = expect_apart(lab, of)
        assert found["top"] == found["other at the top"] != found["folder/inside"]
        lab.set_policy(BY_OWNER)
        for name in ("x/one", "y/two"):
            put(lab, name, LARGE, 1003)
        lab.optimize()
        found = expect_apart(lab, of | {"x/one": 1003, "y/two": 1003})
        assert found["x/one"] == found["y/two"]


def test_later_runs_find_what_their_domain_has_with_and_without_a_catalogue(tmp_path: Path) -> None:
    with lab_in(tmp_path) as lab:
        lab.set_policy(BY_OWNER)
        of = put_equal(lab)
        lab.optimize()
        for name in ("catalog", "saved.notes"):
            before = stored_bytes(lab)
            put(lab, f"b/after the {name}", LARGE)
            put(lab, f"a/after the {name}", SINGLE)
            lab.optimize()
            of |= {f"b/after the {name}": "b", f"a/after the {name}": "a"}
            found = expect_apart(lab, of)
            assert stored_bytes(lab) == before, "all of it was there, in the same containers"
            assert found["b/large"] == found[f"b/after the {name}"]
            shutil.rmtree(lab.base / "catalog", ignore_errors=True)
            for saved in lab.base.glob("saved*"):
                saved.unlink()


def test_a_full_partition_is_followed_by_another_one_of_its_domain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chunks of the first one are found by the hooks of the second."""
    monkeypatch.setattr("jobs.optimize.partitioning.capacity", lambda *_: 8)
    monkeypatch.setattr("dedupd_core.index.hooks.ENTRIES_MIN", 1)
    with lab_in(tmp_path) as lab:
        lab.set_policy(BY_OWNER)
        of = {}
        for number in range(3):
            for user in USERS:
                of[f"{user}/{number}"] = user
                put(lab, f"{user}/{number}", noise(900 * KIB, number))
            lab.optimize()
        with lab.opened() as volume, volume.containers(Kind.CHUNKS) as directory:
            keys = {directory.header(number).partition_key for number in directory.numbers()}
        assert {key.number for key in keys if key.domain == of_owner(1001)} == {0, 1, 2}
        for user in USERS:
            of[f"{user}/again"] = user
            put(lab, f"{user}/again", noise(900 * KIB, 0))
        before = stored_bytes(lab)
        report = lab.optimize()
        found = expect_apart(lab, of)
        assert stored_bytes(lab) == before and report.index.hits_of_others > 0
        put(lab, "b/of b alone", noise(300 * KIB, 50))
        lab.optimize()
        chunks = {one for one in found["a/again"] if one[0] is Kind.CHUNKS}
        assert chunks <= found["a/0"]
        key = PartitionKey(of_owner(1001), 2)
        with (
            lab.opened() as volume,
            volume.job_lock(),
            closing(StoreSession(volume, IndexChoice.TABLE, key, lambda: None)) as store,
        ):
            assert isinstance(store.index, HookedIndex)
            for name, is_known in (("a/0", True), ("b/of b alone", False)):
                for chunk, *_ in chunks_of(lab, name):
                    fingerprint = volume.chunk_records.describe(chunk).fingerprint
                    assert list(store.index.lookup(fingerprint)) == [chunk if is_known else 0]


def test_a_run_takes_the_files_in_slices_where_memory_is_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then a domain comes several times, and another walk finds the files again."""
    monkeypatch.setattr("jobs.tree.candidate_cache._PER_BLOCK", 1)
    monkeypatch.setattr("jobs.optimize.plan.CandidateCache", lambda _: CandidateCache(0))
    of_all = slices
    monkeypatch.setattr(
        "jobs.optimize.plan.slices", lambda rows, domains, _: of_all(rows, domains, ROW_BYTES * 3)
    )
    with lab_in(tmp_path) as lab:
        lab.set_policy(BY_OWNER)
        of = {}
        for number in range(20):
            for user in USERS:
                put(lab, f"{user}/{number}/file", noise(8 * KIB, number % 3))
                of[f"{user}/{number}/file"] = user
        report = lab.optimize()
        assert report.files_optimized == 40 and report.partitions > 10
        expect_apart(lab, of)


# --- what happens to files afterwards ----------------------------------------------------------


def test_a_file_of_another_owner_by_now_moves_when_it_is_stored_again(tmp_path: Path) -> None:
    """Also the chunks of it that nobody has written to: they are of the former domain."""
    with lab_in(tmp_path) as lab:
        lab.set_policy(BY_OWNER)
        put_equal(lab)
        lab.optimize()
        os.chown(lab.data / "a/large", USERS["b"], -1)
        lab.optimize()
        assert domain_of(lab, "a/large") == of_owner(1001), "nobody has written to it"
        path = lab.let_write("a/large")
        with open(path, "r+b") as file:
            file.write(bytes(4 * KIB))
        lab.optimize()
        assert domain_of(lab, "a/large") == of_owner(1002)
        assert lab.read("a/large") == bytes(4 * KIB) + LARGE[4 * KIB :]
        expect_apart(lab, {"a/large": "b", "a/copy of large": "a", "b/large": "b"})


def test_a_change_of_the_key_counts_for_what_comes(tmp_path: Path) -> None:
    with lab_in(tmp_path) as lab:
        lab.set_policy(TAKES_ALL)
        put_equal(lab)
        lab.optimize()
        assert len({domain_of(lab, name) for name in ("a/large", "b/large")}) == 1
        lab.set_policy(BY_OWNER)
        put(lab, "a/new", LARGE)
        put(lab, "b/new", LARGE)
        lab.optimize()
        expect_apart(lab, {"a/new": "a", "b/new": "b", "a/large": "before", "b/large": "before"})
        lab.unoptimize()
        lab.optimize()
        expect_apart(lab, {name: name[0] for name in ("a/new", "b/new", "a/large", "b/large")})


def test_a_file_that_was_interrupted_goes_on_in_its_domain_alone(tmp_path: Path) -> None:
    with lab_in(tmp_path) as lab:
        lab.set_policy(BY_OWNER)
        put(lab, "a/large", LARGE)
        lab.optimize()
        with lab.opened() as volume, volume.job_lock():
            identity = FileIdentity(7, 8, 9, 10)
            growth = RecipeProgress.from_json(RecipeProgress(0, (), ()).to_json())
            checkpoints = Checkpoints(volume)
            checkpoints.save(Checkpoint(identity, growth, of_owner(1001)))
            checkpoints.load()
            assert checkpoints.of(identity, of_owner(1001)) == growth
            assert checkpoints.of(identity, of_owner(1002)) is None
            assert checkpoints.of(identity) is None


# --- other jobs ----------------------------------------------------------------------------------


def test_reconciliation_merges_within_a_domain(tmp_path: Path) -> None:
    with lab_in(tmp_path) as lab:
        lab.set_policy(BY_OWNER)
        of = put_equal(lab)
        lab.optimize()
        report = reconcile(lab)
        assert report.merged.chunks == 0 and report.compared_records > 0
        expect_apart(lab, of)
        assert reconcile(lab).compared_records == 0, "all of it is in the sets"


def test_reconciliation_merges_what_one_domain_has_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with lab_in(tmp_path) as lab:
        lab.set_policy(BY_OWNER)
        with monkeypatch.context() as patch:
            patch.setattr("jobs.optimize.partitioning.capacity", lambda *_: 1)
            of = {}
            for user in USERS:
                for number in range(2):
                    of[f"{user}/{number}"] = user
                    put(lab, f"{user}/{number}", LARGE)
                    lab.optimize()
        assert reconcile(lab).merged.chunks == 2 * len(chunks_of(lab, "a/0"))
        expect_apart(lab, of)
        lab.collect()
        lab.compact()
        expect_apart(lab, of)
        assert all(lab.read(name) == LARGE for name in of)


def test_a_merge_log_that_names_chunks_of_two_domains_is_not_carried_out(tmp_path: Path) -> None:
    with lab_in(tmp_path) as lab:
        lab.set_policy(BY_OWNER)
        of = put_equal(lab)
        lab.optimize()
        ((one, *_),), ((other, *_),) = chunks_of(lab, "a/single"), chunks_of(lab, "b/single")
        with lab.opened() as volume:
            ids, room = volume.space.volume_id, volume.store_room()
            with opened(volume.store.open_merge_directory()) as fd:
                log = MergeLogWriter(fd, ids, volume.disk, room)
                log.add(PackedPairs(struct.pack("<QQ", one, other)))
                log.complete()
                log.close()
        report = reconcile(lab)
        assert report.resumed and report.merged.chunks == 0
        expect_apart(lab, of)


@pytest.mark.parametrize("choice", ["table", "bloom"])
def test_saved_indexes_are_of_a_domain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, choice: str
) -> None:
    for kind in (TableIndex, BloomIndex):
        defaults = kind.__init__.__kwdefaults__
        assert defaults is not None
        monkeypatch.setitem(defaults, "saved_entries_min", 1)
    with lab_in(tmp_path) as lab:
        lab.set_policy(BY_OWNER + f'index = "{choice}"\n')
        of = {}
        for turn in range(3):
            for user in USERS:
                of[f"{user}/{turn}"] = user
                put(lab, f"{user}/{turn}", LARGE + noise(90 * KIB, turn))
            lab.optimize()
            expect_apart(lab, of)
        saved = {path.name for path in (lab.base / "store/chunks").glob("saved*")}
        assert saved == {f"saved-{of_owner(uid).hex()}.{choice}" for uid in USERS.values()}


@pytest.mark.parametrize("mode", ["quick", "full"])
def test_refine_leans_on_chunks_of_the_domain_alone(tmp_path: Path, mode: str) -> None:
    with lab_in(tmp_path) as lab:
        lab.set_policy(BY_OWNER + f'refine = "{mode}"\n')
        text = prose(600 * KIB, 5)
        of = {}
        for user in USERS:
            for number, edit in enumerate((b"", b"one", b"another")):
                of[f"{user}/{number}"] = user
                put(lab, f"{user}/{number}", text[:4000] + edit + text[4000:])
        put(lab, "b/like one of a", noise(60 * KIB, 9) + b"!")
        put(lab, "a/like one of b", noise(60 * KIB, 9) + b"?")
        of |= {"b/like one of a": "b", "a/like one of b": "a"}
        lab.optimize()
        report = refine(lab)
        assert report.new_deltas > 0 and report.dictionaries == 0
        expect_apart(lab, of)
        codecs = {name: codecs_of(lab, name) for name in of}
        for name in ("b/like one of a", "a/like one of b"):
            assert Codec.DELTA not in codecs[name], "nothing in its own domain is like it"
        for user in USERS:
            assert any(Codec.DELTA in codecs[f"{user}/{number}"] for number in range(3))
        assert all(lab.read(f"{user}/0") == text for user in USERS)


def codecs_of(lab: Lab, name: str) -> set[int]:
    """How the chunks of a file are stored."""
    with lab.opened() as volume:
        known = entries(volume, Kind.CHUNKS)
    return {known[chunk].codec for chunk, *_ in chunks_of(lab, name)}


def test_nothing_leans_on_what_another_domain_had_refined_before(tmp_path: Path) -> None:
    with lab_in(tmp_path) as lab:
        lab.set_policy(BY_OWNER + 'refine = "quick"\n')
        alike = noise(60 * KIB, 8)
        put(lab, "a/early", alike)
        lab.optimize()
        refine(lab)
        lab.set_policy(TAKES_ALL + 'refine = "quick"\n')
        put(lab, "a/later, of the volume", alike + b"!")
        lab.optimize()
        refine(lab)
        assert Codec.DELTA not in codecs_of(lab, "a/later, of the volume")
        put(lab, "b/later still, of the volume", alike + b"?")
        lab.optimize()
        refine(lab)
        volume = ("a/later, of the volume", "b/later still, of the volume")
        assert any(Codec.DELTA in codecs_of(lab, name) for name in volume)
        expect_apart(lab, {"a/early": "a"} | dict.fromkeys(volume, "volume"))


@pytest.mark.parametrize("policy", [BY_OWNER, TAKES_ALL])
def test_dictionaries_are_of_the_volume_alone(tmp_path: Path, policy: str) -> None:
    with lab_in(tmp_path) as lab:
        lab.set_policy(policy + 'refine = "full"\n')
        for number, content in enumerate(texts(1, 80)):
            put(lab, f"a/{number}", content)
        lab.optimize()
        report = refine(lab)
        assert bool(report.new_dictionaries) == (policy == TAKES_ALL)
        used = any(Codec.DICTIONARY in codecs_of(lab, f"a/{number}") for number in range(80))
        assert used == (policy == TAKES_ALL)


@pytest.mark.parametrize("source", ["another record", "the user's file", "another user's file"])
def test_what_is_repaired_stays_in_its_domain(tmp_path: Path, source: str) -> None:
    with lab_in(tmp_path) as lab:
        lab.set_policy(BY_OWNER)
        put(lab, "a/file", SINGLE)
        if source == "another record":
            put(lab, "b/file", SINGLE)
        lab.optimize()
        ((chunk, *_),) = chunks_of(lab, "a/file")
        damage_record(lab, Kind.CHUNKS, chunk)
        if source == "the user's file":
            put(lab, "a/restored", SINGLE)
        elif source == "another user's file":
            put(lab, "b/restored", SINGLE)
        scrub(lab.root)
        assert lab.read("a/file") == SINGLE
        lab.optimize()
        of = {f"{user}/{name}": user for user in USERS for name in ("file", "restored")}
        expect_apart(lab, {name: one for name, one in of.items() if (lab.data / name).exists()})


def test_a_lost_record_returns_with_files_of_its_domain_alone(tmp_path: Path) -> None:
    with lab_in(tmp_path) as lab:
        lab.set_policy(BY_OWNER)
        put(lab, "a/file", SINGLE)
        lab.optimize()
        ((chunk, *_),) = chunks_of(lab, "a/file")
        damage_record(lab, Kind.CHUNKS, chunk)
        with lab.opened() as volume:
            volume.repairs.add(Kind.CHUNKS, chunk)
        put(lab, "b/file", SINGLE)
        lab.optimize()
        expect_apart(lab, {"b/file": "b"})
        with lab.opened() as volume:
            assert entries(volume, Kind.CHUNKS)[chunk].state == State.QUARANTINED
        put(lab, "a/again", SINGLE)
        lab.optimize()
        expect_apart(lab, {"a/file": "a", "a/again": "a", "b/file": "b"})
        assert lab.read("a/file") == SINGLE


@pytest.mark.parametrize("is_table_lost", [False, True])
def test_a_container_without_a_header_shares_with_nobody(
    tmp_path: Path, is_table_lost: bool
) -> None:
    with lab_in(tmp_path) as lab:
        lab.set_policy(BY_OWNER)
        put_equal(lab)
        lab.optimize()
        number = chunks_of(lab, "a/single")[0][0] >> 32
        with open(lab.container(Kind.CHUNKS, number), "r+b") as file:
            file.write(bytes(128))
        if is_table_lost:
            lab.table(Kind.CHUNKS, number).unlink()
        scrub(lab.root)
        with lab.opened() as volume, volume.containers(Kind.CHUNKS) as directory:
            assert directory.header(number).domain == of_lost(number)
        for user in USERS:
            put(lab, f"{user}/new", LARGE)
        lab.set_policy(TAKES_ALL)
        put(lab, "a/of the volume", LARGE)
        lab.optimize()
        assert lab.read("a/large") == LARGE
        with lab.opened() as volume:
            reach = Reach(volume)
            old = reach.of("a/large") & {
                (Kind.CHUNKS, chunk) for chunk, *_ in chunks_of(lab, "a/large")
            }
            for name in ("b/large", "a/new", "b/new", "a/of the volume"):
                assert not old & reach.of(name)


def test_files_that_save_little_are_recalled_for_their_domain_alone(tmp_path: Path) -> None:
    """Two of one domain share their chunks; the third, of another domain, stays plain."""
    with lab_in(tmp_path) as lab:
        lab.set_policy(BY_OWNER + "min_file_saving = 0.2\n")
        content = noise(600 * KIB, 4)
        put(lab, "a/one", content)
        put(lab, "b/one", content)
        report = lab.optimize()
        assert (report.files_optimized, report.files_recalled) == (0, 0)
        put(lab, "b/two", content)
        report = lab.optimize()
        assert [lab.stub(name) is not None for name in ("a/one", "b/one", "b/two")] == [
            *(False, True, True)
        ]


def test_verify_finds_a_record_that_leads_to_another_domain(tmp_path: Path) -> None:
    lab = new_lab(tmp_path / "volume")
    lab.set_policy(BY_OWNER)
    put_equal(lab)
    lab.optimize()
    ((one, *_),), ((other, *_),) = chunks_of(lab, "a/single"), chunks_of(lab, "b/single")
    lab.verify_clean()
    with lab.opened() as volume, volume.containers(Kind.CHUNKS) as directory:
        entry = directory.entry(one)
        assert entry is not None
        set_states(directory, {one: entry._replace(state=State.MERGED, target=other)})
    assert lab.broken() == {"domain-agrees"}


def test_import_stores_files_for_their_owners(tmp_path: Path) -> None:
    source = tmp_path / "source"
    for user, uid in USERS.items():
        (source / user).mkdir(parents=True)
        (source / user / "file").write_bytes(LARGE)
        os.chown(source / user / "file", uid, -1)
    with lab_in(tmp_path) as lab:
        lab.set_policy(BY_OWNER)
        with lab.opened() as volume, volume.job_lock():
            Import(volume, JobRun("import"), str(source), b"in").run()
        for user, uid in USERS.items():
            assert domain_of(lab, f"in/{user}/file") == of_owner(uid)


def test_what_knows_no_domains_refuses_them(tmp_path: Path) -> None:
    with lab_in(tmp_path) as lab:
        put(lab, "a/file", SINGLE)
        lab.set_policy(BY_OWNER)
        for _ in range(2):
            with (
                lab.opened() as volume,
                volume.job_lock(),
                open(os.devnull, "wb") as out,
                pytest.raises(UsageError, match="does not keep domains separate"),
            ):
                Sender(volume, JobRun("send"), out.fileno()).run()
            lab.optimize()
            lab.set_policy(TAKES_ALL)  # what is stored is still in a domain


@pytest.mark.parametrize("policy", [BY_OWNER, TAKES_ALL])
def test_a_volume_with_domains_is_not_moved_to_another_store(tmp_path: Path, policy: str) -> None:
    with lab_in(tmp_path) as lab:
        put(lab, "a/file", SINGLE)
        lab.set_policy(BY_OWNER)
        lab.optimize()
        lab.set_policy(policy)
        store = tmp_path / "store"
        made = run_cli("store", "create", store, "--chunk-size", "64k", "--force")
        assert made.returncode == 0, made.stderr
        moved = run_cli("store", "move", lab.root, "--store", store)
        assert moved.returncode == 2 and "does not keep domains separate" in moved.stderr
        expect_apart(lab, {"a/file": "a"})
        assert lab.read("a/file") == SINGLE


def test_the_command_says_what_a_change_of_the_key_does(tmp_path: Path) -> None:
    with lab_in(tmp_path) as lab:
        changed = run_cli("policy", lab.root, "dedup_domain", "owner")
        assert changed.returncode == 0 and DOMAINS_STAY in changed.stdout
        wrong = run_cli("policy", lab.root, "dedup_domain", "user")
        assert wrong.returncode == 2 and "dedup_domain = 'user'" in wrong.stderr


def test_a_store_in_a_cluster_refuses_domains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with lab_in(tmp_path) as lab:
        lab.set_policy(BY_OWNER)
        with lab.opened() as volume, monkeypatch.context() as patch:
            require_domains(volume, volume.policy())
            patch.setitem(volume.__dict__, "store_kind", CLUSTER)
            with pytest.raises(PolicyError, match="a store in a cluster supports no other domain"):
                require_domains(volume, volume.policy())
            require_domains(volume, Policy())
