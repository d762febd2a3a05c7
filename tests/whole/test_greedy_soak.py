"""Two minutes of the soak that ``python -m tests.whole.greedy_soak`` runs for an hour."""

from pathlib import Path

import pytest

from tests.support.lab import let_others_pass
from tests.whole.greedy_soak import run

pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.timeout(1800)]


def test_a_greedy_user_makes_no_other_wait_and_no_process_grow(tmp_path: Path) -> None:
    let_others_pass(tmp_path)
    found = run(tmp_path, minutes=2)
    print(f"\n{found}")
    assert found.findings == []
    assert found.jobs["unoptimize"] and found.jobs["gc"]
