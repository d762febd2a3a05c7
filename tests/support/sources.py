"""The product's sources, for the rules that hold for them: modules, imports, native stubs."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROOM_FILES_MAX = 20
MODULE_LINES_MAX = 600
"""What can be read: files directly in a folder of the product, lines of one of them."""

PACKAGES = ("dedupd", "dedupd_core", "dedupd_reader", "jobs", "fuse_stub", "analysis")


@dataclass(frozen=True)
class Module:
    """A source file: its dotted name, where it is, and its syntax tree."""

    name: str
    path: Path
    tree: ast.Module

    @property
    def is_package(self) -> bool:
        return self.path.name == "__init__.py"


def parse(name: str, source: str) -> Module:
    return Module(name, Path(name.replace(".", "/") + ".py"), ast.parse(source))


def modules() -> Iterator[Module]:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            yield Module(name, path, ast.parse(path.read_text(encoding="utf-8")))


@cache
def all_modules() -> list[Module]:
    """The modules of the product, parsed when first asked for: that takes seconds."""
    return list(modules())


def called(function: ast.expr) -> str:
    """``os.rename`` or ``open``; the last name alone where the rest is not a plain name, or a
    submodule of ``native``."""
    if isinstance(function, ast.Name):
        return function.id
    if isinstance(function, ast.Attribute):
        if isinstance(function.value, ast.Name):
            return f"{function.value.id}.{function.attr}"
        if called(function.value).startswith("native."):
            return f"{called(function.value)}.{function.attr}"
        return f".{function.attr}"
    return ""


MARK = "Durable effect: "
"""In the docstring of each native function, class and method that changes what is on a disk."""


@dataclass(frozen=True)
class Native:
    """A native function, class, or method (``FoundFiles.write``) of a submodule."""

    submodule: str
    name: str
    has_effect: bool
    has_door: bool
    """Whether it is given the door by which it has its effects; the others are effects."""


def _natives(submodule: str, body: list[ast.stmt], owner: str = "") -> Iterator[Native]:
    for node in body:
        if not isinstance(node, ast.FunctionDef | ast.ClassDef):
            continue
        has_effect = MARK in (ast.get_docstring(node) or "")
        functions = node.body if isinstance(node, ast.ClassDef) else [node]
        parameters = {
            argument.arg
            for function in functions
            if isinstance(function, ast.FunctionDef)
            for argument in (*function.args.args, *function.args.kwonlyargs)
        }
        yield Native(submodule, owner + node.name, has_effect, "door" in parameters)
        if isinstance(node, ast.ClassDef):
            yield from _natives(submodule, node.body, f"{node.name}.")


NATIVES = [
    native
    for path in sorted((ROOT / "dedupd_core" / "native").glob("*.pyi"))
    for native in _natives(path.stem, ast.parse(path.read_text(encoding="utf-8")).body)
]
"""All that native stubs declare."""

NATIVE_EFFECTS = {
    submodule: {n.name for n in NATIVES if n.submodule == submodule and n.has_effect}
    for submodule in {n.submodule for n in NATIVES if n.has_effect}
}
"""What of each submodule has durable effects, by itself or by the door."""
