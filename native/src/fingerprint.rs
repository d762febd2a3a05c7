//! Cryptographic fingerprints of chunks, and the test for zeros.

use sha2::{Digest, Sha256};

pub use crate::format::ids::{FINGERPRINT_BYTES, Fingerprint};
use crate::threads::pool;

/// Ranges that a thread takes at once: about 1 MiB of chunks at the default size.
const BATCH: usize = 16;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Algorithm {
    #[default]
    Blake3,
    Sha256,
}

impl Algorithm {
    pub fn from_name(name: &str) -> Option<Algorithm> {
        match name {
            "blake3" => Some(Algorithm::Blake3),
            "sha256" => Some(Algorithm::Sha256),
            _ => None,
        }
    }

    pub fn digest(self, data: &[u8]) -> Fingerprint {
        match self {
            Algorithm::Blake3 => *blake3::hash(data).as_bytes(),
            Algorithm::Sha256 => Sha256::digest(data).into(),
        }
    }
}

/// Fingerprint of each of `ranges`, in order.
pub fn digest_all(
    data: &[u8],
    ranges: &[(usize, usize)],
    algorithm: Algorithm,
    threads: usize,
) -> Vec<Fingerprint> {
    let mut out = vec![[0; FINGERPRINT_BYTES]; ranges.len()];
    let batches = ranges.chunks(BATCH).zip(out.chunks_mut(BATCH));
    pool::for_each_of(batches, threads, |(ranges, out)| {
        for (&(start, end), fingerprint) in ranges.iter().zip(out) {
            *fingerprint = algorithm.digest(&data[start..end]);
        }
    });
    out
}

/// Stops at the first block with a nonzero byte, so ordinary data costs 256 bytes.
pub fn is_zero(data: &[u8]) -> bool {
    data.chunks(256).all(|block| block.iter().fold(0, |all, &byte| all | byte) == 0)
}
