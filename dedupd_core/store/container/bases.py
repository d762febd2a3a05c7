"""The records on which others lean, as the containers of these ask for them."""

from collections.abc import Callable
from dataclasses import dataclass

from dedupd_core import native
from dedupd_core.errors import DamagedContainer
from dedupd_core.format import container as fmt
from dedupd_core.format.ids import show_id


@dataclass(frozen=True, slots=True)
class Bases:
    """Where a container finds the records that its own lean on.

    ``native``: in bulk, where all is as it should be. ``read``: the raw bytes of one, by its id,
    whatever is wrong; raises DamagedContainer, OSError.
    """

    native: native.store.Bases
    read: Callable[[int], bytes]


def raw_bytes(record: fmt.Record, payload: memoryview, bases: Bases | None) -> bytes | None:
    """The raw bytes of a record with this payload; None where the payload is not intact.

    Raises DamagedContainer, with the reason, where what the record leans on cannot be read. That is
    read only where its own bytes are sound, so that damage is told of the right record.
    """
    base = None
    if record.codec in fmt.LEANING:
        if not record.base or native.hashing.xxh3_64(payload) != record.checksum:
            return None
        base = _base(record.base, bases)
    try:
        return native.codec.decode(payload, record.codec, record.raw_length, record.checksum, base)
    except native.codec.CorruptPayload:
        return None


def _base(record_id: int, bases: Bases | None) -> bytes:
    leans = f"it depends on chunk {show_id(record_id)}, which cannot be read"
    if bases is None:
        raise DamagedContainer(leans)
    try:
        return bases.read(record_id)
    except DamagedContainer as error:
        raise DamagedContainer(f"{leans}: {error}") from error
