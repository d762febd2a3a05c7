//! The header of each frame of a stream (docs/design/format.md, "Frame header").

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::bytes::layout;
use super::codec::Codec;

layout! {
    pub mod header: 32 bytes {
        MAGIC: 4 at 0,
        KIND: 1 at 4,
        CODEC: 1 at 5,
        RESERVED: 2 at 6,
        SEQUENCE: 4 at 8,
        RAW_LENGTH: 4 at 12,
        STORED_LENGTH: 4 at 16,
        RESERVED_END: 4 at 20,
        CHECKSUM: 8 at 24,
    }
}

pub const HEADER_BYTES: usize = header::BYTES;
const MAGIC: [u8; 4] = *b"DDSF";

/// The kind of a frame that has a chunk: its fingerprint, and the payload of its record.
pub const CHUNK: u8 = 2;

/// The header of a frame, without its length.
#[derive(Clone, Copy)]
pub struct Head {
    pub kind: u8,
    pub codec: Codec,
    pub sequence: u32,
    pub raw_length: u32,
}

/// Writes the header of `frame` before its payload. Returns None if the payload is too long.
pub fn write_header(frame: &mut [u8], head: Head, seed: u64) -> Option<()> {
    let (out, payload) = frame.split_at_mut(HEADER_BYTES);
    let stored_length = u32::try_from(payload.len()).ok()?;
    out.fill(0);
    header::MAGIC.put(out, &MAGIC);
    header::KIND.put(out, &[head.kind]);
    header::CODEC.put(out, &[head.codec.number()]);
    header::SEQUENCE.put(out, &head.sequence.to_le_bytes());
    header::RAW_LENGTH.put(out, &head.raw_length.to_le_bytes());
    header::STORED_LENGTH.put(out, &stored_length.to_le_bytes());
    let seed = xxh3_64_with_seed(payload, seed);
    let checksum = xxh3_64_with_seed(&out[..header::CHECKSUM.start], seed);
    header::CHECKSUM.put(out, &checksum.to_le_bytes());
    Some(())
}
