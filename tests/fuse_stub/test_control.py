"""The operations of the control socket are those of docs/design/control.md."""

import re

from fuse_stub.control import OPERATIONS
from tests.support.sources import ROOT


def test_the_document_names_every_operation_and_no_other() -> None:
    page = (ROOT / "docs/design/control.md").read_text(encoding="utf-8")
    _, _, table = page.partition("| `op` |")
    table, _, _ = table.partition("\n\n")
    assert re.findall(r"^\| `(\w+)` \|", table, re.M) == list(OPERATIONS)
