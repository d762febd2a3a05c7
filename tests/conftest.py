"""What every test may use: file systems of its own, hypothesis profiles, a guard against leaks."""

import gc
import os
import shutil
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import psutil
import pytest
from hypothesis import HealthCheck, settings

from dedupd_core.store.container import punching
from dedupd_core.system.file_system import file_system_of
from dedupd_core.system.files import opened
from dedupd_core.system.mount_table import all_mounts
from dedupd_core.units import parse_size
from dedupd_core.volume.enabling.probe import IN_MEMORY
from tests.hostile.scenarios import SCENARIOS, scenario_of
from tests.support.lab import let_others_pass
from tests.support.mount_logs import new_tracebacks
from tests.support.unmounting import unmount_soon

# A service of this machine has nothing to do with the volumes of the tests.
os.environ["DEDUPD_CONFIG"] = "/nonexistent/dedupd.toml"

# Programs for administrators (mkfs, losetup) are not on everybody's PATH.
os.environ["PATH"] += ":/usr/local/sbin:/usr/sbin:/sbin"

# Where /tmp is in memory, as on Debian 13, no volume can be there.
with opened(os.open(tempfile.gettempdir(), os.O_PATH)) as _fd:
    if file_system_of(_fd).kind in IN_MEMORY:
        os.environ["TMPDIR"] = tempfile.tempdir = "/var/tmp"

_SLOW_IS_FINE = [HealthCheck.too_slow, HealthCheck.data_too_large]
settings.register_profile(
    "default", deadline=None, max_examples=60, suppress_health_check=_SLOW_IS_FINE
)
settings.register_profile("ci", settings.get_profile("default"), derandomize=True, print_blob=True)
settings.register_profile("thorough", settings.get_profile("default"), max_examples=3000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if scenario_of(item.nodeid) is not None:
            item.add_marker(pytest.mark.hostile)
    if os.geteuid() == 0:
        return
    for item in items:
        if item.get_closest_marker("root"):
            item.add_marker(pytest.mark.skip(reason="needs root"))


def pytest_collection_finish() -> None:
    # Thousands of tests, and all that they import, stay: no collection need look at them again.
    gc.collect()
    gc.freeze()


def pytest_sessionfinish() -> None:
    gc.unfreeze()  # libraries report at the end what of theirs was not collected


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Where the hostile scenarios were asked for: how each of them went."""
    if config.getoption("-m") != "hostile":
        return
    rows: dict[str, Counter[str]] = {}
    for outcome in ("passed", "failed", "error", "skipped"):
        for report in terminalreporter.stats.get(outcome, ()):
            name = scenario_of(report.nodeid)
            if name is not None:
                rows.setdefault(name, Counter())[outcome] += 1
                rows[name]["seconds"] += round(report.duration)
    terminalreporter.section("hostile scenarios")
    for name in SCENARIOS:
        terminalreporter.write_line(f"{name:42} {dict(rows.get(name, {}))}")


def pytest_assertrepr_compare(op: str, left: object, right: object) -> list[str] | None:
    """Where long contents differ: what pytest says of it takes minutes where ``CI`` is set."""
    if op != "==" or not isinstance(left, bytes | bytearray):
        return None
    if not isinstance(right, bytes | bytearray) or max(len(left), len(right)) < 1024:
        return None
    pairs = enumerate(zip(left, right, strict=False))
    at = next((at for at, (ours, theirs) in pairs if ours != theirs), min(len(left), len(right)))
    return [
        f"contents of {len(left):,} and {len(right):,} bytes",
        f"they differ from byte {at:,} on: {left[at : at + 32]!r} and {right[at : at + 32]!r}",
    ]


@pytest.fixture(scope="session", autouse=True)
def _others_may_pass(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Tests act as other users too, below directories that pytest makes for its own user."""
    let_others_pass(tmp_path_factory.getbasetemp())


@pytest.fixture(scope="session", autouse=True)
def _keeps_its_priority() -> Iterator[None]:
    """Jobs that tests run in this process leave it its priority, for all the tests after them."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("nice", "ionice"):
            own = getattr(psutil.Process, name)

            def asked(process: psutil.Process, *values: int, own: Any = own) -> object:
                return None if values else own(process)

            patch.setattr(psutil.Process, name, asked)
        yield


@pytest.fixture(autouse=True)
def _mounts_log_no_traceback(request: pytest.FixtureRequest) -> Iterator[None]:
    """A bug in an operation is ``EIO`` for users, and a test that expects an error passes."""
    yield
    tracebacks = [*new_tracebacks()]
    if not request.node.get_closest_marker("logs_traceback"):
        assert not tracebacks, "\n".join(["a mount has logged", *tracebacks])


_MAKE = {
    "ext4": ["mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=1,lazy_journal_init=1"],
    "ext2": ["mkfs.ext2", "-q", "-F"],
    "xfs": ["mkfs.xfs", "-q", "-f"],
    "btrfs": ["mkfs.btrfs", "-q", "-f"],
}


class MakeFileSystem(Protocol):
    def __call__(
        self, kind: str = "ext4", size: str = "512M", options: str = "", *, in_memory: bool = False
    ) -> Path:
        """A fresh file system, mounted; ``options`` are for mount. XFS needs 300M at least.

        ``in_memory``: syncing costs nothing, for tests that sync all the time.
        """


@pytest.fixture
def kept_extents(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on btrfs: this process punches nothing, and orphans stay what they are."""
    monkeypatch.setattr(punching, "gives_back", lambda _: False)


@pytest.fixture
def loop_fs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MakeFileSystem]:
    """Makes file systems on loop devices, which live as long as the test.

    Skips the test where the machine can not do that.
    """
    if os.geteuid() != 0:
        pytest.skip("file systems on loop devices need root")
    with ExitStack() as stack:

        def make(
            kind: str = "ext4", size: str = "512M", options: str = "", *, in_memory: bool = False
        ) -> Path:
            if shutil.which(_MAKE[kind][0]) is None:
                pytest.skip(f"{_MAKE[kind][0]} is not installed")
            base = tmp_path_factory.mktemp(kind)
            if in_memory:
                _run(["mount", "-t", "tmpfs", "-o", "size=100%", "tmpfs", str(base)])
                stack.callback(unmount_soon, base)
            image, point = base / "image", base / "mount"
            stack.callback(image.unlink)
            with open(image, "xb") as file:
                file.truncate(parse_size(size))
            point.mkdir()
            _run([*_MAKE[kind], str(image)])
            mounting = ["mount", "-o", "loop" + (f",{options}" if options else "")]
            result = subprocess.run(
                [*mounting, str(image), str(point)], capture_output=True, text=True, check=False
            )
            if result.returncode:
                reason = result.stderr.strip()
                if "loop device" in reason or "unknown filesystem" in reason:
                    pytest.skip(f"no {kind} on a loop device here: {reason}")
                raise RuntimeError(f"mount {kind}: {reason}")
            stack.callback(_unmount_below, point)
            return point

        yield make


def _run(command: list[str]) -> None:
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise RuntimeError(f"{' '.join(command)}: {result.stderr.strip()}")


def _mounts_below(directory: Path) -> list[str]:
    """Mount points at and below a directory, the newest first."""
    return [
        row.point
        for row in reversed(all_mounts())
        if Path(row.point) == directory or directory in Path(row.point).parents
    ]


def _unmount_below(directory: Path) -> None:
    """Unmount everything at and below a directory; what is in use goes lazily, and is an error."""
    busy = []
    for point in _mounts_below(directory):
        if subprocess.run(["umount", point], capture_output=True, check=False).returncode:
            busy.append(point)
            _run(["umount", "--lazy", point])
    if busy:
        raise RuntimeError(f"still in use at the end of the test: {', '.join(busy)}")


def _loop_devices(directory: Path) -> list[str]:
    """Loop devices whose image lies, or lay, below a directory."""
    found = []
    for device in Path("/sys/block").glob("loop*"):
        try:
            image = (device / "loop/backing_file").read_text().strip()
        except OSError:
            continue  # not attached
        if directory in Path(image.removesuffix(" (deleted)")).parents:
            found.append(f"/dev/{device.name}")
    return found


@pytest.fixture(scope="session", autouse=True)
def nothing_left_behind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No mount and no loop device that the tests made outlives them."""
    yield
    base = tmp_path_factory.getbasetemp().resolve()
    for _ in range(1200):
        left = [*_mounts_below(base), *_loop_devices(base)]
        if not left:
            return
        time.sleep(0.05)  # the kernel lets go of a loop device a moment after its umount
    for step in (
        partial(_unmount_below, base),
        *(partial(_run, ["losetup", "--detach", device]) for device in _loop_devices(base)),
    ):
        try:
            step()
        except RuntimeError as error:
            left.append(str(error))
    pytest.fail(f"the tests left behind: {', '.join(left)}")
