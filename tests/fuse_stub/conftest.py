"""On which way the requests of the mounts of a test come."""

from collections.abc import Iterator

import pytest

from tests.support.ways import DEVICE, RING, WAY, has_ring
from tests.support.ways import way as default_way

ON_BOTH_WAYS = {
    "test_direct_writes",
    "test_idmapped_mounts",
    "test_inode_flags",
    "test_line",
    "test_mapped_writes",
    "test_namespace",
    "test_native_stubs",
    "test_plain_files",
    "test_ranges",
    "test_refused_writes",
    "test_reserved_name",
    "test_reserved_blocks",
    "test_overflow_readers",
}
"""Modules whose tests take both, whatever was asked for."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    says_so = any("way" in mark.args[0] for mark in metafunc.definition.iter_markers("parametrize"))
    if metafunc.module.__name__.rpartition(".")[2] in ON_BOTH_WAYS and not says_so:
        metafunc.parametrize("way", [DEVICE, RING], indirect=True, scope="module")


@pytest.fixture(scope="module", autouse=True)
def way(request: pytest.FixtureRequest) -> Iterator[str]:
    asked: str = getattr(request, "param", default_way())
    if asked == RING and not has_ring():
        pytest.skip("no FUSE over io_uring here")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(WAY, asked)
        yield asked
