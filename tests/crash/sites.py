"""Where the product has durable effects, and which of these places a simulated disk has met."""

import ast
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from dedupd_core.system import disk as product_disk
from dedupd_core.system.disk import Disk
from tests.support.simulated_disk import RecordingDisk
from tests.support.sources import ROOT, Module, all_modules

EFFECTS = frozenset(
    name for name, member in vars(Disk).items() if callable(member) and not name.startswith("_")
) - {"open_write"}
"""Methods of the disk that change it."""

DOOR = "door"
"""Stands for the effects that native code has."""


class Site(NamedTuple):
    """A place of the product that has an effect, by the lines of the call."""

    module: str
    function: str
    effect: str
    first_line: int
    last_line: int

    def __str__(self) -> str:
        return f"{self.module}:{self.first_line}: {self.function}: {self.effect}"

    @property
    def name(self) -> str:
        return f"{self.module}.{self.function} {self.effect}"


def sites_of(module: Module) -> Iterator[Site]:
    """The places of a module that name an effect of a disk."""

    def visit(node: ast.AST, function: str, call: ast.AST) -> Iterator[Site]:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            function = node.name
        if isinstance(node, ast.Call):
            call = node
        if isinstance(node, ast.Attribute) and node.attr in {*EFFECTS, DOOR} and _is_disk(node):
            first, last = getattr(call, "lineno", 0), getattr(call, "end_lineno", 0)
            yield Site(module.name, function, node.attr, first, last)
        for child in ast.iter_child_nodes(node):
            yield from visit(child, function, node if isinstance(node, ast.stmt) else call)

    yield from visit(module.tree, "", module.tree)


def _is_disk(node: ast.Attribute) -> bool:
    owner = node.value
    name = owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", "")
    return name.lstrip("_") == "disk"


def product_sites() -> list[Site]:
    """All places of the product but those in the disk itself."""
    return [
        site
        for module in all_modules()
        if module.name != "dedupd_core.system.disk"
        for site in sites_of(module)
    ]


OUT_OF_VOLUMES = ("jobs.backup.", "dedupd_core.replica.")
"""Packages that write where users see nothing: a restore or a drill into a directory of its own; a
stream into a place beside the tree, until the switch. ``tests/jobs/backup`` stops and kills these;
a power cut is simulated at the switch alone (``replica_scenarios.py``)."""


def sites_in_volumes() -> list[Site]:
    """The places that a power cut is simulated at."""
    return [site for site in product_sites() if not site.module.startswith(OUT_OF_VOLUMES)]


@cache
def effects_in_volumes() -> frozenset[str]:
    """The effects of these places."""
    elsewhere = {site.effect for site in product_sites()}
    return EFFECTS - (elsewhere - {site.effect for site in sites_in_volumes()})


class Met(NamedTuple):
    """An effect that came from a line of the product."""

    module: str
    line: int
    effect: str


class WatchfulDisk(RecordingDisk):
    """Notes from which line of the product each effect comes."""

    def __init__(self) -> None:
        super().__init__()
        self.met: set[Met] = set()
        self.native: set[str] = set()
        """Effects that came from native code, by the door."""

    def _native_step(self, name: str, *arguments: Any) -> int:
        self.native.add(name)
        self._note(DOOR)
        return super()._native_step(name, *arguments)

    def _note(self, effect: str) -> None:
        frame = sys._getframe(1)
        while frame.f_back is not None and frame.f_code.co_filename in _OF_THE_DISK:
            frame = frame.f_back
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(ROOT):
            module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            self.met.add(Met(module, frame.f_lineno, effect))


def _watched(name: str) -> Callable[..., object]:
    def method(self: WatchfulDisk, *arguments: object, **options: object) -> object:
        self._note(name)
        return getattr(RecordingDisk, name)(self, *arguments, **options)

    return method


for _name in EFFECTS:
    setattr(WatchfulDisk, _name, _watched(_name))

_OF_THE_DISK = {__file__, product_disk.__file__, sys.modules[RecordingDisk.__module__].__file__}


def unmet(sites: list[Site], met: set[Met]) -> list[Site]:
    """The places that no effect came from."""
    return [
        site
        for site in sites
        if not any(
            one.module == site.module
            and one.effect == site.effect
            # Native code is given the door in one place, and has its effects from others.
            and (site.effect == DOOR or site.first_line <= one.line <= site.last_line)
            for one in met
        )
    ]
