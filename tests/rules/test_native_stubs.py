"""The stubs of the native module declare what it has: mypy knows no more of it than they say."""

import ast
import inspect
from collections.abc import Iterator
from types import ModuleType

import pytest

from dedupd_core import native
from tests.support.sources import ROOT

STUBS = sorted((ROOT / "dedupd_core" / "native").glob("*.pyi"))

OF_THE_INTERPRETER = {"__buffer__"}
"""Declared for mypy; Python 3.11 has no such attribute."""

Declared = dict[str, ast.FunctionDef | ast.AnnAssign | ast.ClassDef]


def module_of(stub: str) -> ModuleType:
    found = native if stub == "__init__" else getattr(native, stub)
    assert isinstance(found, ModuleType)
    return found


def declared(body: list[ast.stmt]) -> Declared:
    """Functions, classes and attributes by name. An alias of a type (``Saved = …``) is none."""
    found: Declared = {}
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found[node.name] = node
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found[node.target.id] = node
    return found


def is_public(name: str) -> bool:
    return not name.startswith("_")


def parameters_declared(function: ast.FunctionDef, *, is_bound: bool) -> list[str]:
    """As ``name``, ``name=`` with a default, ``*name`` where only a keyword will do."""
    given = function.args
    positional = [*given.posonlyargs, *given.args]
    optional = len(positional) - len(given.defaults)
    names = [one.arg + "=" * (at >= optional) for at, one in enumerate(positional)]
    pairs = zip(given.kwonlyargs, given.kw_defaults, strict=True)
    return [*names[is_bound:], *(f"*{one.arg}" + "=" * (has is not None) for one, has in pairs)]


def parameters_of(real: object, *, is_bound: bool) -> list[str]:
    assert callable(real)
    names = []
    for one in inspect.signature(real).parameters.values():
        star = "*" * (one.kind is one.KEYWORD_ONLY)
        names.append(f"{star}{one.name}" + "=" * (one.default is not one.empty))
    return names[is_bound:]


def decorators(function: ast.FunctionDef) -> set[str]:
    return {ast.unparse(one) for one in function.decorator_list}


def differences(real: object, stub: Declared, where: str) -> Iterator[str]:
    """What a module or a class has, against what its stub declares."""
    inherited = set(dir(type("Empty", (), {})))
    names = {*vars(real)} if isinstance(real, type) else {*dir(real)}
    for name in sorted(filter(is_public, names - {*stub})):
        yield f"{where}.{name} is not declared"
    for name, node in sorted(stub.items()):
        place = f"{where}.{name}"
        if name in OF_THE_INTERPRETER:
            continue
        if name == "__iter__" and hasattr(real, "__getitem__"):
            continue  # Python iterates by that
        if name in ("__init__", "__new__"):
            assert isinstance(node, ast.FunctionDef)
            wanted = parameters_declared(node, is_bound=True)
            if wanted != (has := parameters_of(real, is_bound=False)):
                yield f"{place} takes {has}, not {wanted}"
        elif not hasattr(real, name) or (name.startswith("__") and name not in names | inherited):
            yield f"{place} does not exist"
        elif isinstance(node, ast.ClassDef):
            yield from differences(getattr(real, name), declared(node.body), place)
        elif isinstance(node, ast.AnnAssign) or "property" in decorators(node):
            if callable(getattr(real, name)):
                yield f"{place} is a method"
        elif not callable(getattr(real, name)):
            yield f"{place} is an attribute"
        elif is_public(name):
            is_bound = isinstance(real, type) and not {"staticmethod"} & decorators(node)
            wanted = parameters_declared(node, is_bound=is_bound)
            own = is_bound and "classmethod" not in decorators(node)
            if wanted != (has := parameters_of(getattr(real, name), is_bound=own)):
                yield f"{place} takes {has}, not {wanted}"


@pytest.mark.parametrize("stub", [path.stem for path in STUBS])
def test_a_stub_declares_exactly_what_the_module_has(stub: str) -> None:
    source = (ROOT / "dedupd_core" / "native" / f"{stub}.pyi").read_text(encoding="utf-8")
    names = declared(ast.parse(source).body)
    if stub == "__init__":
        assert {path.stem for path in STUBS} - {stub} == set(filter(is_public, dir(native)))
    else:
        assert list(differences(module_of(stub), names, stub)) == []


# --- the test itself --------------------------------------------------------------------------


class Example:
    """Stands for a native class."""

    def __init__(self, size: int) -> None:
        self._size = size

    @property
    def size(self) -> int:
        return self._size

    def grow(self, by: int, *, most: int = 0) -> None: ...
    def shrink(self) -> None: ...


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (("size: int", "size: int\n    pid: int"), "Example.pid does not exist"),
        (("size: int\n", "def size(self) -> int: ...\n"), "Example.size is an attribute"),
        (("def shrink(self) -> None: ...", "shrink: int"), "Example.shrink is a method"),
        (("    def shrink(self) -> None: ...\n", ""), "Example.shrink is not declared"),
        (("by: int, *,", "by: int,"), "Example.grow takes ['by', '*most='], not ['by', 'most=']"),
        (("(self, by", "(self, to"), "Example.grow takes ['by', '*most='], not ['to', '*most=']"),
        (("self, size: int", "self"), "Example.__init__ takes ['size'], not []"),
        (("size: int\n", "size: int\n    def __len__(self) -> int: ...\n"), "Example.__len__ does"),
    ],
)
def test_a_stub_that_differs_is_found(change: tuple[str, str], found: str) -> None:
    right = (
        "class Example:\n"
        "    size: int\n"
        "    def __init__(self, size: int) -> None: ...\n"
        "    def grow(self, by: int, *, most: int = 0) -> None: ...\n"
        "    def shrink(self) -> None: ...\n"
    )
    before, after = change
    assert before in right
    [node] = ast.parse(right.replace(before, after, 1)).body
    assert isinstance(node, ast.ClassDef)
    [difference] = differences(Example, declared(node.body), "Example")
    assert difference.startswith(found)
    [node] = ast.parse(right).body
    assert isinstance(node, ast.ClassDef)
    assert list(differences(Example, declared(node.body), "Example")) == []
