"""Scenarios of :mod:`tests.vm.guest` on the kernels of Debian, each in a virtual machine.

One boot per kernel runs all scenarios. ``DEDUPD_VM_KERNELS`` selects suites of Debian, and
``DEDUPD_VM_SCENARIOS`` selects scenarios by an expression for ``pytest -k``.
"""

import ast
import os
import shutil
from functools import cache
from pathlib import Path

import pytest

from tests.support.sources import ROOT
from tests.vm.guest.kernel_features import NOT_IN_THIS_KERNEL
from tests.vm.machine import QEMU, Result, boot
from tests.vm.packages import SUITES, kernel

pytestmark = [pytest.mark.vm, pytest.mark.timeout(0)]

GUEST = Path(__file__).with_name("guest")
CHOSEN = os.environ.get("DEDUPD_VM_KERNELS", "").split() or SUITES
ONLY = os.environ.get("DEDUPD_VM_SCENARIOS", "")
LAST = "selinux.py"
"""Its policy stays loaded until the machine stops."""


def _scenario_files() -> list[Path]:
    files = sorted(GUEST.glob("*.py"), key=lambda file: (file.name == LAST, file.name))
    return [file for file in files if _tests_of(file)]


def _tests_of(file: Path) -> list[str]:
    tree = ast.parse(file.read_text())
    functions = [one.name for one in tree.body if isinstance(one, ast.FunctionDef)]
    return [name for name in functions if name.startswith("test_")]


SCENARIOS = [f"{file.stem}::{test}" for file in _scenario_files() for test in _tests_of(file)]


@cache
def _results_on(suite: str) -> dict[str, Result] | Exception:
    """Boot a kernel, once: an error is the result of all its scenarios."""
    files = [str(file.relative_to(ROOT)) for file in _scenario_files()]
    try:
        return boot(kernel(suite), [*(["-k", ONLY] if ONLY else []), *files])
    except Exception as error:
        return error


@pytest.mark.parametrize("suite", CHOSEN)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_scenario(suite: str, scenario: str) -> None:
    if shutil.which(QEMU) is None:
        pytest.skip(f"{QEMU} is not installed (Debian: qemu-system-x86)")
    module, _, test = scenario.partition("::")
    path = f"{GUEST.relative_to(ROOT)}/{module}.py"
    results = _results_on(suite)
    if isinstance(results, Exception):
        raise results
    assert path not in results, results[path].text  # it could not be imported
    mine = {
        name: result
        for name, result in results.items()
        if name.partition("[")[0] == f"{path}::{test}"
    }
    if ONLY and not mine:
        pytest.skip("not selected")
    assert mine, f"did not run: see {ROOT}/build/vm/runs/{suite}/console"
    failed = [f"{name}:\n{one.text}" for name, one in mine.items() if one.outcome == "failed"]
    assert not failed, "\n\n".join(failed)
    skipped = {name: one.text for name, one in mine.items() if one.outcome == "skipped"}
    strange = [text for text in skipped.values() if not text.startswith(NOT_IN_THIS_KERNEL)]
    assert not strange, f"skipped for another reason than the kernel: {strange}"
    if skipped:
        names = ", ".join(name.rpartition("::")[2] for name in skipped)
        passed = len(mine) - len(skipped)
        pytest.skip(f"{names}: {'; '.join({*skipped.values()})} ({passed} others passed)")
