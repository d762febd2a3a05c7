"""What CONTRIBUTING.md tells developers to run and to read exists."""

import re
import shlex

import pytest

from tests.support.sources import ROOT

PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
HOOKS = (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8")
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")

COMMANDS = [
    line
    for block in re.findall(r"^```sh\n(.*?)^```", PAGE, re.M | re.S)
    for line in block.split("\n")
]


def test_the_page_has_commands() -> None:
    assert len(COMMANDS) > 10


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_names_what_exists(command: str) -> None:
    words = shlex.split(command, comments=True)
    while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
        words.pop(0)
    if words and words[0] == "make":
        targets = [word for word in words[1:] if "=" not in word]
        assert all(re.search(rf"^{target}:", MAKEFILE, re.M) for target in targets)
    for word in words:
        path, _, test = word.removesuffix("/").partition("::")
        if "/" not in path or path.startswith((".venv/", "/")):
            continue
        assert (ROOT / path).exists(), path
        if test:
            name = test.partition("[")[0]
            assert re.search(rf"^def {name}\(", (ROOT / path).read_text("utf-8"), re.M), test


def test_symbols_that_the_page_names_exist() -> None:
    named = re.findall(r"`(\w+)` in `([\w./-]+\.(?:py|rs))`", PAGE)
    assert named
    missing = {
        (symbol, path)
        for symbol, path in named
        if not re.search(rf"\b{symbol}\b", (ROOT / path).read_text("utf-8"))
    }
    assert missing == set()


def test_hooks_before_a_commit_fetch_nothing() -> None:
    assert re.findall(r"repo: (.*)", HOOKS) == ["local"]
    assert set(re.findall(r"language: (.*)", HOOKS)) == {"system"}
