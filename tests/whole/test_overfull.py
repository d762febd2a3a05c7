"""A small run of ``python -m tests.whole.overfull``."""

from pathlib import Path

import pytest

from dedupd_core.units import MIB
from tests.support.lab import let_others_pass
from tests.whole.overfull import run

pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.timeout(1800)]


def test_disks_take_in_more_than_they_hold_plain(tmp_path: Path) -> None:
    let_others_pass(tmp_path)
    found = run(tmp_path, 400 * MIB)
    print(f"\n{found}")
    assert found.findings == []
