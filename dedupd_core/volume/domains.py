"""Which domain a file belongs to: the files that it may share chunks with
(docs/design/partitions.md)."""

import uuid
from typing import NamedTuple, Self

from dedupd_core.config.policy import DedupDomain, Policy
from dedupd_core.errors import PolicyError, UsageError
from dedupd_core.format import domain as fmt
from dedupd_core.format.container import Kind
from dedupd_core.store.container.table_totals import census
from dedupd_core.system.files import opened
from dedupd_core.volume.volume import Volume


class Domains(NamedTuple):
    """The domains of a volume by its policy."""

    kind: DedupDomain
    volume_id: bytes

    @classmethod
    def of_volume(cls, volume: Volume, policy: Policy) -> Self:
        return cls(policy.dedup_domain, uuid.UUID(volume.parameters.uuid).bytes)

    @property
    def are_apart(self) -> bool:
        """Whether there are others than the volume."""
        return self.kind is not DedupDomain.VOLUME

    def of(self, path: bytes, owner: int) -> bytes:
        """The domain of a file with this path below the tree, and of this user; also that of the
        files of a directory, by a path that ends with a slash."""
        if self.kind is DedupDomain.OWNER:
            return fmt.of_owner(owner)
        if self.kind is DedupDomain.FOLDER:
            top, slash, _ = path.partition(b"/")
            return fmt.of_folder(self.volume_id, top if slash else b"")
        return fmt.VOLUME

    def may_share(self, recipe_domain: bytes, owner: int) -> bool:
        """Whether a new file of a user may have a recipe of this domain, as a copy of another file.
        The path of a file that is being copied is not known."""
        if self.kind is DedupDomain.OWNER:
            return recipe_domain == fmt.of_owner(owner)
        return self.kind is DedupDomain.VOLUME and recipe_domain == fmt.VOLUME


def require_domains(volume: Volume, policy: Policy) -> None:
    """Raises PolicyError where a policy asks for domains that the volume's store cannot have."""
    if policy.dedup_domain is not DedupDomain.VOLUME and not volume.store_kind.has_domains:
        raise PolicyError(
            f"{volume.policy_where}: dedup_domain: a store in a cluster supports no other domain"
            f' than the volume; set dedup_domain = "{DedupDomain.VOLUME}"'
        )


def require_no_domains(volume: Volume, command: str) -> None:
    """Raises UsageError where new files of a volume go to domains: a command knows of none."""
    domain = volume.policy().dedup_domain
    if domain is not DedupDomain.VOLUME:
        raise UsageError(
            f"{volume.root}: `{command}` does not keep domains separate, and the policy has"
            f' dedup_domain = "{domain}"; copy the files with another program, for example rsync'
        )


def require_undivided(volume: Volume, command: str) -> None:
    """As :func:`require_no_domains`, and where the store has chunks of domains from earlier on."""
    if not volume.store_kind.has_domains:
        return
    require_no_domains(volume, command)
    for kind in (Kind.CHUNKS, Kind.RECIPES):
        with opened(volume.store.open_directory(kind)) as fd:
            if any(not one.key.is_of_volume for one in census(fd)):
                raise UsageError(
                    f"{volume.root}: `{command}` does not keep domains separate, and files were"
                    " stored with dedup_domain; copy the files with another program, for example"
                    " rsync"
                )
