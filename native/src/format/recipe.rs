//! Leaves of recipes, read (docs/format.md, "Recipe").

use crate::format::bytes::{u32_at, u64_at};

const MAGIC: u32 = 0x5052_4444;
const FORMAT: u8 = 1;
const HEADER_BYTES: usize = 40;
const ROW_BYTES: usize = 16;

/// The payload of a node that names chunks and no other nodes.
pub struct Leaf<'a> {
    /// Of what it covers, as its header says.
    pub length: u64,
    rows: &'a [u8],
}

/// A chunk, or a hole, whose id is 0.
pub struct Row {
    pub id: u64,
    pub length: u64,
    /// The start of the chunk's fingerprint.
    pub check: u32,
}

impl<'a> Leaf<'a> {
    /// None where it is no leaf, or has not as many rows as it says.
    pub fn of(payload: &'a [u8]) -> Option<Leaf<'a>> {
        let (header, rows) = payload.split_at_checked(HEADER_BYTES)?;
        let is_leaf = u32_at(header, 0) == MAGIC && (header[4], header[5]) == (FORMAT, 0);
        let is_whole = rows.len() == u32_at(header, 8) as usize * ROW_BYTES;
        (is_leaf && is_whole).then(|| Leaf { length: u64_at(header, 16), rows })
    }

    pub fn rows(&self) -> impl ExactSizeIterator<Item = Row> {
        self.rows.chunks_exact(ROW_BYTES).map(|row| {
            let (id, said) = (u64_at(row, 0), u64_at(row, 8));
            let length = if id == 0 { said } else { said & 0xFFFF_FFFF };
            Row { id, length, check: (said >> 32) as u32 }
        })
    }
}
