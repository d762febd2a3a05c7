//! The files of saved indexes (docs/design/format.md, "Saved table", "Saved chains").

use xxhash_rust::xxh3::xxh3_64;

use super::bytes::layout;

layout! {
    /// The header of both files. Four fields have different names in the document: first for the
    /// saved table, then for the saved chains.
    pub mod header: 64 bytes {
        MAGIC: 8 at 0,
        FORMAT: 2 at 8,
        KIND: 1 at 10,
        GROUP_BITS: 1 at 11, // group_bits, reserved
        PARTS: 4 at 12, // groups, partitions
        VOLUME_ID: 16 at 16,
        ENTRIES: 8 at 32,
        CONTAINERS: 4 at 40,
        BLOCKS: 4 at 44,
        RUNS: 4 at 48, // planes, chains
        LEFT_OVER: 4 at 52, // stashed, buffered
        CHECKSUM: 8 at 56,
    }
}

layout! {
    /// An indexed container.
    pub mod stamp: 24 bytes {
        CONTAINER: 4 at 0,
        GENERATION: 4 at 4,
        COUNT: 4 at 8,
        RESERVED: 4 at 12,
        DIGEST: 8 at 16,
    }
}

layout! {
    /// The upper 52 bits of the ids in a block of record numbers.
    pub mod block: 8 bytes {
        IDS: 8 at 0,
    }
}

layout! {
    /// The number of planes of a group.
    pub mod group: 4 bytes {
        PLANES: 4 at 0,
    }
}

layout! {
    /// A bucket of a plane: eight signatures, then eight record numbers.
    pub mod bucket: 48 bytes {
        SIGNATURES: 16 at 0,
        NUMBERS: 32 at 16,
    }
}

layout! {
    /// An entry without a slot in a saved table.
    pub mod stashed: 16 bytes {
        BUCKET: 8 at 0,
        SIGNATURE: 4 at 8,
        NUMBER: 4 at 12,
    }
}

layout! {
    pub mod chain: 8 bytes {
        PARTITION: 4 at 0,
        PAGES: 4 at 4,
    }
}

layout! {
    /// An entry in a write buffer of saved chains.
    pub mod buffered: 12 bytes {
        PARTITION: 4 at 0,
        SIGNATURE: 4 at 4,
        NUMBER: 4 at 8,
    }
}

layout! {
    /// A unit of the file of chains, with filters or entries.
    pub mod unit: 4096 bytes {
        CONTENT: 4088 at 0,
        CHECKSUM: 8 at 4088,
    }
}

layout! {
    /// An entry of a page of saved chains.
    pub mod page_entry: 8 bytes {
        SIGNATURE: 4 at 0,
        NUMBER: 4 at 4,
    }
}

/// Filters of a chain, one per page. A row has one bit of each.
pub const CHAIN_PAGES: usize = 128;

/// Blocks of filters of a chain: 8,160 bits per filter, 16 per entry of a page.
pub const CHAIN_BLOCKS: usize = 32;

/// Rows of a block. They leave room for the checksum of the unit, and 8 bytes of zeros.
pub const BLOCK_ROWS: u64 = 255;

/// Rows of a key: fewer than the best number for 16 bits, to save time. One filter in 1,500 has a
/// false positive.
pub const KEY_ROWS: u32 = 8;

/// Entries of a page: four bytes of hash and the record number for each.
pub const PAGE_ROWS: usize = unit::CHECKSUM.start / page_entry::BYTES;

/// A block of record numbers has 2 to the power of this numbers.
pub const BLOCK_BITS: u32 = 12;

pub const CHECKSUM_BYTES: usize = size_of::<u64>();

/// Returns `body` followed by its checksum.
pub fn seal(mut body: Vec<u8>) -> Vec<u8> {
    let check = xxh3_64(&body);
    body.extend(check.to_le_bytes());
    body
}

/// Returns the body given to [`seal`], or None if any byte has changed.
pub fn checked(data: &[u8]) -> Option<&[u8]> {
    let (body, check) = data.split_at_checked(data.len().checked_sub(CHECKSUM_BYTES)?)?;
    (check == xxh3_64(body).to_le_bytes()).then_some(body)
}

/// The owner of an index: the volume, and the kind of its containers.
pub struct Owner {
    pub volume_id: [u8; 16],
    pub kind: u8,
}

/// Identifies one of the two files.
pub struct FileFormat {
    pub magic: &'static [u8; 8],
    pub format: u16,
}

pub const SAVED_TABLE: FileFormat = FileFormat { magic: b"DEDUPTBL", format: 2 };
pub const SAVED_CHAINS: FileFormat = FileFormat { magic: b"DEDUPBLM", format: 1 };

/// The fields of a header, without those of its owner.
pub struct Header {
    pub group_bits: u32,
    pub parts: usize,
    pub entries: u64,
    pub containers: usize,
    pub blocks: usize,
    pub runs: usize,
    pub left_over: usize,
}

impl Header {
    pub fn to_bytes(&self, file: &FileFormat, owner: &Owner) -> [u8; header::BYTES] {
        let mut out = [0; header::BYTES];
        header::MAGIC.put(&mut out, file.magic);
        header::FORMAT.put(&mut out, &file.format.to_le_bytes());
        header::KIND.put(&mut out, &[owner.kind]);
        header::GROUP_BITS.put(&mut out, &[self.group_bits as u8]);
        header::PARTS.put(&mut out, &(self.parts as u32).to_le_bytes());
        header::VOLUME_ID.put(&mut out, &owner.volume_id);
        header::ENTRIES.put(&mut out, &self.entries.to_le_bytes());
        header::CONTAINERS.put(&mut out, &(self.containers as u32).to_le_bytes());
        header::BLOCKS.put(&mut out, &(self.blocks as u32).to_le_bytes());
        header::RUNS.put(&mut out, &(self.runs as u32).to_le_bytes());
        header::LEFT_OVER.put(&mut out, &(self.left_over as u32).to_le_bytes());
        let check = xxh3_64(&out[..header::CHECKSUM.start]);
        header::CHECKSUM.put(&mut out, &check.to_le_bytes());
        out
    }

    /// Returns None for a damaged file, or a file of another volume, kind or format.
    pub fn of(data: &[u8; header::BYTES], file: &FileFormat, owner: &Owner) -> Option<Header> {
        let found = Header {
            group_bits: header::GROUP_BITS.u8(data).into(),
            parts: header::PARTS.u32(data) as usize,
            entries: header::ENTRIES.u64(data),
            containers: header::CONTAINERS.u32(data) as usize,
            blocks: header::BLOCKS.u32(data) as usize,
            runs: header::RUNS.u32(data) as usize,
            left_over: header::LEFT_OVER.u32(data) as usize,
        };
        (found.to_bytes(file, owner) == *data).then_some(found)
    }
}
