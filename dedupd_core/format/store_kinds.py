"""The kinds of store, a row each.

Each property of some of them is a column here. Their behaviour is behind ``ChunkStore``
(``dedupd_core/stores/chunk_store.py``) and the strategies of ``jobs/specs.py``: no other code asks
for a kind by its name.
"""

from dataclasses import dataclass

MEMBERSHIP_FILE = b"membership.json"
BINDING_FILE = b"cluster.json"


@dataclass(frozen=True, slots=True)
class StoreKind:
    """``file``: what the ``.dedupd`` of a volume on such a store has, empty for none."""

    name: str
    file: bytes
    has_containers: bool
    """Chunks and recipes lie in containers on a disk of this host, under ids that stay. Their
    garbage is freed here."""
    has_domains: bool
    """Files can be kept from sharing chunks, by ``dedup_domain``."""
    shares_recipes: bool
    """Several files may name one recipe: copies by reflink, and what is kept of deleted files."""
    needs_network: bool


OWN = StoreKind(
    "own",
    b"",
    has_containers=True,
    has_domains=True,
    shares_recipes=True,
    needs_network=False,
)
SHARED = StoreKind(
    "shared",
    MEMBERSHIP_FILE,
    has_containers=True,
    has_domains=True,
    shares_recipes=True,
    needs_network=False,
)
CLUSTER = StoreKind(
    "cluster",
    BINDING_FILE,
    has_containers=False,
    has_domains=False,
    shares_recipes=False,
    needs_network=True,
)
KINDS = (OWN, SHARED, CLUSTER)
