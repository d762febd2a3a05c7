"""Killed at any step, a volume loses nothing, and the next run leaves nothing half done."""

import importlib
import os
import pkgutil
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import dedupd_core
import jobs
from dedupd_core import failpoint
from dedupd_core.config.policy import RefineMode
from dedupd_core.errors import NotAVolume
from dedupd_core.format.stub import decode_stub
from dedupd_core.system.disk import Disk
from dedupd_core.volume.volume import Volume
from jobs.tree.walk import walk
from tests.support import crash
from tests.support.upkeep import damage_with_second_sources, scrub

pytestmark = pytest.mark.root


ELSEWHERE = {"cut", "compact.released", "compact.table-removed", "stub.trimmed", "adopt", "receive"}
ELSEWHERE |= {"deleted", "shared", "move", "rados", "parts"}
"""Passed only where there is no space, where a file has blocks behind its end, in copies of a
volume, which cannot be read before they are adopted, while a stream is received, where volumes
share a store (``tests/shared`` and ``tests/crash/shared_scenarios.py``) or one in a cluster
(``tests/rados/test_crashes.py``), or where users delete, or write while the quiet parts of their
files are taken:
``tests/store/test_unkept_records.py``, ``tests/jobs/compact/test_compact.py``,
``tests/jobs/optimize/test_shared_extents.py``, ``tests/hostile/test_copies.py``,
``tests/jobs/backup/test_send.py``, ``tests/fuse_stub/test_busy_files.py`` and
``tests/crash/test_mount.py`` stop there."""


def _all_fail_points() -> list[str]:
    for package in (dedupd_core, jobs):
        for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
            if not module.name.startswith("dedupd_core.native"):
                importlib.import_module(module.name)
    return sorted(
        point for point in failpoint.POINTS if not {point, point.partition(".")[0]} & ELSEWHERE
    )


SCENARIO = {
    "enable": "enable",
    "seeds": "enable",
    "writer": "optimize",
    "commit": "optimize",
    "optimize.notes-saved": "optimize what saves",
    "stub.attribute-set": "optimize",
    "stub.punched": "optimize",
    "stub.times-set": "optimize",
    "stub.restoring": "unoptimize",
    "stub.piece-filled": "unoptimize",
    "stub.filled": "unoptimize",
    "stub.plain": "unoptimize",
    "recovery": "optimize again",
    "recovery.switched": "compact again",
    "states": "gc",
    "gc": "gc",
    "punch": "gc",
    "compact": "compact",
    "disable": "disable",
    "mend": "scrub",
    "mend.header-written": "scrub a lost header",
    "scrub": "scrub",
    "repair": "scrub",
    "redundancy": "scrub",
    "reconcile": "reconcile",
    "refine": "refine",
}
"""Fail point, or the first part of its name → the command that passes it."""

COMMANDS: dict[str, tuple[str, ...]] = {
    "enable": ("enable", "--min-age", "0s", "--no-mount"),
    "optimize": ("run", "optimize"),
    "optimize again": ("run", "optimize"),
    "optimize what saves": ("run", "optimize"),
    "optimize partitions": ("run", "optimize"),
    "unoptimize": ("run", "unoptimize"),
    "gc": ("run", "gc"),
    "compact": ("run", "compact"),
    "compact again": ("run", "compact"),
    "disable": ("disable", "--unoptimize"),
    "scrub": ("run", "scrub", "--full"),
    "scrub a lost header": ("run", "scrub"),
    "reconcile": ("run", "reconcile"),
    "refine": ("run", "refine", "--mode", "full"),
}


TOP = (0o41770, 1000, 2000, crash.MTIME_NS)
"""Mode, owner, group and time of the directories that become volumes here."""


def set_top(root: Path) -> None:
    os.chown(root, TOP[1], TOP[2])
    os.chmod(root, TOP[0] & 0o7777)
    os.utime(root, ns=(TOP[3], TOP[3]))


def scenario(point: str) -> str:
    return SCENARIO.get(point) or SCENARIO[point.partition(".")[0]]


@pytest.fixture(scope="module")
def fast(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory on an ext4 whose device is memory, so that syncing costs little."""
    with (
        crash.tmpfs(tmp_path_factory.mktemp("crash")) as memory,
        crash.ext4(memory, size_mb=400) as point,
    ):
        yield point


@pytest.fixture
def root(fast: Path) -> Iterator[Path]:
    """A directory with a mixed tree, to become a volume; gone afterwards."""
    path = fast / "root"
    path.mkdir()
    crash.make_tree(path)
    set_top(path)
    yield path
    crash.remove(path)


def plant(root: Path, command: str) -> None:
    """Put into a plain tree what ``command`` alone has a use for."""
    if command == "refine":
        crash.put_texts(root, 60, 6000)
        set_top(root)


def prepare(root: Path, command: str) -> None:
    """Bring a plain tree to where ``command`` has all its work to do."""
    if command == "enable":
        return
    crash.enable_volume(root)
    if command == "optimize again":
        killed = crash.run_cli("run", "optimize", root, fail_at="writer.appended")
        assert crash.was_killed(killed), killed.stderr
    elif command == "optimize what saves":
        crash.ask_for_savings(root)  # of which some file of odd length has none
    elif command == "optimize partitions":
        crash.ask_for_partitions(root)
    elif command in ("gc", "compact", "compact again"):
        crash.optimize_with_garbage(root)
        os.utime(root / ".dedupd/data", ns=(TOP[3], TOP[3]))
        if command != "gc":
            crash.orphan_garbage(root)
        if command == "compact again":
            killed = crash.run_cli("run", "compact", root, fail_at="compact.data-switched")
            assert crash.was_killed(killed), killed.stderr
    elif command in ("unoptimize", "disable"):
        crash.optimize_volume(root)
    elif command == "reconcile":
        crash.optimize_in_partitions(root)
    elif command == "refine":
        with open(root / ".dedupd/policy.toml", "a") as policy:
            policy.write('refine_age = "0s"\n')
        crash.optimize_volume(root)
    elif command.startswith("scrub"):
        crash.optimize_volume(root)
        damage_with_second_sources(root, header=command == "scrub a lost header")


def finish(root: Path, command: str, disk: Disk | None = None) -> None:
    """Run a command to its end, in this process."""
    if command == "enable":
        if not (root / ".dedupd/volume.json").exists() or crash.half_done(root):
            crash.enable_volume(root, disk)
    elif command == "disable":
        base = root / ".dedupd"
        if (base / "volume.json").exists() and not (base / "disabling").exists():
            crash.unoptimize_volume(root, disk)
        if base.exists():
            crash.disable_volume(root, disk)
    elif command == "unoptimize":
        crash.unoptimize_volume(root, disk)
    elif command == "gc":
        crash.collect_garbage(root, disk)
    elif command in ("compact", "compact again"):
        # What a kill has made live again is garbage once more.
        crash.collect_garbage(root, disk)
        crash.compact_volume(root, disk)
    elif command.startswith("scrub"):
        scrub(root, disk=disk)
    elif command == "reconcile":
        crash.reconcile_volume(root, disk)
    elif command == "refine":
        crash.refine_volume(root, disk, RefineMode.FULL)
    else:
        crash.optimize_volume(root, disk)


def check_whole(root: Path, command: str, before: dict[str, crash.Seen]) -> None:
    """The command is over: everything is as users left it, and nothing is half done."""
    assert crash.see(root) == before
    assert crash.see_top(root)[:3] == TOP[:3]
    if command == "disable":
        assert os.listdir(root).count(".dedupd") == 0
        return
    assert crash.half_done(root) == []
    report = crash.verify_volume(root)
    assert report.findings == []
    assert report.unsettled == report.unsynced_bytes == 0
    with Volume.open(str(root)) as volume:
        stubs = sum(found.is_stub for found in walk(volume))
    assert (stubs > 0) == (command != "enable" and command != "unoptimize")
    if command.startswith("compact"):
        assert crash.stored_bytes(root) < crash.TREE_STORED_BYTES_MAX
    if command == "reconcile":
        # Nothing is left to be compared, and nothing is there twice, which verify would have found.
        report_again = crash.reconcile_volume(root)
        assert report_again.compared_records == report_again.merged.chunks == 0


def test_every_fail_point_has_a_command_that_passes_it() -> None:
    missing = [
        p for p in _all_fail_points() if p not in SCENARIO and p.split(".")[0] not in SCENARIO
    ]
    assert missing == []


def _some_by_default(points: list[str]) -> list[object]:
    """Every third one; the slow tests have the others. Power cuts are simulated at them all."""
    return [
        pytest.param(point, marks=[pytest.mark.slow] if number % 3 else [])
        for number, point in enumerate(points)
    ]


@pytest.mark.parametrize("point", _some_by_default(_all_fail_points()))
def test_killed_at_a_fail_point_loses_nothing(root: Path, point: str) -> None:
    command = scenario(point)
    plant(root, command)
    before = crash.see_plain(root)
    prepare(root, command)

    killed = crash.run_cli(*COMMANDS[command], root, fail_at=point)
    assert crash.was_killed(killed), f"{point} was not reached: {killed.stderr}"
    assert crash.see(root) == before
    if (root / ".dedupd/volume.json").exists():
        report = crash.verify_volume(root)
        assert report.files_hit == 0
        assert report.findings == [] or command.startswith("scrub")

    # And once more, on the way back.
    random_step = random.Random(point).randrange(6)
    crash.kill_at_step(lambda disk: finish(root, command, disk), random_step)
    assert crash.see(root) == before

    finish(root, command)
    check_whole(root, command, before)
    assert crash.see_top(root) == TOP


STEP_STRIDE = {"gc": 7, "compact again": 1}
"""Of all steps of a command, the default run takes every so-manieth, or every thirteenth; the slow
one takes all."""


STEPPED = [command for command in COMMANDS if command != "scrub a lost header"]
"""A lost header is written in one step, which its fail point is behind."""


STEPS_MAX = 2000
"""More than any command takes here."""


@pytest.fixture
def start(root: Path) -> Path:
    """The same as ``root``, to be copied to a place beside it."""
    return root


def _killed_at_steps(start: Path, command: str, first: int, stride: int) -> int:
    """Kill ``command`` before every so-manieth durable effect, each time from the same start."""
    root = start.with_name("copy")
    plant(start, command)
    before = crash.see_plain(start)
    prepare(start, command)
    kills = times_lost = 0
    for step in range(first, STEPS_MAX, stride):
        crash.remove(root)
        crash.copy_volume(start, root)
        went_on = crash.kill_at_step(lambda disk: finish(root, command, disk), step)
        assert crash.see(root) == before, f"killed before step {step}"
        twice = False
        if went_on:
            kills += 1
            again = random.Random(step).randrange(20)
            twice = crash.kill_at_step(lambda disk: finish(root, command, disk), again)
            assert crash.see(root) == before, f"killed before step {step}, then {again}"
            finish(root, command)
        check_whole(root, command, before)
        times_lost += not twice and crash.see_top(root) != TOP
        if not went_on:
            break
    crash.remove(root)
    # The making and the removal of .dedupd change the directory's time, and the next step sets it.
    assert times_lost <= 1
    return kills


@pytest.mark.parametrize("command", STEPPED)
def test_killed_between_durable_effects_loses_nothing(start: Path, command: str) -> None:
    stride = STEP_STRIDE.get(command, 13)
    assert _killed_at_steps(start, command, stride // 2, stride) >= 2


@pytest.mark.slow
@pytest.mark.parametrize("command", STEPPED)
def test_killed_between_any_two_durable_effects_loses_nothing(start: Path, command: str) -> None:
    kills = _killed_at_steps(start, command, 0, 1)
    print(f"\n{command}: killed before each of its {kills} durable effects")
    assert kills >= 10


def _phase(root: Path) -> str:
    """What a volume was in the middle of, as far as its files tell."""
    chunks = root / ".dedupd/store/chunks"
    with Volume.open(str(root)) as volume:
        values = [found.attribute for found in walk(volume)]
        stubs = [decode_stub(v, volume.space.volume_id, "") for v in values if v is not None]
    stored = sum(path.stat().st_size for path in chunks.glob("*.dat"))
    moving = sum(bool(stub.flags.transient) for stub in stubs)
    return ", ".join(
        (
            "nothing stored" if stored == 0 else "stored",
            "no stub" if not stubs else "some stubs" if len(stubs) < len(values) // 2 else "stubs",
            "none in transition" if not moving else "one" if moving == 1 else "several",
        )
    )


PHASES_MIN = 3
"""Else the moments were none that say anything: on a machine whose speed changes, few may be."""


def _random_kills(
    root: Path, kills_wanted: int, copies: int, seed: int, run: Callable[[str], int]
) -> None:
    """Optimize, unoptimize and so on, each killed over and over until it gets through."""
    rng = random.Random(seed)
    for copy in range(copies):
        (root / f"more{copy}").mkdir()
        crash.make_tree(root / f"more{copy}", seed=copy)
    set_top(root)
    before = crash.see_plain(root)
    crash.enable_volume(root)
    phases: Counter[str] = Counter()
    kills = 0
    commands = ("optimize", "unoptimize")
    took_s = {command: _time_whole_run(run, command) for command in commands}
    while kills < kills_wanted or (len(phases) < PHASES_MIN and kills < 5 * kills_wanted):
        for command in commands:
            for attempt in range(8):
                if not _kill_after(run(command), rng.uniform(0, took_s[command])):
                    if attempt == 0:
                        took_s[command] *= 0.8  # measured while others had the machine
                    break
                kills += 1
                phases[f"{command}: {_phase(root)}"] += 1
                assert crash.see(root) == before
            else:
                took_s[command] *= 1.25
            finish(root, command)
            check_whole(root, command, before)
    crash.disable_volume(root)
    assert crash.see_plain(root) == before
    assert crash.see_top(root) == TOP
    print(f"\n{kills} random kills:")
    for phase, count in sorted(phases.items()):
        print(f"  {count:4} {phase}")
    assert len(phases) >= PHASES_MIN


def _time_whole_run(run: Callable[[str], int], command: str) -> float:
    began = time.monotonic()
    _, status = os.waitpid(run(command), 0)
    assert status == 0
    return time.monotonic() - began


def _kill_after(child: int, delay_s: float) -> bool:
    """Kill a child after a while; False where it had ended by itself (and well)."""
    deadline = time.monotonic() + delay_s
    while time.monotonic() < deadline:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            assert status == 0
            return False
        time.sleep(0.001)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)


def _forked(root: Path) -> Callable[[str], int]:
    def run(command: str) -> int:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                finish(root, command)
                status = 0
            finally:
                os._exit(status)
        return child

    return run


def test_killed_at_random_moments_loses_nothing(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It commits all along, not at the end.
    monkeypatch.setattr("jobs.optimize.rounds.GROUP_FILES_MAX", 8)
    _random_kills(root, 10, copies=8, seed=1, run=_forked(root))


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_killed_at_200_random_moments_loses_nothing(root: Path) -> None:
    def start(command: str) -> int:
        return crash.start_cli(*COMMANDS[command], root)

    _random_kills(root, 200, copies=16, seed=2, run=start)


def test_disable_stops_where_a_stub_is_left(root: Path) -> None:
    crash.enable_volume(root)
    crash.optimize_volume(root)
    refused = crash.run_cli("disable", root)
    assert refused.returncode == 2
    assert "--unoptimize" in refused.stderr


def test_an_interrupted_enable_is_no_volume_yet(root: Path) -> None:
    crash.run_cli(*COMMANDS["enable"], root, fail_at="enable.moved:3")
    with pytest.raises(NotAVolume, match="interrupted"):
        Volume.open(str(root))
