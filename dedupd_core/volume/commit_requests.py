"""What a commit is asked for: files whose chunks and recipes are in the store."""

from typing import NamedTuple, Self

from dedupd_core import native
from dedupd_core.format.recipe import RecipeRef
from dedupd_core.stub.transition import FileIdentity


class CommitRequest(NamedTuple):
    """One file to commit: ``path`` is relative to the volume's tree.

    ``previous`` is the attribute of a stub whose recipe is replaced, None for a plain file.
    ``in_parts``: of a busy file, of which the mount has offered its quiet parts.
    """

    path: bytes
    identity: FileIdentity
    recipe: RecipeRef
    previous: bytes | None = None
    in_parts: bool = False

    @classmethod
    def of(cls, fields: "native.commit.CommitFields") -> Self:
        """One of ``native.commit.CommitRequests``."""
        path, identity, recipe, previous, in_parts = fields
        whole = FileIdentity._make(identity), RecipeRef._make(recipe)
        return cls(path, *whole, previous, in_parts)
