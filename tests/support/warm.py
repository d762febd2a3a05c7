"""Imported by the process of which others are forked (:mod:`tests.support.forks`): the program, and
what tests have forks do."""

import gc
import importlib
import pkgutil

import pytest  # noqa: F401  tests patch the program within forks

import dedupd.cli

for _package in (dedupd.cli,):
    for _module in pkgutil.walk_packages(_package.__path__, f"{_package.__name__}."):
        importlib.import_module(_module.name)
for _name in (
    "dedupd.service.service",
    "fuse_stub.process",
    "fuse_stub.snapshot",
    "tests.support.cluster_crashes",
    "tests.support.mounts",
    "tests.support.service",
):
    importlib.import_module(_name)

# A collection of garbage in a fork would write to, and so copy, the memory of all that is imported.
gc.collect()
gc.freeze()
