//! The lists that the saved forms of both indexes share.

use std::collections::HashMap;

use super::chunks::Stamp;
use super::numbers::Numbers;
use crate::format::ids::ContainerNumber;
use crate::format::saved_index::{block, stamp};

pub fn encode_stamps(stamps: &HashMap<ContainerNumber, Stamp>) -> Vec<u8> {
    let mut out = Vec::with_capacity(stamps.len() * stamp::BYTES);
    for (container, known) in stamps {
        let mut row = [0; stamp::BYTES];
        stamp::CONTAINER.put(&mut row, &container.0.to_le_bytes());
        stamp::GENERATION.put(&mut row, &known.generation.to_le_bytes());
        stamp::COUNT.put(&mut row, &known.count.to_le_bytes());
        stamp::DIGEST.put(&mut row, &known.digest.to_le_bytes());
        out.extend(row);
    }
    out
}

pub fn decode_stamps(data: &[u8]) -> HashMap<ContainerNumber, Stamp> {
    let decode = |row: &[u8]| {
        let known = Stamp {
            generation: stamp::GENERATION.u32(row),
            count: stamp::COUNT.u32(row),
            digest: stamp::DIGEST.u64(row),
        };
        (ContainerNumber(stamp::CONTAINER.u32(row)), known)
    };
    data.chunks_exact(stamp::BYTES).map(decode).collect()
}

pub fn encode_blocks(numbers: &Numbers) -> impl Iterator<Item = u8> {
    numbers.blocks().iter().flat_map(|block| block.to_le_bytes())
}

/// Returns None if a block occurs twice.
pub fn decode_blocks(data: &[u8]) -> Option<Numbers> {
    let ids = data.chunks_exact(block::BYTES).map(|row| block::IDS.u64(row));
    Numbers::from_blocks(ids.collect())
}
