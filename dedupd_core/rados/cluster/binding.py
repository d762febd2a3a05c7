"""Debian's ``python3-rados``, imported only when a store in a cluster is opened."""

import importlib.machinery
import importlib.util
import sys
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Protocol, cast

from dedupd_core.errors import UsageError

PLACES = ("/usr/lib/python3/dist-packages",)
"""The directory in Debian. The program's environment does not include it, and only this one module
is imported from it."""


class WriteOp(Protocol):
    """Steps on one object that happen together, or not at all."""

    def new(self, exclusive: int) -> None: ...
    def write_full(self, data: bytes) -> None: ...
    def omap_cmp(self, key: str, value: str, comparison: int) -> None: ...
    def assert_version(self, version: int) -> None: ...
    def execute(self, cls: str, method: str, data: bytes) -> None: ...
    def rm_xattr(self, name: str) -> None: ...
    def remove(self) -> None: ...


class ReadOp(Protocol):
    """Questions about one object, which are answered together. It has no methods of its own."""


class ListedObject(Protocol):
    """An object in a listing."""

    key: str


class Completion(Protocol):
    """The completion of an asynchronous operation."""

    def wait_for_complete(self) -> None: ...
    def get_return_value(self) -> int: ...


class Ioctx(Protocol):
    """A pool and namespace, used by one thread."""

    def create_write_op(self) -> WriteOp: ...
    def release_write_op(self, op: WriteOp) -> None: ...
    def operate_write_op(self, op: WriteOp, oid: str) -> None: ...
    def operate_aio_write_op(self, op: WriteOp, oid: str) -> Completion: ...
    def create_read_op(self) -> ReadOp: ...
    def release_read_op(self, op: ReadOp) -> None: ...
    def operate_read_op(self, op: ReadOp, oid: str) -> None: ...
    def set_omap(self, op: WriteOp, keys: Sequence[str], values: Sequence[bytes]) -> None: ...
    def remove_omap_keys(self, op: WriteOp, keys: Sequence[str]) -> None: ...
    def get_omap_vals(
        self, op: ReadOp, start_after: str, filter_prefix: str, max_return: int
    ) -> tuple[Iterable[tuple[str, bytes | None]], int]: ...
    def get_last_version(self) -> int: ...
    def read(self, oid: str, length: int, offset: int) -> bytes: ...
    def execute(self, oid: str, cls: str, method: str, data: bytes) -> tuple[int, bytes]: ...
    def list_objects(self) -> Iterable[ListedObject]: ...
    def set_namespace(self, name: str) -> None: ...
    def close(self) -> None: ...


class Rados(Protocol):
    """A connection to a cluster."""

    def conf_set(self, option: str, value: str) -> None: ...
    def connect(self) -> None: ...
    def shutdown(self) -> None: ...
    def open_ioctx(self, pool: str) -> Ioctx: ...
    def get_addrs(self) -> str: ...
    def blocklist_add(self, client_address: str, expire_seconds: int) -> None: ...
    def wait_for_latest_osdmap(self) -> int: ...


class Binding(Protocol):
    """The module ``rados``."""

    Error: type[Exception]
    LIBRADOS_CREATE_EXCLUSIVE: int
    LIBRADOS_CMPXATTR_OP_EQ: int
    LIBRADOS_CMPXATTR_OP_LT: int

    def Rados(self, **options: str) -> Rados: ...


@cache
def binding() -> Binding:
    """Import the module at the first call. Raises UsageError if it is not installed."""
    name = "rados"
    found = importlib.machinery.PathFinder.find_spec(name, [*sys.path, *PLACES])
    if found is None or found.loader is None:
        raise UsageError(
            "a store in a Ceph cluster needs python3-rados, which is not installed for this"
            f" Python ({sys.version_info.major}.{sys.version_info.minor}); install it, and run"
            " dedupd with the Python of the distribution"
        )
    module = importlib.util.module_from_spec(found)
    sys.modules[name] = module
    try:
        found.loader.exec_module(module)
    except ImportError as error:
        del sys.modules[name]
        raise UsageError(f"{found.origin} cannot be used: {error}") from error
    return cast(Binding, module)
