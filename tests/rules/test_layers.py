"""The layers hold: imports point downwards, and durable effects are in one place."""

import ast
import importlib.util
import re
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("dedupd", "jobs", "fuse_stub", "analysis")


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


MODULES = list(modules())


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
    used = {name.partition(".")[0] for module in MODULES for name, _ in imports(module)}
    assert used - {*PACKAGES} - sys.stdlib_module_names <= named


FLOORS = (
    "dedupd.native",
    "dedupd",  # errors, units, fail points
    "dedupd.format",
    "dedupd.system",
    "dedupd.config",
    "dedupd.store.container",
    "dedupd.store",
    "dedupd.store.recipe",
    "dedupd.index",
    "dedupd.stub",
    "dedupd.volume",
    "jobs.frame",
    "jobs.tree",
    "jobs.check",
    "jobs.repair",
    "jobs.scrub",
    "jobs.gc",
    "jobs.reconcile",
    "jobs.compact",
    "jobs.optimize",
    "jobs",  # the way out, and rebuild
    "fuse_stub.kernel",
    "fuse_stub.mounts",
    "fuse_stub.files",
    "fuse_stub",
    "analysis.collection",
    "analysis",
    "analysis.report",
    "dedupd.service.systemd",
    "dedupd.service",
    "dedupd.service.web",
    "dedupd.cli",
    "dedupd.cli.run",
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
    strangers = APART - {package} if package in APART else set()
    return [
        f"{module.path}:{line}: {module.name} imports {name}"
        for name, line in imports(module)
        if (other := floor(name)) is not None
        and (other > mine or name.partition(".")[0] in strangers)
    ]


def test_imports_point_downwards() -> None:
    assert [found for module in MODULES for found in upward_imports(module)] == []


def test_every_folder_has_its_floor() -> None:
    folders = {".".join(module.path.relative_to(ROOT).parent.parts) for module in MODULES}
    assert folders | {"dedupd.native"} == set(FLOORS)


def test_no_module_imports_itself_by_way_of_others() -> None:
    waiting = {
        module.name: {name for name, _ in imports(module) if name != module.name}
        & {other.name for other in MODULES}
        for module in MODULES
    }
    while free := [name for name, needs in waiting.items() if not needs & waiting.keys()]:
        for name in free:
            del waiting[name]
    assert waiting == {}


ROOM_FILES_MAX = 16
MODULE_LINES_MAX = 450


def test_rooms_and_modules_are_small_enough_to_be_read() -> None:
    """``cli`` has one file a command, and ``queries`` one a figure."""
    rooms = {module.path.parent for module in MODULES} - {ROOT / "dedupd" / "cli"}
    files = {
        room: len([p for p in room.iterdir() if p.is_file() and p.suffix != ".so"])
        for room in rooms
    }
    assert {str(room): n for room, n in files.items() if n > ROOM_FILES_MAX} == {}
    lines = {module.path: module.path.read_text().count("\n") for module in MODULES}
    assert {str(path): n for path, n in lines.items() if n > MODULE_LINES_MAX} == {}


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("dedupd.stub.transition", "from jobs.tree.walk import walk"),
        ("dedupd.stub.transition", "def late():\n    import fuse_stub"),
        ("dedupd.stub.transition", "from dedupd.cli import common"),
        ("dedupd.stub.transition", "from dedupd import cli"),
        ("dedupd.stub.transition", "from .. import service"),
        ("dedupd.store.writer", "from ..cli.common import exits"),
        ("dedupd.store.container.files", "from dedupd.store.writer import ContainerWriter"),
        ("jobs.tree.walk", "import fuse_stub.process"),
        ("jobs.tree.walk", "import tests.support.lab"),
        ("jobs.frame.run", "from jobs.tree import walk"),
        ("fuse_stub.process", "from analysis.report import report"),
        ("fuse_stub.process", "from jobs.tree import walk"),
        ("analysis.report.report", "from jobs.tree import walk"),
        ("dedupd.service.service", "import dedupd.cli.main"),
        ("dedupd.service.service", "from dedupd.service.web import server"),
    ],
)
def test_an_import_that_points_upwards_is_found(name: str, source: str) -> None:
    assert upward_imports(parse(name, source))


@pytest.mark.parametrize(
    ("name", "source"),
    [
        (
            "dedupd.stub.transition",
            "from dedupd.system import disk\nimport os",
        ),
        ("dedupd.store.writer", "from ..format import container"),
        ("jobs.tree.walk", "from dedupd.volume.volume import Volume\nfrom jobs.frame import run"),
        ("dedupd.cli.run.gc", "import jobs.tree.walk, fuse_stub.process, analysis, dedupd.service"),
    ],
)
def test_an_import_that_points_downwards_is_fine(name: str, source: str) -> None:
    assert upward_imports(parse(name, source)) == []


def test_the_folder_path_is_the_import_path() -> None:
    for module in MODULES:
        spec = importlib.util.find_spec(module.name)
        assert spec is not None and spec.origin is not None, module.name
        assert Path(spec.origin).resolve() == module.path, module.name


# --- the formats are pure ---------------------------------------------------------------------

PURE = {
    *("array", "base64", "bisect", "collections", "dataclasses", "enum", "functools", "hashlib"),
    *("itertools", "json", "math", "operator", "re", "string", "struct", "typing", "uuid"),
    *("xxhash", "zstandard"),
    *("dedupd.errors", "dedupd.units", "dedupd.native", "dedupd.format"),
}
"""What encoding and decoding may lean on."""

NATIVE_EFFECTS = {"syncfs", "punch_hole", "copy_range", "fiemap", "ioctl"}


def impurities(module: Module) -> list[str]:
    found = [
        f"{module.path}:{line}: imports {name}"
        for name, line in imports(module)
        if name.partition(".")[0] not in PURE and ".".join(name.split(".")[:2]) not in PURE
    ]
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Call) and called(node.func) in ("open", "print", "input"):
            found.append(f"{module.path}:{node.lineno}: calls {called(node.func)}")
        if isinstance(node, ast.Attribute) and node.attr in NATIVE_EFFECTS:
            found.append(f"{module.path}:{node.lineno}: uses {node.attr}")
    return found


def test_formats_do_no_input_or_output() -> None:
    formats = [module for module in MODULES if module.name.startswith("dedupd.format")]
    assert len(formats) > 3
    assert [found for module in formats for found in impurities(module)] == []


@pytest.mark.parametrize(
    "source",
    [
        "import os",
        "from dedupd.system.disk import Disk",
        "from dedupd.system import files",
        "def f():\n    import socket",
        "open('x')",
        "from dedupd import native\nnative.system.syncfs(3)",
    ],
)
def test_input_or_output_in_a_format_is_found(source: str) -> None:
    assert impurities(parse("dedupd.format.sample", source))


# --- durable effects are in disk.py -----------------------------------------------------------

EFFECTS = {
    "os": {
        *("rename", "renames", "replace", "unlink", "remove", "rmdir", "removedirs", "link"),
        *("symlink", "mkdir", "makedirs", "mknod", "mkfifo", "truncate", "ftruncate"),
        *("fsync", "fdatasync", "sync", "write", "writev", "pwrite", "pwritev", "sendfile"),
        *("copy_file_range", "splice", "posix_fallocate", "setxattr", "removexattr", "utime"),
        *("chmod", "fchmod", "lchmod", "chown", "fchown", "lchown"),
    },
    "shutil": {
        *("rmtree", "move", "copy", "copy2", "copyfile", "copyfileobj", "copymode", "copystat"),
        *("copytree", "chown"),
    },
    "system": {"syncfs", "punch_hole"},
}
METHODS = {"write_text", "write_bytes", "touch", "mkdir", "unlink", "rmdir", "rename", "replace"}
"""Of pathlib; ``replace`` and ``rename`` with one argument only, to tell them from str.replace."""
CREATING_FLAGS = {"O_CREAT", "O_TRUNC"}
"""Of os.open, wherever they are put together."""

MAKES_BYTES_DURABLE = "dedupd.system.disk"

ALLOWED = {
    # Derived state, and LMDB does the rest.
    "dedupd.volume.catalog": {"os.makedirs", "shutil.rmtree", "os.posix_fallocate", "O_CREAT"},
    "dedupd.volume.volume": {"O_CREAT"},  # lock files
    "dedupd.volume.transition_log": {
        "os.pwrite",
        "os.ftruncate",
    },  # a hint in a lock file, never synced
    "dedupd.volume.enable": {"O_CREAT"},  # lock files
    "dedupd.volume.probe": {"os.setxattr"},  # of a file of its own
}
"""Effects outside of ``disk.py``, each for a reason."""

SERVING = ("fuse_stub",)
"""Carries out what users ask of their own files; its durable steps on stubs go through the disk."""

REPORTING = ("analysis", "dedupd.cli", "dedupd.service")
"""Write reports, sockets and temporary volumes, and nothing that a volume consists of."""


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


def aliases(module: Module) -> dict[str, str]:
    """Local name → real name of everything that is imported under a name of its own."""
    names = {}
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            names.update({a.asname: a.name for a in node.names if a.asname})
        elif isinstance(node, ast.ImportFrom):
            base = (node.module or "").rpartition(".")[2]
            for alias in node.names:
                inner = alias.name if node.module == "dedupd" else f"{base}.{alias.name}"
                names[alias.asname or alias.name] = inner
    return names


def effect(call: ast.Call, names: dict[str, str]) -> str:
    """The durable effect of a call, as ``os.rename``; empty where it has none."""
    function = called(call.func)
    head, dot, tail = function.partition(".")
    function = f"{names.get(head, head)}{dot}{tail}" if head else function
    owner, _, name = function.rpartition(".")
    if name in EFFECTS.get(owner.rpartition(".")[2], ()):
        return function
    if function in ("open", "io.open", "os.fdopen") or name == "open":
        # The mode is the second argument of open(), and the first of a path's method.
        modes = [*call.args[:2], *(k.value for k in call.keywords if k.arg == "mode")]
        return "open for writing" if any(map(is_write_mode, modes)) else ""
    if function.startswith(".") and name in METHODS and owner == "":
        arguments = len(call.args) + len(call.keywords)
        return function if name not in ("rename", "replace") or arguments == 1 else ""
    return ""


def is_write_mode(node: ast.expr) -> bool:
    if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
        return False
    letters = set(node.value)
    return letters <= set("rwaxbt+") and bool(letters & set("wax+")) and len(node.value) <= 3


def effects(module: Module) -> Iterator[tuple[str, int]]:
    """(effect, line) of everything in a module that changes what is on the disk."""
    names = aliases(module)
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Call) and (found := effect(node, names)):
            yield found, node.lineno
        elif isinstance(node, ast.Attribute) and node.attr in CREATING_FLAGS:
            yield node.attr, node.lineno


def test_only_the_disk_has_durable_effects() -> None:
    wrong = [
        f"{module.path}:{line}: {found}"
        for module in MODULES
        if module.name != MAKES_BYTES_DURABLE and not module.name.startswith((*SERVING, *REPORTING))
        for found, line in effects(module)
        if found not in ALLOWED.get(module.name, ())
    ]
    assert wrong == []


def test_no_exception_is_kept_that_nobody_needs() -> None:
    used = {module.name: {found for found, _ in effects(module)} for module in MODULES}
    assert {name: sorted(ALLOWED[name] - used.get(name, set())) for name in ALLOWED} == {
        name: [] for name in ALLOWED
    }


@pytest.mark.parametrize(
    "source",
    [
        "import os\nos.rename(a, b)",
        "import os as system\nsystem.unlink(a)",
        "from os import fsync\nfsync(3)",
        "from os import ftruncate as cut\ncut(3, 0)",
        "import os\nflags = os.O_RDWR | os.O_CREAT\nos.open(p, flags)",
        "import os\ndef f(fd):\n    return [os.pwrite(fd, b'', 0) for _ in range(2)]",
        "import shutil\nshutil.rmtree(p)",
        "from dedupd import native\nnative.system.punch_hole(3, 0, 1)",
        "from dedupd.native.system import syncfs\nsyncfs(3)",
        "open(p, 'w')",
        "open(p, mode='r+b')",
        "(base / 'x').write_text('')",
        "(base / 'x').unlink()",
        "(base / 'x').rename(y)",
    ],
)
def test_a_durable_effect_is_found(source: str) -> None:
    assert list(effects(parse("jobs.sample", source)))


@pytest.mark.parametrize(
    "source",
    [
        "disk.rename(a, b'x', c, b'y')",
        "import os\nos.open(p, os.O_RDONLY)",
        "open(p)",
        "open(p, 'rb')",
        "open(p, encoding='ascii')",
        "'a'.strip().replace('a', 'b')",
    ],
)
def test_what_has_no_durable_effect_is_fine(source: str) -> None:
    assert list(effects(parse("jobs.sample", source))) == []
