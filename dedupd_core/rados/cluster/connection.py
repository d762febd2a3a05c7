"""A connection to a cluster: atomic changes of one object, and reads, many of them at a time."""

import errno
import itertools
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import NamedTuple, Self, TypeVar

from dedupd_core import native
from dedupd_core.errors import (
    Damaged,
    DedupdError,
    NoSpace,
    StoreUnreachable,
    UsageError,
    WriterFenced,
)
from dedupd_core.failpoint import reach
from dedupd_core.format.cluster.address import StoreAddress
from dedupd_core.rados.cluster.binding import Completion, Ioctx, Rados, WriteOp, binding
from dedupd_core.rados.cluster.changes import OUTCOMES, AtomicChange, Outcome, operation

OPERATIONS_AT_ONCE = 16
"""Operations in flight by default. On three OSDs that share two cores, more are not faster."""

TRAIN_LENGTHS = 2
"""Operations of a train in flight, as a multiple. They finish in order, so some of them already
have their answer. With a factor of one, the OSDs are sometimes idle."""

PAGE_KEYS = 1024
"""The limit of the OSD for one answer."""
_READ_BYTES = 256 << 10
_PAGING_ROUNDS_MAX = 100

Item = TypeVar("Item")
Result = TypeVar("Result")


class KeyPage(NamedTuple):
    """Keys of an object with their values, as of ``version``."""

    version: int
    items: dict[str, str]


class _Flight(NamedTuple):
    """A change in flight."""

    change: AtomicChange
    ioctx: Ioctx
    op: WriteOp
    completion: Completion


class Cluster:
    """A store's pool and namespace, connected at the first use. Safe to use from several threads.

    Errors of all methods: StoreUnreachable after the address's timeout, WriterFenced if the cluster
    refuses this client, UsageError if its user lacks the right, NoSpace. ``permit`` is called
    before each change, ``gate`` (for tests) before each operation.
    """

    def __init__(
        self, address: StoreAddress, *, operations_at_once: int = OPERATIONS_AT_ONCE
    ) -> None:
        self.address = address
        self.permit: Callable[[], None] = permitted
        self.gate: Callable[[str], None] | None = None
        self.gave_up = False  # whether any operation had no answer in time
        self.acknowledgements_lost = False  # for tests: each change is made twice
        self._rados: Rados | None = None
        self._connecting = threading.Lock()
        self._local = threading.local()
        self.operations_at_once = operations_at_once
        self._opened: list[Ioctx] = []
        self._pool = (
            ThreadPoolExecutor(operations_at_once, "rados") if operations_at_once > 1 else None
        )

    # --- the connection -----------------------------------------------------------------------

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Wait until all operations in flight have finished."""
        if self._pool is not None:
            self._pool.shutdown()
        with self._connecting:
            rados, self._rados = self._rados, None
            for ioctx in self._opened:
                ioctx.close()
            self._opened.clear()
        if rados is not None:
            rados.shutdown()

    @property
    def connection(self) -> Rados:
        """The connection, made if necessary. Without an answer, the next use asks again."""
        with self._connecting:
            if self._rados is None:
                with self._errors("connecting"):
                    self._rados = self._connect()
            return self._rados

    def _connect(self) -> Rados:
        address = self.address
        native.rados.keep_freed_memory()
        rados = binding().Rados(
            conffile=address.conf, name=f"client.{address.user}", clustername="ceph"
        )
        timeout = f"{address.timeout_s:g}"
        if address.keyring:
            rados.conf_set("keyring", address.keyring)
        rados.conf_set("rados_osd_op_timeout", timeout)
        rados.conf_set("rados_mon_op_timeout", timeout)
        rados.conf_set("client_mount_timeout", timeout)
        try:
            rados.connect()
            return rados
        except BaseException:
            rados.shutdown()
            raise

    @property
    def client_address(self) -> str:
        """The name of this client in the cluster, as an argument of :meth:`fence`."""
        return self.connection.get_addrs()

    def fence(self, client_address: str, expire_s: int) -> None:
        """Make the cluster refuse all operations of that client, even those already sent."""
        with self._errors(f"fencing {client_address}"):
            self.connection.blocklist_add(client_address, expire_s)
            self.connection.wait_for_latest_osdmap()

    @property
    def _ioctx(self) -> Ioctx:
        """One per thread: it stores the version of the last operation."""
        ioctx: Ioctx | None = getattr(self._local, "ioctx", None)
        if ioctx is None:
            rados = self.connection
            with self._errors(f"opening the pool {self.address.pool}"):
                ioctx = rados.open_ioctx(self.address.pool)
                ioctx.set_namespace(self.address.name)
            self._local.ioctx = ioctx
            with self._connecting:
                self._opened.append(ioctx)
        return ioctx

    @contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        """Convert errors of the library into those of the program."""
        try:
            yield
        except DedupdError:
            raise
        except binding().Error as error:
            raise self.error(what, error) from error

    def error(self, what: str, error: Exception) -> DedupdError:
        """Convert an error of the library, by its errno."""
        number, where = getattr(error, "errno", None), f"{self.address}: {what}"
        if number in (errno.ESHUTDOWN, errno.EROFS):
            return WriterFenced(
                f"{where}: another host has taken over, and the cluster rejects this client; start"
                " the job again"
            )
        if number in (errno.EACCES, errno.EPERM):
            return UsageError(
                f"{where}: client.{self.address.user} lacks a capability; docs/guide/cluster.md"
                " lists the required ones"
            )
        if number in (errno.ENOSPC, errno.EDQUOT):
            return NoSpace(f"{where}: the pool is full")
        if number == errno.EOPNOTSUPP:
            return UsageError(
                f"{where}: the pool {self.address.pool} does not support keys on objects, probably"
                " because it is erasure-coded; create another pool for the store: `ceph osd pool"
                " create NAME replicated`"
            )
        if number == errno.ENOENT:
            return UsageError(f"{where}: the pool, its configuration or the key does not exist")
        self.gave_up = True
        try:
            self.permit()
        except WriterFenced:
            # Operations in flight while this process was stopped had no answer in time, either.
            return StoreUnreachable(
                f"{where}: {error}; the lease of this session has expired, because this process or"
                " the cluster was stopped for too long; start the job again"
            )
        return StoreUnreachable(
            f"{where}: {error}; check the cluster with `ceph -s`. The next request is retried"
        )

    # --- changes ------------------------------------------------------------------------------

    def apply(self, change: AtomicChange) -> Outcome:
        """Make a change, and reach its fail point when it is durable."""
        if self.acknowledgements_lost:
            self._apply(change)
        outcome = self._apply(change)
        reach(change.point)
        return outcome

    def _apply(self, change: AtomicChange) -> Outcome:
        ioctx, op = self._prepared(change)
        try:
            ioctx.operate_write_op(op, change.oid)
            return Outcome.DONE
        except binding().Error as error:
            return self._refused(change, error)
        finally:
            ioctx.release_write_op(op)

    def _prepared(self, change: AtomicChange) -> tuple[Ioctx, WriteOp]:
        """Check that a change is permitted; return it as an operation that the caller releases."""
        self.permit()
        self._pass_gate(change.point)
        ioctx = self._ioctx
        return ioctx, operation(ioctx, change)

    def _refused(self, change: AtomicChange, error: Exception) -> Outcome:
        """Return why a change was not made. Raises other errors."""
        outcome = OUTCOMES.get(getattr(error, "errno", 0))
        if outcome is None:
            raise self.error(f"changing {change.oid}", error) from error
        return outcome

    def apply_train(self, changes: Iterable[AtomicChange]) -> list[Outcome]:
        """Like :meth:`apply` for each change, several in flight, started and finished in order.

        Takes the next change when a place is free. Waits for all started changes, even after an
        error.
        """
        outcomes: list[Outcome] = []
        begun: deque[_Flight] = deque()
        try:
            for change in changes:
                if len(begun) >= TRAIN_LENGTHS * self.operations_at_once:
                    outcomes.append(self._land(begun.popleft()))
                begun.append(self._begin(change))
            while begun:
                outcomes.append(self._land(begun.popleft()))
        finally:
            for one in begun:
                one.completion.wait_for_complete()
                one.ioctx.release_write_op(one.op)
        return outcomes

    def _begin(self, change: AtomicChange) -> "_Flight":
        if self.acknowledgements_lost:
            self._apply(change)
        ioctx, op = self._prepared(change)
        try:
            return _Flight(change, ioctx, op, ioctx.operate_aio_write_op(op, change.oid))
        except BaseException as error:
            ioctx.release_write_op(op)
            if isinstance(error, binding().Error):
                raise self.error(f"changing {change.oid}", error) from error
            raise

    def _land(self, one: "_Flight") -> Outcome:
        one.completion.wait_for_complete()
        one.ioctx.release_write_op(one.op)
        result = one.completion.get_return_value()
        outcome = Outcome.DONE
        if result < 0:
            outcome = self._refused(one.change, OSError(-result, os.strerror(-result)))
        reach(one.change.point)
        return outcome

    # --- reads --------------------------------------------------------------------------------

    def read(self, oid: str) -> bytes | None:
        """Read all data of an object; None if it does not exist."""
        self._pass_gate("read")
        parts: list[bytes] = []
        while True:
            try:
                part = self._ioctx.read(oid, _READ_BYTES, sum(map(len, parts)))
            except binding().Error as error:
                if getattr(error, "errno", 0) == errno.ENOENT:
                    return None
                raise self.error(f"reading {oid}", error) from error
            parts.append(part)
            if len(part) < _READ_BYTES:
                return b"".join(parts) if len(parts) > 1 else part

    def page(
        self, oid: str, prefix: str = "", *, after: str = "", count: int = PAGE_KEYS
    ) -> KeyPage | None:
        """Read up to ``count`` keys with a prefix; None if the object does not exist."""
        self._pass_gate("keys")
        ioctx = self._ioctx
        op = ioctx.create_read_op()
        try:
            found, _ = ioctx.get_omap_vals(op, after, prefix, min(count, PAGE_KEYS))
            ioctx.operate_read_op(op, oid)
            items = {key: (value or b"").decode("ascii", "replace") for key, value in found}
            return KeyPage(ioctx.get_last_version(), items)
        except binding().Error as error:
            if getattr(error, "errno", 0) == errno.ENOENT:
                return None
            raise self.error(f"reading the keys of {oid}", error) from error
        finally:
            ioctx.release_read_op(op)

    def value(self, oid: str, key: str) -> str | None:
        """Read the value of a key; None if the key or the object does not exist."""
        found = self.page(oid, key, count=1)
        return None if found is None else found.items.get(key)

    def keys(self, oid: str, prefix: str = "") -> dict[str, str]:
        """Read all keys with a prefix as of one time; none if the object does not exist. Raises
        StoreUnreachable if the object never stops changing."""
        for _ in range(_PAGING_ROUNDS_MAX):
            found = self._keys_at_once(oid, prefix)
            if found is not None:
                return found
        raise StoreUnreachable(f"{self.address}: {oid} changes while it is read; run the job again")

    def _keys_at_once(self, oid: str, prefix: str) -> dict[str, str] | None:
        """Return None if the object changes during the read."""
        page = self.page(oid, prefix)
        if page is None:
            return {}
        items, version = dict(page.items), page.version
        while len(page.items) == PAGE_KEYS:
            page = self.page(oid, prefix, after=max(page.items))
            if page is None or page.version != version:
                return None
            items.update(page.items)
        return items

    def each_key(self, oid: str, prefix: str = "") -> Iterator[tuple[str, str]]:
        """Yield the keys of an object that may change; permanent keys are all included."""
        after = ""
        while (page := self.page(oid, prefix, after=after)) is not None and page.items:
            yield from page.items.items()
            after = max(page.items)

    def call(self, oid: str, cls: str, method: str, data: bytes) -> bytes | None:
        """Return the answer of an object class; None if the object does not exist."""
        try:
            return self._ioctx.execute(oid, cls, method, data)[1]
        except binding().Error as error:
            if getattr(error, "errno", 0) == errno.ENOENT:
                return None
            raise self.error(f"asking {cls}.{method} of {oid}", error) from error

    def names(self) -> Iterator[str]:
        """Yield the names of all objects, in no order; changing ones may be missing."""
        with self._errors("listing objects"):
            for one in self._ioctx.list_objects():
                yield one.key

    def _pass_gate(self, what: str) -> None:
        if self.gate is not None:
            self.gate(what)

    # --- many at a time -----------------------------------------------------------------------

    def each(self, function: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
        """Return the function's results for all items, in order; several calls run at a time.

        Waits for all started calls, even after an error; then raises the first error. The function
        must not call :meth:`each` itself.
        """
        if self._pool is None:
            return [function(one) for one in items]
        todo = list(items)
        results: list[Result | None] = [None] * len(todo)
        errors: dict[int, BaseException] = {}
        turn = itertools.count()

        def work() -> None:
            # A future for each item would cost as much as reading a chunk.
            while not errors and (at := next(turn)) < len(todo):
                try:
                    results[at] = function(todo[at])
                except BaseException as error:
                    errors[at] = error

        workers = [self._pool.submit(work) for _ in range(min(len(todo), self.operations_at_once))]
        for worker in workers:
            worker.result()
        if errors:
            raise errors[min(errors)]
        return results  # type: ignore[return-value]


def permitted() -> None:
    """Permit every change, for a client that writes no volume."""


def required(data: bytes | None, what: str) -> bytes:
    """Return the data. Raises Damaged if it is missing."""
    if data is None:
        raise Damaged(f"{what}: its object is missing; see `dedupd cluster audit STORE`")
    return data
