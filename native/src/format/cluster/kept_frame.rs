//! A row of the list for a segment of kept frames (docs/design/format.md, "Kept frame").

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::format::bytes::layout;

layout! {
    pub mod fields: 48 bytes {
        NAME: 32 at 0,
        OFFSET: 4 at 32,
        LENGTH: 4 at 36,
        CHECK: 8 at 40,
    }
}

pub const ROW_BYTES: usize = fields::BYTES;

/// The name of a frame: the fingerprint of a chunk, or a file version, with zeros behind it.
pub type Name = [u8; 32];

/// The place of a frame in its segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    pub name: Name,
    pub offset: u32,
    pub length: u32,
}

impl Row {
    pub fn to_bytes(self, segment: u32) -> [u8; ROW_BYTES] {
        let mut row = [0; ROW_BYTES];
        fields::NAME.put(&mut row, &self.name);
        fields::OFFSET.put(&mut row, &self.offset.to_le_bytes());
        fields::LENGTH.put(&mut row, &self.length.to_le_bytes());
        let check = check_of(&row, segment);
        fields::CHECK.put(&mut row, &check.to_le_bytes());
        row
    }

    /// The rows of a list, without incomplete rows and those of other segments.
    pub fn all(list: &[u8], segment: u32) -> impl Iterator<Item = Row> {
        list.chunks_exact(ROW_BYTES)
            .filter(move |row| fields::CHECK.u64(row) == check_of(row, segment))
            .map(|row| Row {
                name: *fields::NAME.of(row),
                offset: fields::OFFSET.u32(row),
                length: fields::LENGTH.u32(row),
            })
    }
}

fn check_of(row: &[u8], segment: u32) -> u64 {
    xxh3_64_with_seed(&row[..fields::CHECK.start], u64::from(segment))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_row_is_passed_over() {
        let row = |at: u32| Row { name: [at as u8; 32], offset: at, length: 9 };
        let list = [row(1), row(2), row(3)].map(|row| row.to_bytes(7)).concat();
        for at in ROW_BYTES..2 * ROW_BYTES {
            let mut changed = list.clone();
            changed[at] ^= 0x10;
            assert_eq!(Row::all(&changed, 7).collect::<Vec<_>>(), [row(1), row(3)]);
        }
        assert_eq!(Row::all(&list[..100], 7).count(), 2);
        assert_eq!(Row::all(&list, 8).count(), 0);
    }
}
