"""Nothing hides an attribute that does not exist from mypy, but for what is listed here."""

import ast
import re
from collections.abc import Iterator

from tests.support.sources import Module, all_modules, called, parse

CASTS = {
    ("dedupd_core.rados.cluster.binding", "Binding"): "Debian's python3-rados has no types",
    ("fuse_stub.kernel.request_pump", "trio.abc.Instrument"): (
        "trio takes any object with such methods, and a native class cannot be an ABC's child"
    ),
}
"""Casts: the module and the type, and why mypy cannot know it."""

IGNORED = {
    ("analysis.database", "arg-type"): "each class of rows is a dataclass",
    ("dedupd_core.format.table_columns", "assignment"): "no hash: typeshed declares a method",
    (
        "dedupd_core.rados.cluster.connection",
        "return-value",
    ): "each place of the list is filled by then",
    ("fuse_stub.kernel.request_pump", "attr-defined"): "a private function of pyfuse3 is replaced",
}
"""Errors of mypy that a line ignores."""

CALLS = ("call", "call_for_fds", "call_patiently")

ANY = {
    "a value of JSON, which its reader checks": (
        *("dedupd.cli.cluster.metrics._found", "dedupd.cli.common.answer"),
        *("dedupd.cli.common.print_json", "dedupd.cli.common.show_or_json"),
        "dedupd.service.client.exchange",
        *(f"dedupd.service.client.ServiceClient.{name}" for name in ("_call", "delete", "get")),
        *("dedupd.service.client.ServiceClient.post", "dedupd.service.history._decoded"),
        *(
            "dedupd.service.web.server._json",
            "dedupd_core.store.recipe.recipe_writer._rows_from_json",
        ),
        "dedupd_core.store.recipe.recipe_writer.RecipeProgress.from_json",
        "dedupd_core.store.recipe.recipe_writer.RecipeProgress.to_json",
        *(f"dedupd_core.volume.catalog.Catalogue.{name}" for name in ("get", "latest")),
        "dedupd_core.volume.catalog.Catalog.put",
        "dedupd_core.volume.catalog._decoded",
        *(f"dedupd_core.volume.hints.Hints.{name}" for name in ("get", "latest", "put")),
        "dedupd_core.volume.partition_map.PartitionMap.from_json",
    ),
    "arguments of a request, which JSON carries": (
        *(f"dedupd_core.system.control_socket.ControlClient.{name}" for name in CALLS),
        *("dedupd_core.volume.restore._asked", "jobs.optimize.busy_files.BusyFiles._call"),
    ),
    "a value of a key, of which each has a type of its own": (
        *("dedupd_core.config.config_values", "dedupd_core.config.config_values.ValueFormat"),
        *(
            "dedupd_core.config.config_values.parsed",
            "dedupd_core.config.policy_file._with_reasons",
        ),
        *("dedupd_core.config.profiles.plain", "fuse_stub.mounts.mount_options"),
    ),
    "click's own type, or a decorator of click": (
        *("dedupd.cli.common._Named.convert", "dedupd.cli.job_limits"),
        *("dedupd.cli.lazy_command.LazyGroup.__init__", "dedupd.cli.main._Commands.invoke"),
        *("dedupd.cli.main._Commands.main", "dedupd.cli.via_service"),
        "dedupd.cli.via_service._through_service.decorate.wrapper",
        "dedupd.cli.via_service.job_command.decorate",
    ),
    "a number, a column or an option of numpy, DuckDB or matplotlib": (
        *("analysis.collection.chunk_log", "analysis.collection.log_lanes.Stream"),
        "analysis.collection.log_lanes.WholeFiles.__init__",
        *(f"analysis.collection.log_lanes.{name}" for name in ("_append", "_joined")),
        *("analysis.database.Database.execute", "analysis.database.Database.set"),
        *("analysis.report.plots._percent", "analysis.report.study_report._tables"),
    ),
    "a class or function by its name, whose parameters each caller knows": (
        *("jobs.specs.Strategies.of", "jobs.specs.job_of"),
    ),
    "a coroutine, whose other two types do not matter": ("fuse_stub.errors.answers",),
    "a call by native code; test_door.py makes each": (
        "dedupd_core.system.disk.Disk._native_step",
    ),
}
"""Functions and modules that have ``Any`` other than as the values of a JSON object (``dict[str,
Any]``), by the reason."""


def places(module: Module) -> Iterator[tuple[str, ast.AST]]:
    """Each node with the name of the function, method or module that it is in."""

    def inner(node: ast.AST, name: str) -> Iterator[tuple[str, ast.AST]]:
        for child in ast.iter_child_nodes(node):
            place = name
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                place = f"{name}.{child.name}"
            yield place, child
            yield from inner(child, place)

    yield from inner(module.tree, module.name)


def casts(module: Module) -> Iterator[tuple[str, str]]:
    for _, node in places(module):
        if isinstance(node, ast.Call) and called(node.func) in ("cast", "typing.cast"):
            yield module.name, ast.unparse(node.args[0])


def ignored(name: str, source: str) -> Iterator[tuple[str, str]]:
    for match in re.finditer(r"#\s*type:\s*ignore(?:\[([\w, -]+)\])?", source):
        yield name, match[1] or "everything"


OBJECTS = {"dict", "Mapping"}


def anys(module: Module) -> Iterator[str]:
    """Where ``Any`` stands for something else than the values of a JSON object."""
    of_objects = {
        id(element)
        for _, node in places(module)
        if isinstance(node, ast.Subscript) and ast.unparse(node.value) in OBJECTS
        for element in ast.iter_child_nodes(node.slice)
    }
    for place, node in places(module):
        if isinstance(node, ast.Name) and node.id == "Any" and id(node) not in of_objects:
            yield place


def test_a_cast_is_listed_with_its_reason() -> None:
    assert {one for module in all_modules() for one in casts(module)} == {*CASTS}


def test_an_ignored_error_is_listed_with_its_reason() -> None:
    found = {
        one
        for module in all_modules()
        for one in ignored(module.name, module.path.read_text(encoding="utf-8"))
    }
    assert found == {*IGNORED}


def test_any_is_listed_with_its_reason() -> None:
    listed = {place for places_of_reason in ANY.values() for place in places_of_reason}
    assert {place for module in all_modules() for place in anys(module)} == listed


def reports(module: Module) -> Iterator[str]:
    """Public functions that answer with a JSON object whose keys no type names."""
    for place, node in places(module):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.returns is not None:
            has_type = ast.unparse(node.returns) not in ("dict[str, Any]", "dict[str, object]")
            if not (has_type or node.name.startswith("_") or node.name == "to_json"):
                yield place


def test_a_report_of_a_job_is_a_dataclass() -> None:
    """Its keys have types and docstrings; ``to_json`` makes the public JSON of it."""
    of_jobs = [module for module in all_modules() if module.name.startswith("jobs.")]
    assert [place for module in of_jobs for place in reports(module)] == []
    example = (
        "def f() -> dict[str, Any]: ...\nclass C:\n    def to_json(self) -> dict[str, Any]: ..."
    )
    assert [*reports(parse("example", example))] == ["example.f"]


def test_what_hides_a_type_is_found() -> None:
    source = (
        "def f(value: Any, row: dict[str, Any]) -> list[Any]:\n"
        "    return cast(Thing, value)  # type: ignore[attr-defined]\n"
        "class C:\n"
        "    def g(self, **changes: Any) -> dict[Any, Any]: ...\n"
    )
    module = parse("example", source)
    assert [*casts(module)] == [("example", "Thing")]
    assert [*ignored("example", source)] == [("example", "attr-defined")]
    assert {*anys(module)} == {"example.f", "example.C.g"}
