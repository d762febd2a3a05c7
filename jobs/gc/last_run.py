"""What the last collection began and ended with: so that one on a quiet volume is short.

Only a hint, and only ever a reason to do nothing: a wrong one leaves garbage where it is.
"""

from collections.abc import Mapping

from dedupd import native
from dedupd.errors import CatalogUnusable
from dedupd.format.container import Kind
from dedupd.volume.catalog import Catalog
from dedupd.volume.volume import Volume

_KEY = "gc/last"


def digest(named: Mapping[Kind, bytes], live: Mapping[Kind, Mapping[int, int]]) -> str:
    """Of what the tree names (digests of marks), and which records of each container are live (a
    digest for each).

    If neither has changed since a collection that went through, there is no new garbage. What has
    become live since without being needed, because a table was lost or a job died, shows.
    """
    states = repr([(int(kind), sorted(live[kind].items())) for kind in Kind]).encode()
    return native.hashing.fingerprint(b"".join(named.values()) + states).hex()


def is_as_left(volume: Volume, current: str) -> bool:
    """Whether the last collection left the volume with this digest."""
    try:
        with Catalog(volume.catalogue) as catalog:
            return bool(catalog.get(_KEY) == current)
    except CatalogUnusable:
        return False


def remember(volume: Volume, current: str) -> None:
    """Keep the digest for the next run; a catalogue that can't costs that run some time."""
    try:
        with Catalog(volume.catalogue) as catalog:
            catalog.put(_KEY, current)
    except CatalogUnusable:
        pass
