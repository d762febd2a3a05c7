//! The frame of a chunk in a store in a cluster (docs/design/format.md, "Chunk frame").

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::format::bytes::layout;
use crate::format::codec::Codec;
use crate::format::ids::{Checksum, Fingerprint, hash_of};

layout! {
    pub mod fields: 32 bytes {
        MAGIC: 4 at 0,
        FORMAT: 1 at 4,
        CODEC: 1 at 5,
        RESERVED: 2 at 6,
        STORED_LENGTH: 4 at 8,
        RAW_LENGTH: 4 at 12,
        CHECKSUM: 8 at 16,
        HEADER_CHECK: 8 at 24,
    }
}

pub const FRAME_BYTES: usize = fields::BYTES;
const MAGIC: [u8; 4] = *b"DDRF";
const FORMAT: u8 = 1;

/// A frame with the header of a chunk, and its unchecked payload.
pub struct ChunkFrame<'a> {
    pub codec: Codec,
    pub raw_length: u32,
    pub checksum: Checksum,
    pub payload: &'a [u8],
}

impl<'a> ChunkFrame<'a> {
    /// The frame in a chunk's object. None if it is not the frame of the chunk with this
    /// fingerprint, or has another format.
    pub fn of(object: &'a [u8], fingerprint: &Fingerprint) -> Option<ChunkFrame<'a>> {
        let (head, payload) = object.split_at_checked(FRAME_BYTES)?;
        let checked = &head[..fields::HEADER_CHECK.start];
        let codec = Codec::from(fields::CODEC.u8(head));
        let is_sound = *fields::MAGIC.of(head) == MAGIC
            && fields::HEADER_CHECK.u64(head) == xxh3_64_with_seed(checked, hash_of(fingerprint))
            && fields::FORMAT.u8(head) == FORMAT
            && fields::RESERVED.u16(head) == 0
            && codec.stands_alone()
            && fields::STORED_LENGTH.u32(head) as usize == payload.len();
        is_sound.then(|| ChunkFrame {
            codec,
            raw_length: fields::RAW_LENGTH.u32(head),
            checksum: Checksum(fields::CHECKSUM.u64(head)),
            payload,
        })
    }
}
