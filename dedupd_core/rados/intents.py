"""What a session is about to store: noted before it is begun, so that a crash leaves nothing
behind that cannot be found."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from dedupd_core.errors import WriterFenced
from dedupd_core.format.cluster.objects import SESSION_KEY, FileId, intents_object
from dedupd_core.rados.cluster import points
from dedupd_core.rados.cluster.changes import Change, Outcome
from dedupd_core.rados.cluster.connection import Cluster


@dataclass(frozen=True, slots=True)
class Intents:
    """The file versions of one volume that are not finished."""

    cluster: Cluster
    volume: str
    session: str = ""

    @property
    def object(self) -> str:
        return intents_object(self.volume)

    def all(self) -> dict[str, FileId]:
        """Version → the file that it is for."""
        return {
            key: FileId.parse(value)
            for key, value in self.cluster.each_key(self.object)
            if key != SESSION_KEY
        }

    def set(self, versions: Mapping[str, FileId]) -> None:
        """Raises WriterFenced."""
        put = {version: file.text for version, file in versions.items()}
        self._apply(
            Change(points.INTENT_SET, self.object, equal={SESSION_KEY: self.session}, put=put)
        )

    def drop(self, versions: Iterable[str]) -> None:
        """Raises WriterFenced."""
        self._apply(
            Change(
                points.INTENT_DROPPED,
                self.object,
                equal={SESSION_KEY: self.session},
                drop=tuple(versions),
            )
        )

    def _apply(self, change: Change) -> None:
        if not change.put and not change.drop:
            return
        if self.cluster.apply(change) is not Outcome.DONE:
            raise WriterFenced(
                f"volume {self.volume}: another session writes it now; start the job again"
            )
