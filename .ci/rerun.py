"""Run the tests that failed three times more, alone: for a test that fails by chance.

Such a test is a defect, of itself or of what it tests, and is named on standard output. It does
not hold up a change that it has nothing to do with. Exits with 1 where any of them fails again,
or where more failed than chance explains.
"""

import json
import subprocess
import sys
from pathlib import Path

FAILED = Path(".pytest_cache/v/cache/lastfailed")
BY_CHANCE_MAX = 5
TURNS = 3


def main() -> int:
    failed = list(json.loads(FAILED.read_text())) if FAILED.exists() else []
    if not 0 < len(failed) <= BY_CHANCE_MAX:
        return 1
    for _ in range(TURNS):
        command = [sys.executable, "-m", "pytest", *failed]
        if subprocess.run(command, stdout=sys.stderr, check=False).returncode:
            return 1
    for name in failed:
        print(f"{name} failed once, and passed {TURNS} times alone")
    return 0


if __name__ == "__main__":
    sys.exit(main())
