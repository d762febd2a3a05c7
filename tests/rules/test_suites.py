"""What a run of other projects' suites permits is what docs/figures/suites.md says."""

import re

from tests.suites.results import listed_differences
from tests.support.sources import ROOT


def test_the_listed_differences_are_those_of_the_page() -> None:
    page = (ROOT / "docs/figures/suites.md").read_text(encoding="utf-8")
    _, _, rest = page.partition("## Differences between a mount and ext4\n")
    section, _, _ = rest.partition("\n##")
    rows = re.findall(r"^\| ([a-z-]+) `([^`]+)` \| (.*) \|$", section, re.MULTILINE)
    assert sorted(rows) == sorted((one.suite, one.test, one.reason) for one in listed_differences())


def test_no_difference_is_listed_twice() -> None:
    names = [(one.suite, one.test) for one in listed_differences()]
    assert len(names) == len({*names})
