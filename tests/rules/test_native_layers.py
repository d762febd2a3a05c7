"""Folders of the native code: each uses those below it only, and no two files use each other."""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.sources import MODULE_LINES_MAX, ROOM_FILES_MAX

SOURCE = Path(__file__).resolve().parents[2] / "native/src"

FLOORS = re.findall(r"^(?:pub )?mod (\w+);", (SOURCE / "lib.rs").read_text(), re.M)
"""In the order of ``lib.rs``: from the lowest up."""

USE = re.compile(r"\b(crate|super|self)((?:::\w+)*)(?:::\{(.*?)\})?", re.S)


def module_of(path: Path) -> str:
    """``index::bloom::units``; empty for the crate itself."""
    parts = list(path.relative_to(SOURCE).with_suffix("").parts)
    return "::".join(parts[:-1] if parts[-1] in ("mod", "lib") else parts)


def product(source: str) -> str:
    """The source without comments and tests."""
    return re.sub(r"//.*", "", source.split("#[cfg(test)]\nmod tests", maxsplit=1)[0])


def used(module: str, source: str, modules: set[str]) -> Iterator[str]:
    """The modules that a module names, except for itself."""
    for root, names, group in USE.findall(product(source)):
        here = module.split("::") if root != "crate" and module else []
        path = names.strip(":").split("::") if names else []
        if root == "super":
            here = here[:-1]
        while path and path[0] == "super":
            here, path = here[:-1], path[1:]
        ends = [name.split(" as ")[0].split("::")[0].strip() for name in group.split(",")]
        for end in ends:
            whole = [*here, *path, *([end] if end else [])]
            while whole and "::".join(whole) not in modules:
                whole.pop()
            if whole and (found := "::".join(whole)) != module:
                yield found


def upwards(uses: dict[str, set[str]]) -> list[str]:
    floor = {name: number for number, name in enumerate(FLOORS)}
    return [
        f"{module} uses {other}"
        for module, others in uses.items()
        for other in others
        if module and floor[other.partition("::")[0]] > floor[module.partition("::")[0]]
    ]


def circles(uses: dict[str, set[str]]) -> list[str]:
    """Modules that use themselves by way of others."""

    def reached(module: str) -> set[str]:
        seen: set[str] = set()
        left = [*uses[module]]
        while left:
            if (one := left.pop()) not in seen:
                seen.add(one)
                left.extend(uses[one])
        return seen

    return [module for module in uses if module in reached(module)]


@pytest.fixture(scope="module")
def uses() -> dict[str, set[str]]:
    sources = {module_of(path): path.read_text() for path in SOURCE.rglob("*.rs")}
    modules = set(sources)
    return {module: set(used(module, text, modules)) for module, text in sources.items()}


def test_every_folder_is_in_the_list() -> None:
    entries = {path.stem for path in SOURCE.iterdir() if path.stem != "lib"}
    assert entries == set(FLOORS)


def test_folders_use_those_below_them_only(uses: dict[str, set[str]]) -> None:
    assert upwards(uses) == []


def test_no_two_files_use_each_other(uses: dict[str, set[str]]) -> None:
    assert circles(uses) == []


def test_folders_and_files_are_small_enough_to_be_read() -> None:
    lines = {path: path.read_text().count("\n") for path in SOURCE.rglob("*.rs")}
    assert {str(path): n for path, n in lines.items() if n > MODULE_LINES_MAX} == {}
    files = Counter(path.parent for path in lines)
    assert {str(room): n for room, n in files.items() if n > ROOM_FILES_MAX} == {}


def test_an_arrow_that_points_upwards_is_found() -> None:
    modules = {"format::ids", "index::log"}
    found = set(used("format::ids", "use crate::index::log::{self, Log};", modules))
    assert upwards({"format::ids": found}) == ["format::ids uses index::log"]


def test_a_circle_is_found() -> None:
    modules = {"index::table", "index::moves"}
    sources = {
        "index::table": "use super::moves::Held;",
        "index::moves": "use crate::index::{table::Table};",
    }
    uses = {module: set(used(module, text, modules)) for module, text in sources.items()}
    assert circles(uses) == ["index::table", "index::moves"]
