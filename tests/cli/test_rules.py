"""What decides on a file, told and kept: `policy --why`, `file`, `expand`."""

from pathlib import Path

import pytest

from tests.cli.test_cli import DONE, USAGE, reported, say
from tests.support.lab import Lab, fill, new_lab, run_cli
from tests.support.mounts import mounted_lab


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    lab = new_lab(tmp_path / "volume")
    fill(lab)
    return lab


def test_why_names_the_rule_and_the_outcome(lab: Lab) -> None:
    lab.set_policy('min_age = "0s"\nmin_size = 1\n[[rule]]\npath = "prose"\nexclude = true\n')
    told = reported("policy", lab.root, "--why", lab.root / "prose")
    assert (told["taken"], told["reason"], told["excluded_by"]) == (False, "excluded", "rule 1")
    assert told["keys"]["exclude"] == {"value": True, "from": "rule 1"}
    text = say("policy", lab.root, "--why", lab.root / "prose").stdout
    assert "excluded; excluded by rule 1" in text and "exclude = true   # rule 1" in text
    (row,) = reported("file", lab.root / "prose")
    assert row["policy"]["excluded_by"] == "rule 1"
    assert "[[rule]]   # rule 1" in say("policy", lab.root).stdout
    assert reported("policy", lab.root)["rule"] == [{"path": ["prose"], "exclude": True}]


def test_why_asks_for_a_file_of_that_volume(lab: Lab, tmp_path: Path) -> None:
    other = new_lab(tmp_path / "other")
    fill(other)
    (lab.data / "d").mkdir()
    for path, reason in (
        (lab.root / "d", "not a regular file"),
        (lab.root / "none", "no such file"),
        (other.root / "prose", "is in another volume"),
    ):
        refused = say("policy", lab.root, "--why", path)
        assert refused.returncode == USAGE and reason in refused.stderr


def test_expand_keeps_a_file_plain_over_the_next_run(lab: Lab) -> None:
    assert reported("run", "optimize", lab.root)["files_optimized"] == 6
    (row,) = reported("expand", lab.root / "prose")
    assert row["restored"] and row["ruled"]
    assert reported("run", "optimize", lab.root)["files_optimized"] == 0
    (row,) = reported("expand", lab.root / "prose")
    assert not row["restored"] and not row["ruled"]
    assert reported("policy", lab.root)["rule"] == [{"path": ["/prose"], "exclude": True}]


def test_expand_once_lets_the_next_run_take_it(lab: Lab) -> None:
    assert reported("run", "optimize", lab.root)["files_optimized"] == 6
    (row,) = reported("expand", "--once", lab.root / "prose")
    assert row["restored"] and not row["ruled"]
    assert reported("run", "optimize", lab.root)["files_optimized"] == 1


def test_expand_changes_nothing_where_the_policy_cannot_be_read(lab: Lab) -> None:
    assert reported("run", "optimize", lab.root)["files_optimized"] == 6
    lab.set_policy("cores = 'many'\n")
    refused = reported("expand", lab.root / "prose", status=USAGE)
    assert "cores = 'many'" in refused["error"]
    assert reported("file", lab.root / "prose")[0]["state"] == "stub"


@pytest.mark.root
def test_expand_keeps_a_file_of_a_mounted_volume_plain(tmp_path: Path) -> None:
    with mounted_lab(tmp_path) as lab:
        (lab.view / "a").mkdir()
        (lab.view / "a/f").write_bytes(b"content" * 20_000)
        assert run_cli("run", "optimize", lab.view).returncode == DONE
        expanded = run_cli("expand", lab.view / "a/f")
        assert "expanded; a policy rule keeps it plain" in expanded.stdout
        why = run_cli("policy", lab.view, "--why", lab.view / "a/f")
        assert why.returncode == DONE and "excluded by rule 1" in why.stdout, why
