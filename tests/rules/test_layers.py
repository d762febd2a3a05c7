"""The layers hold: imports point downwards, and formats do no input or output."""

import ast
import importlib.util
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.sources import (
    MODULE_LINES_MAX,
    NATIVE_EFFECTS,
    PACKAGES,
    ROOM_FILES_MAX,
    ROOT,
    Module,
    all_modules,
    called,
    parse,
)


def is_module(name: str) -> bool:
    base = ROOT.joinpath(*name.split("."))
    return base.with_suffix(".py").exists() or base.is_dir() or base.with_suffix(".pyi").exists()


def imports(module: Module) -> Iterator[tuple[str, int]]:
    """(dotted name, line) of every module imported, also inside functions."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = module.name.split(".")
                package = package[: len(package) - node.level + module.is_package]
                base = ".".join([*package, base]) if base else ".".join(package)
            for alias in node.names:
                # `from dedupd import cli` imports the module dedupd.cli.
                inner = f"{base}.{alias.name}"
                yield (inner if is_module(inner) else base), node.lineno


# --- imports ----------------------------------------------------------------------------------


def test_every_library_that_the_program_imports_is_among_its_dependencies() -> None:
    """What another library happens to bring along is not there on every version of Python."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = {re.split(r"[^\w-]", one)[0].replace("-", "_") for one in project["dependencies"]}
    used = {name.partition(".")[0] for module in all_modules() for name, _ in imports(module)}
    assert used - {*PACKAGES} - sys.stdlib_module_names - {*OPTIONAL} <= named


OPTIONAL = {"blake3": "the reader does without it, and takes longer"}
"""Libraries that a module uses only if they are installed."""


def test_the_reader_can_be_carried_away() -> None:
    """One file, which runs on a machine without dedupd."""
    (reader,) = (module for module in all_modules() if module.name == f"{READER}.reader")
    used = {name.partition(".")[0] for name, _ in imports(reader)}
    assert used - sys.stdlib_module_names - {*OPTIONAL} == {"xxhash", "zstandard"}
    others = [module for module in all_modules() if module.name.startswith(f"{READER}.")]
    assert others == [reader]


READER = "dedupd_reader"
"""Written by docs/design/format.md alone: it imports no other package, and none imports it."""

FLOORS = (
    READER,
    "dedupd_core.native",
    "dedupd_core",  # errors, units, fail points
    "dedupd_core.format",
    "dedupd_core.format.derived",
    "dedupd_core.format.cluster",
    "dedupd_core.system",
    "dedupd_core.system.tree",
    "dedupd_core.config",
    "dedupd_core.rados.cluster",
    "dedupd_core.rados",
    "dedupd_core.rados.upkeep",
    "dedupd_core.store.beside",
    "dedupd_core.store.container",
    "dedupd_core.store",
    "dedupd_core.store.recipe",
    "dedupd_core.index",
    "dedupd_core.rados.reading",
    "dedupd_core.stub",
    "dedupd_core.stores",
    "dedupd_core.volume",
    "dedupd_core.volume.enabling",
    "dedupd_core.deleted",
    "dedupd_core.replica",
    "dedupd_core.shared",
    "jobs.frame",
    "jobs.tree",
    "jobs.check",
    "jobs.repair",
    "jobs.scrub",
    "jobs.reconcile",
    "jobs.compact",
    "jobs.gc",
    "jobs.usage",
    "jobs.refine",
    "jobs.adopt",
    "jobs.optimize",
    "jobs.backup.tree",
    "jobs.backup",
    "jobs.cluster",
    "jobs",  # the way out, and rebuild
    "fuse_stub.mounts",
    "fuse_stub.files",
    "fuse_stub.policy",
    "fuse_stub.deleted",
    "fuse_stub.kernel",
    "fuse_stub.busy",
    "fuse_stub",
    "analysis.collection",
    "analysis",
    "analysis.report",
    "dedupd",
    "dedupd.service.systemd",
    "dedupd.service.notices",
    "dedupd.service.guard",
    "dedupd.service",
    "dedupd.service.web",
    "dedupd.cli",
    "dedupd.cli.cluster",
    "dedupd.cli.run",
    "dedupd.cli.store",
)
"""Every folder, from the ground up: a module imports from its own folder and from those below."""

APART = {"jobs", "fuse_stub", "analysis"}
"""Packages that know the core, and not each other."""


def floor(name: str) -> int | None:
    """The floor of a module or of a folder, None where it is not the product's."""
    if name.partition(".")[0] in ("tests", "benchmarks"):
        return len(FLOORS)
    folder = name if name in FLOORS else name.rpartition(".")[0]
    return FLOORS.index(folder) if folder in FLOORS else None


def upward_imports(module: Module) -> list[str]:
    mine = floor(module.name)
    assert mine is not None, module.name
    package = module.name.partition(".")[0]
    strangers = {READER, *(APART if package in APART else ())} - {package}
    return [
        f"{module.path}:{line}: {module.name} imports {name}"
        for name, line in imports(module)
        if (other := floor(name)) is not None
        and (other > mine or name.partition(".")[0] in strangers)
    ]


def test_imports_point_downwards() -> None:
    assert [found for module in all_modules() for found in upward_imports(module)] == []


def test_a_module_of_the_jobs_and_of_the_study_is_found_by_its_name() -> None:
    """A search by name finds one module: none is called after what several folders have."""
    for package in ("jobs", "analysis"):
        names = [path.name for path in (ROOT / package).rglob("*.py")]
        assert [name for name in set(names) - {"__init__.py"} if names.count(name) > 1] == []


def test_every_folder_has_its_floor() -> None:
    folders = {".".join(module.path.relative_to(ROOT).parent.parts) for module in all_modules()}
    assert folders | {"dedupd_core.native"} == set(FLOORS)


def test_no_module_imports_itself_by_way_of_others() -> None:
    waiting = {
        module.name: {name for name, _ in imports(module) if name != module.name}
        & {other.name for other in all_modules()}
        for module in all_modules()
    }
    while free := [name for name, needs in waiting.items() if not needs & waiting.keys()]:
        for name in free:
            del waiting[name]
    assert waiting == {}


OF_CLUSTERS = ("dedupd_core.rados.", "jobs.cluster.", "dedupd.cli.cluster.")
"""Folders of a store in a cluster, which all others do without."""


def test_one_line_alone_imports_what_is_of_clusters() -> None:
    found = {
        (module.name, name)
        for module in all_modules()
        if not f"{module.name}.".startswith(OF_CLUSTERS)
        for name, _ in imports(module)
        if f"{name}.".startswith(OF_CLUSTERS)
        and name != "jobs.cluster.reports"  # which needs nothing of them
    }
    assert found == {("dedupd_core.stores.registry", "dedupd_core.rados.reading.volume_store")}


def test_rooms_and_modules_are_small_enough_to_be_read() -> None:
    """``cli`` has one file a command, and ``queries`` one a figure."""
    rooms = {module.path.parent for module in all_modules()} - {ROOT / "dedupd" / "cli"}
    files = {
        room: len([p for p in room.iterdir() if p.is_file() and p.suffix != ".so"])
        for room in rooms
    }
    assert {str(room): n for room, n in files.items() if n > ROOM_FILES_MAX} == {}
    lines = {
        module.path: module.path.read_text().count("\n")
        for module in all_modules()
        if module.name != f"{READER}.reader"  # one file, so that it can be carried away
    }
    assert {str(path): n for path, n in lines.items() if n > MODULE_LINES_MAX} == {}


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("dedupd_core.stub.transition", "from jobs.tree.walk import walk"),
        ("dedupd_core.stub.transition", "def late():\n    import fuse_stub"),
        ("dedupd_core.stub.transition", "from dedupd.cli import common"),
        ("dedupd_core.stub.transition", "from dedupd import cli"),
        ("dedupd_core.stub.transition", "from .. import shared"),
        ("dedupd_core.store.writer", "from ..volume.commit import Commit"),
        (
            "dedupd_core.store.container.files",
            "from dedupd_core.store.writer import ContainerWriter",
        ),
        ("jobs.tree.walk", "import fuse_stub.process"),
        ("jobs.tree.walk", "import tests.support.lab"),
        ("jobs.frame.run", "from jobs.tree import walk"),
        ("fuse_stub.process", "from analysis.report import report"),
        ("fuse_stub.process", "from jobs.tree import walk"),
        ("analysis.report.study_report", "from jobs.tree import walk"),
        ("dedupd.service.service", "import dedupd.cli.main"),
        ("dedupd.service.service", "from dedupd.service.web import server"),
        ("dedupd.cli.restore", "from dedupd_reader import reader"),
        ("dedupd_reader.reader", "from dedupd_core.format import container"),
    ],
)
def test_an_import_that_points_upwards_is_found(name: str, source: str) -> None:
    assert upward_imports(parse(name, source))


@pytest.mark.parametrize(
    ("name", "source"),
    [
        (
            "dedupd_core.stub.transition",
            "from dedupd_core.system import disk\nimport os",
        ),
        ("dedupd_core.store.writer", "from ..format import container"),
        (
            "jobs.tree.walk",
            "from dedupd_core.volume.volume import Volume\nfrom jobs.frame import run",
        ),
        ("dedupd.cli.run.gc", "import jobs.tree.walk, fuse_stub.process, analysis, dedupd.service"),
    ],
)
def test_an_import_that_points_downwards_is_fine(name: str, source: str) -> None:
    assert upward_imports(parse(name, source)) == []


def test_the_folder_path_is_the_import_path() -> None:
    for module in all_modules():
        spec = importlib.util.find_spec(module.name)
        assert spec is not None and spec.origin is not None, module.name
        assert Path(spec.origin).resolve() == module.path, module.name


# --- the formats are pure ---------------------------------------------------------------------

PURE = {
    *("array", "base64", "bisect", "collections", "dataclasses", "enum", "functools", "hashlib"),
    *("itertools", "json", "math", "operator", "re", "string", "struct", "typing", "uuid"),
    *("urllib.parse", "xxhash", "zstandard"),
    *("dedupd_core.errors", "dedupd_core.units", "dedupd_core.native", "dedupd_core.format"),
}
"""What encoding and decoding may lean on."""

EFFECTS = set().union(*NATIVE_EFFECTS.values())
"""Of native code."""


def impurities(module: Module) -> list[str]:
    found = [
        f"{module.path}:{line}: imports {name}"
        for name, line in imports(module)
        if name.partition(".")[0] not in PURE and ".".join(name.split(".")[:2]) not in PURE
    ]
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Call) and called(node.func) in ("open", "print", "input"):
            found.append(f"{module.path}:{node.lineno}: calls {called(node.func)}")
        if isinstance(node, ast.Attribute) and node.attr in EFFECTS:
            found.append(f"{module.path}:{node.lineno}: uses {node.attr}")
    return found


def test_formats_do_no_input_or_output() -> None:
    formats = [module for module in all_modules() if module.name.startswith("dedupd_core.format")]
    assert len(formats) > 3
    assert [found for module in formats for found in impurities(module)] == []


@pytest.mark.parametrize(
    "source",
    [
        "import os",
        "from dedupd_core.system.disk import Disk",
        "from dedupd_core.system import files",
        "def f():\n    import socket",
        "open('x')",
        "from dedupd import native\nnative.system.syncfs(3)",
    ],
)
def test_input_or_output_in_a_format_is_found(source: str) -> None:
    assert impurities(parse("dedupd_core.format.sample", source))
