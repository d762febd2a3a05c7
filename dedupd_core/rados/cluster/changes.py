"""Atomic changes of one object, in the form for the library."""

import errno
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from dedupd_core.rados.cluster.binding import Ioctx, WriteOp, binding
from dedupd_core.rados.cluster.wire import absent_keys


class Outcome(Enum):
    """The result of a change. Only DONE has changed anything."""

    DONE = "done"
    EXISTS = "exists"
    """The object exists but should be new, or this session already holds the lock."""
    MISSING = "missing"
    """There is no such object."""
    REFUSED = "refused"
    """A key does not have the expected value."""
    STALE = "stale"
    """The object has another version than the one read before, or was removed."""
    HELD = "held"
    """Another session holds the lock."""


OUTCOMES = {
    errno.EEXIST: Outcome.EXISTS,
    errno.ENOENT: Outcome.MISSING,
    errno.ECANCELED: Outcome.REFUSED,
    errno.ERANGE: Outcome.STALE,
    errno.EOVERFLOW: Outcome.STALE,
    errno.EBUSY: Outcome.HELD,
}


@dataclass(frozen=True, slots=True)
class AtomicChange:
    """One atomic change of one object: if every condition holds, all steps happen, otherwise none.

    Conditions: ``exclusive``: the object is new. ``equal``: keys have these values, or are missing
    (None). ``below``: a key exists and is less than its value. ``version``: the object is unchanged
    since it was read. ``point`` is the fail point after the change.
    """

    point: str
    oid: str
    exclusive: bool = False
    equal: Mapping[str, str | None] = field(default_factory=dict)
    below: Mapping[str, str] = field(default_factory=dict)
    version: int | None = None
    calls: Sequence[tuple[str, str, bytes]] = ()
    data: bytes | None = None
    put: Mapping[str, str] = field(default_factory=dict)
    drop: Sequence[str] = ()
    drop_xattr: str | None = None
    remove: bool = False


def operation(ioctx: Ioctx, change: AtomicChange) -> WriteOp:
    """Return the change as an operation of the library, which the caller releases."""
    op = ioctx.create_write_op()
    try:
        _conditions(op, change)
        _effects(ioctx, op, change)
    except BaseException:
        ioctx.release_write_op(op)
        raise
    return op


def _conditions(op: WriteOp, change: AtomicChange) -> None:
    library = binding()
    if change.exclusive:
        op.new(library.LIBRADOS_CREATE_EXCLUSIVE)
    if change.version is not None:
        op.assert_version(change.version)
    for key, wanted in change.equal.items():
        if wanted is not None:
            op.omap_cmp(key, wanted, library.LIBRADOS_CMPXATTR_OP_EQ)
    for key, value in change.below.items():
        op.omap_cmp(key, value, library.LIBRADOS_CMPXATTR_OP_LT)
    absent = [key for key, wanted in change.equal.items() if wanted is None]
    if absent:
        op.execute("cmpomap", "cmp_vals", absent_keys(absent))
    for cls, method, data in change.calls:
        op.execute(cls, method, data)


def _effects(ioctx: Ioctx, op: WriteOp, change: AtomicChange) -> None:
    if change.data is not None:
        op.write_full(change.data)
    if change.put:
        values = [value.encode("ascii") for value in change.put.values()]
        ioctx.set_omap(op, tuple(change.put), tuple(values))
    if change.drop:
        ioctx.remove_omap_keys(op, tuple(change.drop))
    if change.drop_xattr is not None:
        op.rm_xattr(change.drop_xattr)
    if change.remove:
        op.remove()
