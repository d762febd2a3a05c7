"""Each act of root on files of users has a rule that holds, and a test that exists."""

import re

from tests.support.sources import ROOT

PAGE = (ROOT / "docs/design/privileges.md").read_text()


def acts() -> list[list[str]]:
    """The rows of the table of acts: act, rule, race, test."""
    table = PAGE.partition("\n## Acts\n")[2].partition("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| ")]
    return [row for row in rows if row[0] not in ("act", "---")]


def test_each_act_has_a_test_that_exists() -> None:
    assert len(acts()) > 20
    for row in acts():
        assert len(row) == 4, row
        tests = re.findall(r"`(tests/[^`]+)`", row[3])
        assert tests, row[0]
        assert [test for test in tests if not (ROOT / test).exists()] == [], row[0]


def test_each_act_names_rules_that_exist() -> None:
    rules = re.findall(r"^(\d+)\. \*\*", PAGE, re.MULTILINE)
    assert rules == [str(number + 1) for number in range(len(rules))]
    for _, rule, _, _ in acts():
        assert "not applied" not in rule
        named = re.match(r"[\d, to]*", rule)
        assert named is not None
        assert {*re.findall(r"\d+", named[0])} <= {*rules}, rule
