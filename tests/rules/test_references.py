"""What documents, docstrings, comments and messages name exists: files, commands, anchors."""

import ast
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click
import pytest

from dedupd.cli.main import main
from tests.support.sources import ROOT
from tests.support.texts import text_of

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
CODE = (
    *("dedupd", "dedupd_core", "dedupd_reader", "fuse_stub", "jobs", "analysis"),
    *("native/src", "packaging", "scripts"),
)
OLD = ("CHANGELOG.md",)
"""Pages that tell of what was."""

_PATH = re.compile(r"`(?:…/)?((?:[\w.-]+/)*[\w-]+\.(?:py|pyi|rs|md|sh|service|slice))`")
_IN_CODE = re.compile(
    r"(?<![\w/.-])((?:docs|tests|dedupd|jobs|fuse_stub|analysis|native)/[\w./-]+\.(?:py|rs|md))"
)
_LINK = re.compile(r"\]\(([^)\s]*)\)")
_COMMAND = re.compile(r"`(?:sudo )?dedupd ([a-z][^`\n]*)`")


@cache
def tracked() -> frozenset[str]:
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    return frozenset(subprocess.check_output(listed, cwd=ROOT, text=True).split("\n"))


@cache
def endings() -> frozenset[str]:
    """The paths of all files, and what is left of them without their first folders."""
    parts = (Path(name).parts for name in tracked())
    return frozenset("/".join(one[at:]) for one in parts for at in range(len(one)))


def is_there(name: str) -> bool:
    return name in endings()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_that_a_page_names_exist(page: Path) -> None:
    if page.name in OLD:
        return
    named = set(_PATH.findall(page.read_text(encoding="utf-8")))
    assert {name for name in named if not is_there(name)} == set()


def anchor_of(heading: str) -> str:
    words = re.sub(r"`|\*|\[([^]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
    return re.sub(r"[^\w\- ]", "", words).replace(" ", "-")


@cache
def anchors(page: Path) -> frozenset[str]:
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    return frozenset(anchor_of(one) for one in re.findall(r"^#+ (.*)$", text, re.M))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_of_a_page_lead_somewhere(page: Path) -> None:
    missing = []
    for target in _LINK.findall(page.read_text(encoding="utf-8")):
        path, _, anchor = target.partition("#")
        if "://" in target or target.startswith("mailto:"):
            continue
        there = (page.parent / path).resolve() if path else page
        is_page = there.suffix == ".md"
        if not there.exists() or (anchor and is_page and anchor not in anchors(there)):
            missing.append(target)
    assert missing == []


def texts() -> Iterator[tuple[str, str]]:
    """Each page, and each literal, docstring and comment of the product, with where it is."""
    for page in PAGES:
        if page.name not in OLD:
            yield str(page.relative_to(ROOT)), page.read_text(encoding="utf-8")
    for name in sorted(tracked()):
        if name.startswith(CODE) and name.endswith((".py", ".rs", ".pyi")):
            text = (ROOT / name).read_text(encoding="utf-8")
            is_split = name.endswith(".py") and "`dedupd" in text
            yield name, joined_literals(text) if is_split else text


def joined_literals(text: str) -> str:
    """A module with its texts in one line each, as people get to read them, and its comments."""
    parts = [text_of(node) for node in ast.walk(ast.parse(text))]
    return "\n".join([*filter(None, parts), text])


def test_files_that_code_names_exist() -> None:
    missing = {
        (where, name)
        for where, text in texts()
        if not where.endswith(".md")
        for name in _IN_CODE.findall(text)
        if not is_there(name)
    }
    assert missing == set()


def problem_of(words: list[str]) -> str | None:
    """What of a command that a text names does not exist."""
    command: click.Command = main
    context = click.Context(main, info_name="dedupd")
    while words and isinstance(command, click.Group):
        if words[0] in {name for one in command.params for name in one.opts}:
            words = words[1:]
            continue
        if not re.fullmatch(r"[a-z][a-z-]*", words[0]):
            break
        inner = command.get_command(context, words[0])
        if inner is None:
            return f"no command {words[0]}"
        words, command = words[1:], inner
        context = click.Context(inner, parent=context, info_name=inner.name)
    known = {name for one in command.params for name in (*one.opts, *one.secondary_opts)}
    for word in words:
        option = re.match(r"--[a-z][a-z-]*", word)
        if option and option[0] not in known | {"--help", "--version"}:
            return f"no option {option[0]}"
    return None


def test_commands_that_texts_name_exist() -> None:
    missing = set()
    for where, text in texts():
        for line in _COMMAND.findall(text):
            problem = problem_of(re.split(r"\s+|(?<=\w)\[", line.replace("…", "")))
            if problem is not None:
                missing.add((where, line, problem))
    assert missing == set()
