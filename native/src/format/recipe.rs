//! Nodes of recipes (docs/format.md, "Recipe").

use super::bytes::layout;
use super::ids::{FingerprintCheck, RecordId};

layout! {
    pub mod header: 40 bytes {
        MAGIC: 4 at 0,
        FORMAT: 1 at 4,
        LEVEL: 1 at 5,
        RESERVED: 2 at 6,
        COUNT: 4 at 8,
        RESERVED_TOO: 4 at 12,
        LENGTH: 8 at 16,
        CONTENT: 16 at 24,
    }
}

layout! {
    pub mod fields: 16 bytes {
        ID: 8 at 0,
        LENGTH: 8 at 8,
    }
}

const MAGIC: [u8; 4] = *b"DDRP";
const FORMAT: u8 = 1;
const LEVEL_LEAF: u8 = 0;

/// A node that names chunks, and no other nodes.
pub struct Leaf<'a> {
    /// Bytes of file below it, as its header says.
    pub length: u64,
    rows: &'a [u8],
}

/// A chunk, or a hole.
pub struct Row {
    pub id: RecordId,
    pub length: u64,
    pub fingerprint_check: FingerprintCheck,
}

impl<'a> Leaf<'a> {
    /// None where a payload is no leaf, or has another number of rows than it says.
    pub fn of(payload: &'a [u8]) -> Option<Leaf<'a>> {
        let (head, rows) = payload.split_at_checked(header::BYTES)?;
        let is_leaf = *header::MAGIC.of(head) == MAGIC
            && header::FORMAT.u8(head) == FORMAT
            && header::LEVEL.u8(head) == LEVEL_LEAF;
        let is_whole = rows.len() == header::COUNT.u32(head) as usize * fields::BYTES;
        (is_leaf && is_whole).then(|| Leaf { length: header::LENGTH.u64(head), rows })
    }

    pub fn rows(&self) -> impl ExactSizeIterator<Item = Row> {
        self.rows.chunks_exact(fields::BYTES).map(|row| {
            let (id, length) = (RecordId(fields::ID.u64(row)), fields::LENGTH.u64(row));
            // A chunk's check is in the upper half; a hole has all 64 bits for its length.
            let own = if id.is_hole() { length } else { u64::from(length as u32) };
            let fingerprint_check = FingerprintCheck((length >> 32) as u32);
            Row { id, length: own, fingerprint_check }
        })
    }
}
