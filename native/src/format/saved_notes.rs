//! Judged files, and notes of their chunks (docs/design/format.md, "Saved notes").

use std::cmp::Ordering;

use super::bytes::layout;

layout! {
    pub mod judged: 16 bytes {
        INODE: 8 at 0,
        CHECK: 4 at 8,
        GAIN: 2 at 12,
        MISSING: 2 at 14,
    }
}

layout! {
    pub mod note: 16 bytes {
        PREFIX: 8 at 0,
        OWNER: 8 at 8,
    }
}

/// A skipped file, in the state at that time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Judged {
    pub inode: u64,
    /// Check of size, mtime and ctime.
    pub check: u32,
    /// The share of its blocks that it would free, in thousandths. 65535 if its attributes leave no
    /// room for a stub attribute.
    pub gain: u16,
    /// Approximate number of its chunks that the store lacks for enough savings.
    pub missing: u16,
}

impl Judged {
    pub fn from_bytes(bytes: &[u8]) -> Judged {
        Judged {
            inode: judged::INODE.u64(bytes),
            check: judged::CHECK.u32(bytes),
            gain: judged::GAIN.u16(bytes),
            missing: judged::MISSING.u16(bytes),
        }
    }

    pub fn to_bytes(self) -> [u8; judged::BYTES] {
        let mut bytes = [0; judged::BYTES];
        judged::INODE.put(&mut bytes, &self.inode.to_le_bytes());
        judged::CHECK.put(&mut bytes, &self.check.to_le_bytes());
        judged::GAIN.put(&mut bytes, &self.gain.to_le_bytes());
        judged::MISSING.put(&mut bytes, &self.missing.to_le_bytes());
        bytes
    }
}

/// Set in the owner of a note that no join has processed.
const IS_NEW: u64 = 1 << 63;
/// The owner of a chunk that is in the store.
const STORE: u64 = 0;

/// A chunk of a file, or of the store. Notes are ordered by prefix, then by inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Note {
    /// The first bytes of its fingerprint.
    pub prefix: u64,
    owner: u64,
}

impl Note {
    /// Creates the note of a file that this run has read.
    pub fn new(prefix: u64, inode: u64) -> Note {
        Note { prefix, owner: inode | IS_NEW }
    }

    /// Creates the note of a chunk that this run has stored.
    pub fn stored(prefix: u64) -> Note {
        Note { prefix, owner: STORE | IS_NEW }
    }

    pub fn from_bytes(bytes: &[u8]) -> Note {
        Note { prefix: note::PREFIX.u64(bytes), owner: note::OWNER.u64(bytes) }
    }

    pub fn to_bytes(self) -> [u8; note::BYTES] {
        let mut bytes = [0; note::BYTES];
        note::PREFIX.put(&mut bytes, &self.prefix.to_le_bytes());
        note::OWNER.put(&mut bytes, &self.owner.to_le_bytes());
        bytes
    }

    pub fn is_new(self) -> bool {
        self.owner & IS_NEW != 0
    }

    /// The file that has the chunk; None for the store.
    pub fn inode(self) -> Option<u64> {
        let inode = self.owner & !IS_NEW;
        (inode != STORE).then_some(inode)
    }

    /// The same note after a join.
    pub fn joined(self) -> Note {
        Note { owner: self.owner & !IS_NEW, ..self }
    }
}

impl Ord for Note {
    fn cmp(&self, other: &Note) -> Ordering {
        let key = |note: &Note| (note.prefix, note.owner.rotate_left(1));
        key(self).cmp(&key(other))
    }
}

impl PartialOrd for Note {
    fn partial_cmp(&self, other: &Note) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Rows of [`judged::BYTES`], or of [`note::BYTES`], decoded by `of`.
pub fn rows<'a, T>(bytes: &'a [u8], of: impl Fn(&[u8]) -> T + 'a) -> impl Iterator<Item = T> + 'a {
    const { assert!(judged::BYTES == note::BYTES) };
    bytes.chunks_exact(note::BYTES).map(of)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_their_bytes() {
        let row = Judged { inode: u64::MAX - 1, check: 7, gain: 1000, missing: 65535 };
        assert_eq!(Judged::from_bytes(&row.to_bytes()), row);
        for note in [Note::new(9, 1 << 40), Note::stored(9), Note::new(9, 5).joined()] {
            assert_eq!(Note::from_bytes(&note.to_bytes()), note);
        }
    }

    #[test]
    fn a_note_says_whose_chunk_it_is() {
        assert_eq!(Note::new(9, 5).inode(), Some(5));
        assert_eq!(Note::stored(9).inode(), None);
        assert!(Note::new(9, 5).is_new() && !Note::new(9, 5).joined().is_new());
    }
}
