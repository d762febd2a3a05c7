"""All durable effects are the disk's: in Python, in native code, and where the two meet."""

import ast
import re
from collections.abc import Iterator

import pytest

from dedupd_core.failpoint import POINTS
from dedupd_core.system.disk import Disk
from tests.support.sources import (
    NATIVE_EFFECTS,
    NATIVES,
    ROOT,
    Module,
    all_modules,
    called,
    parse,
)

# --- durable effects are in disk.py -----------------------------------------------------------

NATIVE_FUNCTIONS = {
    submodule: {
        native.name
        for native in NATIVES
        if native.submodule == submodule and native.has_effect and not native.has_door
    }
    for submodule in NATIVE_EFFECTS
}
"""Of each submodule those that are effects by themselves, with no door between."""

REPORTS = "study"
"""The submodule that writes new files by names that users give, and nothing of a volume's."""


def is_native(found: str) -> bool:
    """Whether an effect is one of native code on a volume's files."""
    owner = found.rpartition(".")[0].rpartition(".")[2]
    return owner in NATIVE_FUNCTIONS and owner != REPORTS


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
    **NATIVE_FUNCTIONS,
}
METHODS = {"write_text", "write_bytes", "touch", "mkdir", "unlink", "rmdir", "rename", "replace"}
"""Of pathlib; ``replace`` and ``rename`` with one argument only, to tell them from str.replace."""
CREATING_FLAGS = {"O_CREAT", "O_TRUNC"}
"""Of os.open, wherever they are put together."""

MAKES_BYTES_DURABLE = "dedupd_core.system.disk"

ALLOWED = {
    # Derived state, and LMDB does the rest; what is truncated is a copy in memory.
    "dedupd_core.volume.catalog": {"os.makedirs", "os.unlink", "os.truncate", "O_CREAT"},
    "dedupd_core.volume.volume": {"O_CREAT"},  # lock files
    "dedupd_core.volume.transition_log": {
        "os.pwrite",
        "os.ftruncate",
    },  # a hint in a lock file, never synced
    "dedupd_core.volume.enabling.enable": {"O_CREAT"},  # lock files
    "dedupd_core.volume.enabling.probe": {"os.setxattr"},  # of a file of its own
    # A setting of the kernel, and a lock file in /run.
    "dedupd_core.system.processes": {"open for writing", "os.makedirs", "O_CREAT"},
}
"""Effects outside of ``disk.py``, each for a reason."""

SERVING = ("fuse_stub",)
"""Carries out what users ask of their own files; its durable steps on stubs go through the disk."""

REPORTING = ("analysis", "dedupd.cli", "dedupd.service", "dedupd_reader")
"""Write reports, sockets, temporary volumes and extracted files, and nothing that a volume consists
of."""


def aliases(module: Module) -> dict[str, str]:
    """Local name → real name of everything that is imported under a name of its own."""
    names = {}
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            names.update({a.asname: a.name for a in node.names if a.asname})
        elif isinstance(node, ast.ImportFrom):
            base = (node.module or "").rpartition(".")[2]
            for alias in node.names:
                inner = alias.name if node.module == "dedupd_core" else f"{base}.{alias.name}"
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
        for module in all_modules()
        if module.name != MAKES_BYTES_DURABLE
        for found, line in effects(module)
        if is_native(found) or not module.name.startswith((*SERVING, *REPORTING))
        if found not in ALLOWED.get(module.name, ())
    ]
    assert wrong == []


def test_every_exception_is_needed() -> None:
    used = {module.name: {found for found, _ in effects(module)} for module in all_modules()}
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
        "from dedupd_core.native.system import syncfs\nsyncfs(3)",
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


# --- native code has its effects by the door --------------------------------------------------


def test_a_native_function_that_takes_the_door_says_what_for() -> None:
    owners = [native for native in NATIVES if native.has_door and "." not in native.name]
    assert len(owners) > 3
    assert [native for native in owners if not native.has_effect] == []


def undoored(module: Module) -> list[str]:
    """Calls of native functions with effects that are not given a disk's door."""
    doored = {
        f"native.{native.submodule}.{native.name}"
        for native in NATIVES
        if native.has_door and native.has_effect
    }
    return [
        f"{module.path}:{node.lineno}: {called(node.func)}"
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Call)
        and called(node.func) in doored
        and not any(isinstance(one, ast.Attribute) and one.attr == "door" for one in node.args)
    ]


def test_native_code_is_always_given_the_door_of_a_disk() -> None:
    assert [found for module in all_modules() for found in undoored(module)] == []


def test_a_native_call_with_no_door_is_found() -> None:
    source = "native.commit.begin(3, file, files.fields, None)"
    assert undoored(parse("jobs.sample", source))
    assert not undoored(parse("jobs.sample", source.replace("None)", "disk.door)")))


def test_no_module_imports_a_native_effect_under_a_name_of_its_own() -> None:
    """Its calls would not be recognised."""
    effects = {f"dedupd_core.native.{submodule}" for submodule in NATIVE_EFFECTS}
    imported = {
        f"{module.path}:{node.lineno}"
        for module in all_modules()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ImportFrom) and node.module in effects
        if any(alias.name in NATIVE_EFFECTS[node.module.rpartition(".")[2]] for alias in node.names)
    }
    assert imported == set()


SOURCES = {
    str(path.relative_to(ROOT / "native/src")): path.read_text(encoding="utf-8").partition(
        "#[cfg(test)]"
    )[0]
    for path in sorted((ROOT / "native/src").rglob("*.rs"))
}
"""Native code without its tests."""

CHANGES = re.compile(
    r"libc::(?:SYS_)?(?:"
    r"p?write\w*|fallocate\w*|posix_fallocate\w*|[fl]?setxattr|[fl]?removexattr|fsync|fdatasync"
    r"|sync\w*|rename\w*|unlink\w*|link\w*|symlink\w*|mkdir\w*|mknod\w*|mkfifo\w*|rmdir|creat\w*"
    r"|f?truncate\w*|l?utime\w*|futime\w*|[fl]?chown\w*|[fl]?chmod\w*|copy_file_range|sendfile\w*"
    r"|splice|FICLONE\w*|O_CREAT|O_TRUNC|O_TMPFILE|MAP_SHARED)\b"
    r"|\.(?:write_all_at|set_len|sync_all|sync_data|set_permissions|set_modified)\("
    r"|\.(?:write|append|truncate|create|create_new)\(true\)"
    r"|\b(?:mkdirat|mknodat|mkfifoat|linkat|symlinkat|unlinkat|renameat|renameat_with|chownat"
    r"|chmodat|utimensat|futimens|ftruncate|fallocate|fchmod|fchown|pwritev?|fdatasync|fsync"
    r"|[fl]?setxattr|[fl]?removexattr|copy_file_range)\("
    r"|OFlags::(?:CREATE|TRUNC|TMPFILE)\b"
    r"|File::(?:create|options)\w*|\bfs::(?:write|rename|remove_|create_dir|copy|hard_link|set_)"
)
"""System calls, flags and functions of the standard library that change what is on a disk."""

CHANGING = {
    "system/effects.rs": "by the door",
    "mount/requests/effects.rs": "what users ask of their own files",
}
"""The only native sources that do."""


def test_native_code_changes_the_disk_in_few_places_only() -> None:
    assert {path for path, source in SOURCES.items() if CHANGES.search(source)} == set(CHANGING)


@pytest.mark.parametrize(
    "source",
    [
        "libc::fsetxattr(fd, name, data, length, 0)",
        "libc::syscall(libc::SYS_renameat2, a)",
        "libc::pwrite64(fd, data, length, 0)",
        "file.write_all_at(&data, 0)?",
        "file.sync_all()?",
        "File::create(path)",
        "OpenOptions::new().read(true).write(true).open(path)",
        "std::fs::rename(a, b)",
        "flags | libc::O_CREAT",
        "rustix::fs::unlinkat(parent, name, flags)?",
        "rustix::io::pwrite(&file, data, offset)",
        "OFlags::RDWR | OFlags::CREATE",
    ],
)
def test_a_native_change_of_the_disk_is_found(source: str) -> None:
    assert CHANGES.search(source)


def test_only_the_door_makes_native_code_have_effects_by_itself() -> None:
    """Others take what the door gives them."""
    users = {path for path, source in SOURCES.items() if "SystemCalls" in source}
    assert users == {"system/effects.rs", "python/support/door.rs"}
    makers = {p: re.findall(r"Door::new\((.*?)\)", source) for p, source in SOURCES.items()}
    assert {argument for arguments in makers.values() for argument in arguments} == {"door"}


def test_an_effect_by_itself_is_a_function_for_the_disk() -> None:
    """``effects::punch_hole`` and the like: Python has each by the same name, and nothing else."""
    free = set(re.findall(r"^pub fn (\w+)", SOURCES["system/effects.rs"], re.MULTILINE))
    assert free == NATIVE_FUNCTIONS["system"]
    names = re.compile(rf"\b(?:{'|'.join(sorted(free))})\b")
    users = {path for path, source in SOURCES.items() if names.search(source)}
    assert users == {"system/effects.rs", "python/system.rs", "python/mod.rs"}
    functions = SOURCES["python/system.rs"].split("#[pyfunction]")
    assert {tuple(set(names.findall(function))) for function in functions} - {()} == {
        (name,) for name in free
    }


def _methods_of_effects() -> set[str]:
    body = SOURCES["system/effects.rs"].partition("pub trait Effects")[2].partition("\n}")[0]
    return set(re.findall(r"^    fn (\w+)", body, re.MULTILINE))


def test_each_effect_of_native_code_is_one_of_the_disk() -> None:
    methods = _methods_of_effects() - {"reach", "threads"}
    assert methods <= {name for name in vars(Disk) if not name.startswith("_")}
    asked = set(re.findall(r'\("(\w+)", ', SOURCES["python/support/door.rs"]))
    assert asked == methods | {"reach"}


def test_fail_points_of_native_code_are_defined() -> None:
    named = {
        dict(re.findall(r'const (\w+): &str = "(.+?)";', source))[name]
        for source in SOURCES.values()
        for name in re.findall(r"\.reach\(([A-Z_]+)\)", source)
    }
    assert len(named) == 5
    assert named <= POINTS.keys()
