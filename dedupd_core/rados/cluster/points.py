"""The fail points of a store in a cluster: one after each kind of change
(docs/design/format.md)."""

from dedupd_core.failpoint import define

STORE_MADE = define("rados.store-made", "the object `store` exists")
VOLUME_JOINED = define("rados.volume-joined", "the store has registered the volume")
VOLUME_LEFT = define("rados.volume-left", "the store has removed the volume")
TABLE_REMOVED = define("rados.table-removed", "one object of a leaving volume is deleted")
LEASE_TAKEN = define("rados.lease-taken", "this session holds the lease")
LEASE_RENEWED = define("rados.lease-renewed", "the lease was prolonged")
LEASE_BROKEN = define("rados.lease-broken", "the lease of a dead session was ended")
LEASE_GIVEN_BACK = define("rados.lease-given-back", "no session holds the lease")
FENCED = define("rados.fenced", "an earlier client was fenced, and that is recorded")
SESSION_SET = define(
    "rados.session-set", "one object of the volume accepts only changes of this session"
)
TABLES_MADE = define("rados.tables-made", "it is recorded that the volume has all of its objects")
TABLES_GIVEN_UP = define(
    "rados.tables-given-up", "the volume is about to leave, and may lack some of its objects"
)
INTENT_SET = define("rados.intent-set", "the intents of file versions exist")
INTENT_DROPPED = define("rados.intent-dropped", "the intents are deleted")
RECIPE_PART_WRITTEN = define("rados.recipe-part-written", "a later part of a recipe exists")
RECIPE_WRITTEN = define(
    "rados.recipe-written", "the first part exists, and therefore the entire recipe"
)
CHUNK_CREATED = define("rados.chunk-created", "a chunk exists, with its first references")
CHUNK_REFERENCED = define("rados.chunk-referenced", "a chunk has more references")
CHUNK_CHECKED = define("rados.chunk-checked", "a chunk was found good, and has more references")
CHUNK_REPAIRED = define("rados.chunk-repaired", "a chunk was stored again, and has more references")
CHUNK_PINNED = define("rados.chunk-pinned", "the references of a chunk are no longer counted")
CHUNK_MARKED = define("rados.chunk-marked", "a chunk that a reader found damaged is marked so")
CHUNK_MENDED = define("rados.chunk-mended", "a damaged chunk was stored again, or found good")
DAMAGE_LISTED = define("rados.damage-listed", "a chunk is listed that is about to be marked")
DAMAGE_SEARCHED = define("rados.damage-searched", "a volume is known not to have a damaged chunk")
DAMAGE_DROPPED = define("rados.damage-dropped", "a chunk is no longer listed")
COMMITTED = define("rados.committed", "the file names its new version, and still the old one")
FINISHED = define(
    "rados.finished", "the file names its new version only; the old version is to retire"
)
ROLLED_BACK = define(
    "rados.rolled-back", "the file names its old version only; the new version is to retire"
)
FILE_DELETED = define(
    "rados.file-deleted", "the store does not know the file; its version is to retire"
)
REFERENCE_DROPPED = define("rados.reference-dropped", "a chunk has lost references")
CANDIDATE_ADDED = define("rados.candidate-added", "chunks with no references are candidates")
CHUNK_INVALIDATED = define("rados.chunk-invalidated", "the next arrival of a candidate checks it")
RECIPE_PART_REMOVED = define("rados.recipe-part-removed", "a part of a retired recipe is deleted")
VERSION_RETIRED = define("rados.version-retired", "all parts of a version are deleted")
CHUNK_REMOVED = define("rados.chunk-removed", "a chunk is deleted")
CANDIDATE_DROPPED = define("rados.candidate-dropped", "a chunk is no longer a candidate")
TURN_TAKEN = define("rados.turn-taken", "this host has the turn to maintain the store")
TURN_NOTED = define("rados.turn-noted", "the other hosts know the result of the turn")
ABSENCE_NOTED = define(
    "rados.absence-noted", "a volume with an interrupted session is recorded, or no longer recorded"
)
