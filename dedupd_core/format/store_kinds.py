"""The kinds of store, one row per kind.

A column describes a property of some kinds. Their behaviour is implemented by ``ChunkStore``
(``dedupd_core/stores/chunk_store.py``) and the strategies of ``jobs/specs.py``: no other code
compares a kind by its name.
"""

from dataclasses import dataclass

MEMBERSHIP_FILE = b"membership.json"
BINDING_FILE = b"cluster.json"


@dataclass(frozen=True, slots=True)
class StoreKind:
    """``file``: the file in the ``.dedupd`` of a volume on such a store; empty for none."""

    name: str
    file: bytes
    has_containers: bool
    """Chunks and recipes are in containers on a disk of this host, with permanent ids. Their
    garbage is freed on this disk."""
    has_domains: bool
    """``dedup_domain`` can prevent files from sharing chunks."""
    shares_recipes: bool
    """Several files may name one recipe: reflink copies, and deleted files that can be restored."""
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
