"""The documents are in their form: generated tables, line lengths, figures, decisions, symbols."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from scripts import doc_tables
from tests.support.sources import ROOT
from tests.support.texts import text_of

DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
PRODUCT = ("dedupd", "dedupd_core", "fuse_stub", "jobs")
COLUMNS = 100

_FENCED = re.compile(r"^```.*?^```$", re.M | re.S)
_LINK = re.compile(r"!?\[[^]]*\]\([^)]*\)")


def name_of(page: Path) -> str:
    return str(page.relative_to(DOCS))


# --- generated tables ---------------------------------------------------------------------------


def test_generated_tables_are_up_to_date() -> None:
    old = [name_of(page) for page, text, wanted in doc_tables.pages() if text != wanted]
    assert old == [], "run `make docs-tables`"


def test_each_generated_table_stands_in_one_page() -> None:
    assert sorted(doc_tables.names()) == sorted(doc_tables.TABLES)


# --- form -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_lines_fit_a_terminal(page: Path) -> None:
    """Tables and code are exempt, and so is what a link makes longer."""
    text = _FENCED.sub("", page.read_text(encoding="utf-8"))
    prose = [line for line in text.splitlines() if not line.startswith(("|", "    "))]
    long = [line for line in prose if len(_LINK.sub("", line)) > COLUMNS]
    assert long == []


# --- figures --------------------------------------------------------------------------------------


FIGURES = [page for page in PAGES if page.parent.name == "figures" and page.name != "README.md"]


@pytest.mark.parametrize("page", FIGURES, ids=name_of)
def test_each_figure_has_its_command_commit_and_machine(page: Path) -> None:
    """A section with a table names the source of its figures."""
    sections = re.split(r"^(?=## )", page.read_text(encoding="utf-8"), flags=re.M)[1:]
    without = [
        section.splitlines()[0]
        for section in sections
        if "\n| " in section and not is_traced(section)
    ]
    assert {*without} - NOT_MEASURED == set()


NOT_MEASURED = {"## Differences between a mount and ext4"}


def is_traced(section: str) -> bool:
    rows = [line.split("|") for line in section.splitlines() if line.startswith("| ")]
    heads = "|".join([*rows[0], *(row[1] for row in rows)])
    return all(word in heads for word in ("command", "commit", "machine"))


def test_programs_that_figures_name_exist() -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in FIGURES)
    modules = set(re.findall(r"python -m ((?:benchmarks|tests|analysis)\.[\w.]+)", text))
    missing = {one for one in modules if not is_module(one)}
    examples = set(re.findall(r"--example (\w+)", text))
    missing |= {one for one in examples if not (ROOT / f"native/examples/{one}.rs").exists()}
    targets = set(re.findall(r"`make ([a-z-]+)", text))
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    missing |= {one for one in targets if not re.search(rf"^{one}:", makefile, re.M)}
    assert missing == set()


def is_module(name: str) -> bool:
    base = ROOT.joinpath(*name.split("."))
    return base.with_suffix(".py").exists() or (base / "__init__.py").exists()


# --- decisions ------------------------------------------------------------------------------------


def test_each_decision_has_its_parts_and_is_listed() -> None:
    folder = DOCS / "decisions"
    overview = (folder / "README.md").read_text(encoding="utf-8")
    pages = sorted(folder.glob("[0-9]*.md"))
    numbers = [int(page.name[:4]) for page in pages]
    assert numbers == [*range(1, len(pages) + 1)]
    for page in pages:
        text = page.read_text(encoding="utf-8")
        title = text.splitlines()[0].removeprefix("# ")
        assert re.findall(r"^## (.*)$", text, re.M) == ["Context", "Decision", "Consequences"]
        assert re.search(r"^Date: \d+ \w+ \d{4}", text, re.M), page.name
        assert f"| [{page.name[:4]}]({page.name}) | {title} |" in overview


# --- symbols and messages -------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["design/architecture.md", "design/recovery.md"])
def test_symbols_are_in_the_files_that_a_table_names(name: str) -> None:
    """``path``, ``symbol`` and ``Class.method``: the last part has to be a name in the file."""
    text = (DOCS / name).read_text(encoding="utf-8")
    named = re.findall(r"`([\w./-]+\.(?:py|pyi|rs))`((?:, `[A-Za-z_][\w.]*`)*)", text)
    assert named
    missing = []
    for path, symbols in named:
        source = ROOT / path
        if not source.exists():
            missing.append(path)
            continue
        words = set(re.findall(r"\w+", source.read_text(encoding="utf-8")))
        for symbol in re.findall(r"`([\w.]+)`", symbols):
            if symbol.rpartition(".")[2] not in words | {"py", "rs"}:
                missing.append(f"{path}: {symbol}")
    assert missing == []


def test_the_drawing_of_the_house_has_each_floor() -> None:
    text = (DOCS / "design/architecture.md").read_text(encoding="utf-8")
    drawing = re.search(r"^```\n  dedupd .*?^```", text, re.M | re.S)
    assert drawing is not None
    folders = {
        path.name
        for package in ("dedupd", "dedupd_core")
        for path in (ROOT / package).iterdir()
        if path.is_dir() and not path.name.startswith("_")
    }
    drawn = set(re.findall(r"^ +(\w+) ", drawing[0], re.M))
    assert folders - drawn == set()


@cache
def texts() -> str:
    """All texts of the product except docstrings; a zero byte stands for each value."""
    found = []
    for package in PRODUCT:
        for path in sorted((ROOT / package).rglob("*.py")):
            nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
            docstrings = {node.value for node in nodes if isinstance(node, ast.Expr)}
            found += [text_of(node, "\0") for node in nodes if node not in docstrings]
    return "\n".join(filter(None, found))


def test_messages_of_the_troubleshooting_page_exist() -> None:
    page = (DOCS / "guide/troubleshooting.md").read_text(encoding="utf-8")
    tables = re.findall(r"^\| message \|.*\n\| --- .*\n((?:\|.*\n)+)", page, re.M)
    cells = [row.split(" | ")[0] for one in tables for row in one.splitlines()]
    parts = [part for cell in cells for part in re.findall(r"`([^`]+)`", cell)]
    assert len(parts) > 40
    assert [part for part in parts if part not in texts()] == []
