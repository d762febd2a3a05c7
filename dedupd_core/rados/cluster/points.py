"""The fail points of a store in a cluster: one after each kind of change
(docs/design/format.md)."""

from dedupd_core.failpoint import define

STORE_MADE = define("rados.store-made", "the object `store` is there")
VOLUME_JOINED = define("rados.volume-joined", "the store knows the volume")
VOLUME_LEFT = define("rados.volume-left", "the store does not know the volume any more")
TABLE_REMOVED = define("rados.table-removed", "one object of a volume that leaves is gone")
LEASE_TAKEN = define("rados.lease-taken", "the lease is this session's")
LEASE_RENEWED = define("rados.lease-renewed", "the lease was prolonged")
LEASE_BROKEN = define("rados.lease-broken", "the lease of a session that is dead was ended")
LEASE_GIVEN_BACK = define("rados.lease-given-back", "the lease is nobody's")
FENCED = define("rados.fenced", "an earlier client was fenced, and that is noted")
SESSION_SET = define(
    "rados.session-set", "one object of the volume takes this session's changes only"
)
TABLES_MADE = define("rados.tables-made", "the volume is known to have all of its objects")
TABLES_GIVEN_UP = define(
    "rados.tables-given-up", "the volume is about to leave, and may lack some of its objects"
)
INTENT_SET = define("rados.intent-set", "the intents of file versions are there")
INTENT_DROPPED = define("rados.intent-dropped", "the intents are gone")
RECIPE_PART_WRITTEN = define("rados.recipe-part-written", "a later part of a recipe is there")
RECIPE_WRITTEN = define("rados.recipe-written", "the first part is there, and so all of the recipe")
CHUNK_CREATED = define("rados.chunk-created", "a chunk is there, with its first references")
CHUNK_REFERENCED = define("rados.chunk-referenced", "a chunk has more references")
CHUNK_CHECKED = define("rados.chunk-checked", "a chunk was found good, and has more references")
CHUNK_REPAIRED = define("rados.chunk-repaired", "a chunk was stored again, and has more references")
CHUNK_PINNED = define("rados.chunk-pinned", "the references of a chunk are counted no more")
CHUNK_MARKED = define("rados.chunk-marked", "a chunk that a reader found damaged is marked so")
CHUNK_MENDED = define("rados.chunk-mended", "a damaged chunk was stored again, or found good")
DAMAGE_LISTED = define("rados.damage-listed", "a chunk is listed that is about to be marked")
DAMAGE_SEARCHED = define("rados.damage-searched", "a volume is known not to have a damaged chunk")
DAMAGE_DROPPED = define("rados.damage-dropped", "a chunk is not listed any more")
COMMITTED = define("rados.committed", "the file names its new version, and still the old one")
FINISHED = define("rados.finished", "the file names its new version only; the old one is to retire")
ROLLED_BACK = define(
    "rados.rolled-back", "the file names its old version only; the new one is to retire"
)
FILE_DELETED = define(
    "rados.file-deleted", "the store does not know the file; its version is to retire"
)
REFERENCE_DROPPED = define("rados.reference-dropped", "a chunk has lost references")
CANDIDATE_ADDED = define("rados.candidate-added", "chunks with no references are candidates")
CHUNK_INVALIDATED = define("rados.chunk-invalidated", "the next arrival of a candidate checks it")
RECIPE_PART_REMOVED = define("rados.recipe-part-removed", "a part of a retired recipe is gone")
VERSION_RETIRED = define("rados.version-retired", "nothing is left of a version")
CHUNK_REMOVED = define("rados.chunk-removed", "a chunk is gone")
CANDIDATE_DROPPED = define("rados.candidate-dropped", "a candidate is none any more")
TURN_TAKEN = define("rados.turn-taken", "it is this host's turn to look after the store")
TURN_NOTED = define("rados.turn-noted", "the other hosts know what came of the turn")
ABSENCE_NOTED = define(
    "rados.absence-noted", "a volume is noted whose session broke off, or is not any more"
)
