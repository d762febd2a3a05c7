//! Reasons why bytes of a store cannot be read. The caller decides what to do.

use crate::format::ids::{ChunkKey, RecordId};

/// Why a record is not given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// Memory does not have it, and the caller does not wait for the disk.
    NotInMemory,
    /// Its container is missing or closed, or its store is not connected.
    NotOpen,
    /// It was merged into another one, and the way there does not end.
    Merged,
    /// It is an orphan, or was collected.
    NotLive,
    Quarantined,
    /// It, or the entry that names its place, does not pass its checks.
    Damaged,
    /// It is sound, but differs from the expected one.
    NotMeant,
    /// A recipe that is too long for the cache, and that no open stub holds.
    TooLong,
    /// The disk, the system or the cluster reports this error number.
    Io(i32),
}

impl Why {
    /// Of a failed system call.
    pub fn of(error: &std::io::Error) -> Why {
        match (error.raw_os_error(), error.kind()) {
            (Some(libc::ENOENT), _) | (None, std::io::ErrorKind::NotFound) => Why::NotOpen,
            (Some(errno), _) => Why::Io(errno),
            (None, _) => Why::Damaged,
        }
    }
}

/// A part of a stub's content, as its repair needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StorePart {
    /// A chunk that a recipe names.
    Chunk(ChunkKey),
    /// The chunk that a stub names instead of a recipe: its length and its fingerprint.
    Direct(RecordId),
    /// A record of a recipe.
    Node(RecordId),
    /// The recipe, which does not fit the stub, or is not made of records.
    Recipe,
}

/// A part of a stub that cannot be read, and the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unreadable {
    pub part: StorePart,
    pub why: Why,
}

impl Unreadable {
    /// Where it does not matter what is not in memory.
    pub const NOT_IN_MEMORY: Unreadable =
        Unreadable { part: StorePart::Recipe, why: Why::NotInMemory };

    pub fn chunk(key: ChunkKey, why: Why) -> Unreadable {
        Unreadable { part: StorePart::Chunk(key), why }
    }

    pub fn recipe(why: Why) -> Unreadable {
        Unreadable { part: StorePart::Recipe, why }
    }
}
