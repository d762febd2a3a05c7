"""Changes since the last version are told in one file each, which together make a list."""

import re
from pathlib import Path

import dedupd_core

REPOSITORY = Path(dedupd_core.__file__).parents[1]
UNRELEASED = REPOSITORY / "changelog/unreleased"


def test_each_change_is_one_item_of_a_list() -> None:
    for path in UNRELEASED.glob("*.md"):
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*\.md", path.name), path.name
        first, *others = path.read_text().splitlines()
        assert re.match(r"- \S", first), path.name
        assert all(re.match(r"  \S", line) for line in others), path.name


def test_the_newest_version_of_the_changes_is_that_of_the_program() -> None:
    newest = re.search(r"^## (\S+)", (REPOSITORY / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest is not None and newest[1] == dedupd_core.__version__
