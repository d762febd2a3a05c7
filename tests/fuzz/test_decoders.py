"""No decoder fails in a way of its own, whatever Python gives it (fuzzing, by hypothesis)."""

from collections.abc import Iterator

import pytest

from tests.fuzz.decoders import Samples, bounded_memory
from tests.support import crash
from tests.support.fuzzing import SECONDS_SLOW, fuzz

pytestmark = pytest.mark.root

NAMES = (
    *("container header", "container header, made", "records", "table header", "table entries"),
    *("recipe", "stub attribute", "merge log", "merge log, made", "saved marks"),
    *("saved notes", "saved notes, made"),
    *("saved marks, made", "saved table", "saved chains", "policy", "policy key", "schedule"),
)


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Samples]:
    directory = tmp_path_factory.mktemp("fuzz")
    with crash.tmpfs(directory) as memory, crash.ext4(memory) as point:
        (point / "scratch").mkdir()
        yield Samples(point / "volume", point / "scratch")


def test_every_target_is_tried(samples: Samples) -> None:
    assert samples.targets().keys() == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_no_such_thing_is_refused(samples: Samples, name: str) -> None:
    target = samples.targets()[name]
    with bounded_memory():
        assert fuzz(0.3, target.inputs, target.check)


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("name", NAMES)
def test_what_is_no_such_thing_is_refused_for_long(samples: Samples, name: str) -> None:
    target = samples.targets()[name]
    with bounded_memory():
        seeds = fuzz(SECONDS_SLOW, target.inputs, target.check)
    print(f"\n{name}: {seeds} times 50 inputs in {SECONDS_SLOW} s")
