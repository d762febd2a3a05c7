"""Each test that a hostile scenario names is there."""

import ast

from tests.hostile.scenarios import SCENARIOS, scenario_of
from tests.support.sources import ROOT


def test_every_scenario_has_its_tests() -> None:
    for prefixes in SCENARIOS.values():
        for prefix in prefixes:
            path, _, name = prefix.partition("::")
            tree = ast.parse((ROOT / path).read_text())
            tests = {one.name for one in tree.body if isinstance(one, ast.FunctionDef)}
            assert name in tests if name else any(one.startswith("test") for one in tests)


def test_the_closest_name_decides() -> None:
    file = "tests/volume/test_enable_in_use.py"
    assert scenario_of(f"{file}::test_a_subvolume_that_appears_later_is_counted[x]") == (
        "subvolumes inside"
    )
    assert scenario_of(f"{file}::test_the_system_itself_is_no_volume[/]") == (
        "enabling a directory in use"
    )
    assert scenario_of("tests/test_units.py::test_a_size") is None
