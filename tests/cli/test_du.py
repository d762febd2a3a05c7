"""``dedupd du`` and ``dedupd file`` of folders, as they are typed."""

import csv
import io
import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from dedupd.cli.main import main
from tests.support.lab import Lab, lab_in, noise


def run(*arguments: str, status: int = 0) -> str:
    result = CliRunner().invoke(main, ["du", *arguments])
    assert result.exit_code == status, result.output
    return result.output


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    with lab_in(tmp_path, "4k") as lab:
        for name in ("a", "b"):
            lab.put(f"{name}/common", noise(300_000, 1))
            lab.put(f"{name}/own", noise(50_000, ord(name)))
        lab.optimize()
    return lab


def test_folders_are_shown_with_their_names_and_all_together(lab: Lab) -> None:
    text = run(f"{lab.root}/a", f"{lab.root}/b")
    assert f"{lab.root}/a" in text
    assert "together" in text
    assert "dedupd run gc" in text
    (found,) = json.loads(run("--json", f"{lab.root}/a", f"{lab.root}/b"))
    assert found["path"] == str(lab.root)
    assert {row["name"] for row in found["rows"]} == {f"{lab.root}/a", f"{lab.root}/b"}
    assert found["together"]["frees_bytes"] > 300_000


def test_a_bill_adds_up(lab: Lab) -> None:
    rows = list(csv.DictReader(io.StringIO(run("--csv", "--by", "folder", str(lab.root)))))
    assert {os.path.basename(row["name"]) for row in rows} == {"a", "b", ".", "(the rest)"}
    (whole,) = json.loads(run("--json", str(lab.root)))
    shares = sum(int(row["share_bytes"]) for row in rows)
    assert abs(shares - whole["together"]["takes_bytes"]) <= 4


def test_another_policy_is_reckoned(lab: Lab) -> None:
    assert "4 optimized files would be excluded" in run("--what-if", "min_size=1m", str(lab.root))
    assert "Nothing would change" in run("--what-if", "exclude_types=mp4", str(lab.root))
    assert "use the form" in run("--what-if", "exclude_types", str(lab.root), status=2)
    assert "is known only after" in run("--what-if", "min_age=1d", str(lab.root), status=2)


def test_a_mistyped_path_is_no_folder_of_zero_bytes(lab: Lab) -> None:
    assert "no such file" in run(f"{lab.root}/nosuch", status=2)


def test_a_folder_is_described_as_a_file_is(lab: Lab) -> None:
    result = CliRunner().invoke(main, ["file", f"{lab.root}/a"])
    assert result.exit_code == 0
    assert "folder of 2 files, 2 of them optimized" in result.output
