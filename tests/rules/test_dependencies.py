"""All crates come from crates.io, with the checksum of their content (`make audit` checks more)."""

import tomllib
from pathlib import Path

import pytest

from tests.support.sources import ROOT

LOCKS = sorted(ROOT.glob("native/**/Cargo.lock"))
REGISTRY = "registry+https://github.com/rust-lang/crates.io-index"
OWN = {"dedupd-native", "dedupd-fuzz", "dedupd-models"}


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.parent.name)
def test_crates_come_from_the_registry(lock: Path) -> None:
    packages = tomllib.loads(lock.read_text(encoding="utf-8"))["package"]
    assert packages
    others = {
        package["name"]
        for package in packages
        if package.get("source") != REGISTRY or "checksum" not in package
    }
    assert others <= OWN
