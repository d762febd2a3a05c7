"""Run each failed test three more times, alone, and print which of them are unstable.

An unstable test is a defect, either of the test or of the program, and `.ci/run` fails in any case.
This script only names the failures for which no recent change is to blame.
"""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

FAILED = Path(".pytest_cache/v/cache/lastfailed")
RERUN_MAX = 5
"""If more tests failed, chance does not explain it, and the repetition would take long."""
TURNS = 3


def failed_tests() -> list[str]:
    return list(json.loads(FAILED.read_text())) if FAILED.exists() else []


def main() -> None:
    tests = failed_tests()
    if not 0 < len(tests) <= RERUN_MAX:
        return
    failures: Counter[str] = Counter()
    for _ in range(TURNS):
        # pytest removes a test that passes from the list, and keeps or adds one that fails.
        command = [sys.executable, "-m", "pytest", *tests]
        subprocess.run(command, stdout=sys.stderr, check=False)
        failures.update(set(failed_tests()).intersection(tests))
    for name in tests:
        if passed := TURNS - failures[name]:
            print(f"{name} failed, then passed {passed} of {TURNS} times alone")


if __name__ == "__main__":
    main()
