"""Compare the coverage of each package with its floor in pyproject.toml (`make coverage`).

    python scripts/coverage_floors.py REPORT

REPORT is the JSON report of coverage.py. Exits with 1 if a package is below its floor.
"""

import json
import sys
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


def floors() -> dict[str, float]:
    """Return the floors by package, in percent of lines and branches."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return dict(settings["tool"]["dedupd"]["coverage-floors"])


def percent(files: dict[str, Any], package: str) -> float:
    """Return the share of the lines and branches of a package that ran."""
    covered = total = 0
    for path, found in files.items():
        if path.startswith(f"{package}/"):
            summary = found["summary"]
            covered += summary["covered_lines"] + summary["covered_branches"]
            total += summary["num_statements"] + summary["num_branches"]
    return 100 * covered / total if total else 0.0


def main(report: Path) -> int:
    files = json.loads(report.read_text(encoding="utf-8"))["files"]
    low = False
    for package, floor in floors().items():
        found = percent(files, package)
        is_low = found < floor
        low |= is_low
        print(f"{package:20} {found:6.2f} %  floor {floor:5.1f} %{'  TOO LOW' if is_low else ''}")
    return int(low)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
