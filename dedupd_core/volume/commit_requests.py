"""What a commit is asked for: files whose chunks and recipes are in the store."""

import os
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, Self

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


class CommitRequests:
    """Files to commit together: plain ones first, of which there is no object for each."""

    def __init__(self, plain: native.commit.PlainRequests | None = None) -> None:
        self.plain = native.commit.PlainRequests() if plain is None else plain
        self.others: list[CommitRequest] = []

    @classmethod
    def of(cls, requests: Iterable[CommitRequest]) -> Self:
        """Plain files come first, whatever the order."""
        several = cls()
        for request in requests:
            several.add(request)
        return several

    def add(self, request: CommitRequest) -> None:
        if request.previous is None and not request.in_parts:
            self.plain.add(*request[:3])
        else:
            self.others.append(request)

    def __len__(self) -> int:
        return len(self.plain) + len(self.others)

    def __getitem__(self, at: int) -> CommitRequest:
        if at >= len(self.plain):
            return self.others[at - len(self.plain)]
        path, identity, recipe = self.plain[at]
        return CommitRequest(path, FileIdentity._make(identity), RecipeRef._make(recipe))

    def __iter__(self) -> Iterator[CommitRequest]:
        return map(self.__getitem__, range(len(self)))

    def part(self, start: int, count: int) -> "CommitRequests":
        """Up to ``count`` of them, from ``start`` on."""
        part = CommitRequests(self.plain.part(start, start + count))
        first = max(0, start - len(self.plain))
        part.others = self.others[first : first + count - len(part.plain)]
        return part

    @property
    def size_bytes(self) -> int:
        """Of all files together."""
        return self.plain.size_bytes + sum(request.identity.size for request in self.others)

    @property
    def paths(self) -> list[bytes]:
        return self.plain.paths.split(b"\0")[:-1] + [request.path for request in self.others]


def request_to_json(request: CommitRequest) -> dict[str, Any]:
    return {
        "path": os.fsdecode(request.path),
        "identity": request.identity._asdict(),
        "recipe": request.recipe.recipe,
        "digest": request.recipe.digest.hex(),
        "direct": request.recipe.direct,
        "previous": None if request.previous is None else request.previous.hex(),
        "in_parts": request.in_parts,
    }


def request_from_json(row: dict[str, Any]) -> CommitRequest:
    return CommitRequest(
        os.fsencode(row["path"]),
        FileIdentity(**row["identity"]),
        RecipeRef(row["recipe"], bytes.fromhex(row["digest"]), row["direct"]),
        None if row["previous"] is None else bytes.fromhex(row["previous"]),
        row.get("in_parts", False),
    )
