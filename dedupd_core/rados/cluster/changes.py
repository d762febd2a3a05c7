"""Changes of one object that happen whole or not at all, as the library takes them."""

import errno
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from dedupd_core.rados.cluster.binding import Ioctx, WriteOp, binding
from dedupd_core.rados.cluster.wire import absent_keys


class Outcome(Enum):
    """What became of a change. All but DONE have changed nothing."""

    DONE = "done"
    EXISTS = "exists"
    """The object should be new, or the lock is held by this session already."""
    MISSING = "missing"
    """There is no such object."""
    REFUSED = "refused"
    """A key does not have the value that it should have."""
    STALE = "stale"
    """The object has another version than the one that was read, or is gone."""
    HELD = "held"
    """The lock is another session's."""


OUTCOMES = {
    errno.EEXIST: Outcome.EXISTS,
    errno.ENOENT: Outcome.MISSING,
    errno.ECANCELED: Outcome.REFUSED,
    errno.ERANGE: Outcome.STALE,
    errno.EOVERFLOW: Outcome.STALE,
    errno.EBUSY: Outcome.HELD,
}


@dataclass(frozen=True, slots=True)
class Change:
    """One atomic change of one object: every condition holds and all is done, or nothing is.

    Conditions: ``exclusive``, the object is new; ``equal``, keys have these values, or are not
    there (None); ``below``, a key is there and is less than its value; ``version``, the object is
    as it was read. ``point`` is the fail point that follows.
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


def operation(ioctx: Ioctx, change: Change) -> WriteOp:
    """The change as an operation of the library, to be released by the caller."""
    op = ioctx.create_write_op()
    try:
        _conditions(op, change)
        _effects(ioctx, op, change)
    except BaseException:
        ioctx.release_write_op(op)
        raise
    return op


def _conditions(op: WriteOp, change: Change) -> None:
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


def _effects(ioctx: Ioctx, op: WriteOp, change: Change) -> None:
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
