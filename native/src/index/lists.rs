//! What the saved forms of both indexes have in common.

use std::collections::HashMap;

use xxhash_rust::xxh3::xxh3_64;

use super::chunks::Stamp;
use super::numbers::Numbers;

pub const STAMP_BYTES: usize = 24;
const CHECK_BYTES: usize = 8;

/// Whose index it is: the volume, and the kind of its containers.
pub struct Owner {
    pub volume: [u8; 16],
    pub kind: u8,
}

pub fn seal(mut body: Vec<u8>) -> Vec<u8> {
    let check = xxh3_64(&body);
    body.extend(check.to_le_bytes());
    body
}

/// What `seal` was given, if nothing has changed since.
pub fn checked(data: &[u8]) -> Option<&[u8]> {
    let (body, check) = data.split_at_checked(data.len().checked_sub(CHECK_BYTES)?)?;
    (check == xxh3_64(body).to_le_bytes()).then_some(body)
}

/// The first bytes of both files. What `byte` and `parts` are is the matter of each index, and so is
/// what is counted.
pub struct Header {
    pub byte: u8,
    pub parts: u32,
    pub entries: u64,
    pub counts: [u32; 4],
}

impl Header {
    pub const BYTES: usize = 64;

    pub fn encode(&self, magic: &[u8; 8], format: u16, owner: &Owner) -> Vec<u8> {
        let mut out = magic.to_vec();
        out.extend(format.to_le_bytes());
        out.extend([owner.kind, self.byte]);
        out.extend(self.parts.to_le_bytes());
        out.extend(owner.volume);
        out.extend(self.entries.to_le_bytes());
        self.counts.iter().for_each(|count| out.extend(count.to_le_bytes()));
        seal(out)
    }

    /// None for a file of another volume, kind or format, or a damaged one.
    pub fn decode(data: &[u8], magic: &[u8; 8], format: u16, owner: &Owner) -> Option<Header> {
        let body = checked(data)?;
        let word = |at: usize| u32::from_le_bytes(*body[at..].first_chunk().unwrap_or(&[0; 4]));
        let header = Header {
            byte: body[11],
            parts: word(12),
            entries: u64::from(word(32)) | u64::from(word(36)) << 32,
            counts: [40, 44, 48, 52].map(word),
        };
        (header.encode(magic, format, owner) == data).then_some(header)
    }
}

pub fn encode_stamps(stamps: &HashMap<u32, Stamp>) -> Vec<u8> {
    let mut out = Vec::with_capacity(stamps.len() * STAMP_BYTES);
    for (container, stamp) in stamps {
        for word in [*container, stamp.generation, stamp.count, 0] {
            out.extend(word.to_le_bytes());
        }
        out.extend(stamp.digest.to_le_bytes());
    }
    out
}

pub fn decode_stamps(data: &[u8]) -> HashMap<u32, Stamp> {
    let decode = |row: &[u8]| {
        let fields: Vec<u32> = halves(row).collect();
        let digest = words(&row[16..]).next().unwrap_or_default();
        (fields[0], Stamp { generation: fields[1], count: fields[2], digest })
    };
    data.chunks_exact(STAMP_BYTES).map(decode).collect()
}

pub fn encode_blocks(numbers: &Numbers) -> impl Iterator<Item = u8> {
    numbers.blocks().iter().flat_map(|block| block.to_le_bytes())
}

/// None where a block comes twice.
pub fn decode_blocks(data: &[u8]) -> Option<Numbers> {
    Numbers::from_blocks(words(data).collect())
}

pub fn words(data: &[u8]) -> impl Iterator<Item = u64> {
    data.chunks_exact(8).filter_map(|item| item.first_chunk()).map(|item| u64::from_le_bytes(*item))
}

pub fn halves(data: &[u8]) -> impl Iterator<Item = u32> {
    data.chunks_exact(4).filter_map(|item| item.first_chunk()).map(|item| u32::from_le_bytes(*item))
}
