//! Payloads of delta records: zstd with the raw bytes of another record, the base, as prefix
//! (docs/design/format.md, "Delta records").

use std::cell::RefCell;

use zstd_safe::{CParameter, DCtx, ResetDirective};

use super::encode::{Compressor, Corruption, describe, filled, fitting};

/// Longer records are neither deltas nor bases, because decoding takes memory for both.
pub const RAW_BYTES_MAX: usize = 1 << 20;

thread_local! {
    static COMPRESSOR: RefCell<Compressor> = RefCell::new(Compressor::new());
    static DECOMPRESSOR: RefCell<DCtx<'static>> = RefCell::new(DCtx::create());
}

/// A prefix for a context that outlives it.
///
/// # Safety
///
/// A context uses a prefix for one frame, and drops it when the frame starts. The caller must start
/// and end that frame while `base` lives.
unsafe fn prefix(base: &[u8]) -> &'static [u8] {
    // SAFETY: by the contract above, no code uses the reference after `base` is dropped.
    unsafe { std::mem::transmute::<&[u8], &'static [u8]>(base) }
}

/// Writes the payload of `raw` with the prefix `base` to `out`; None if it does not fit.
pub fn compress(
    raw: &[u8],
    base: &[u8],
    out: &mut [u8],
    level: i32,
) -> Result<Option<usize>, String> {
    COMPRESSOR.with_borrow_mut(|compressor| {
        let context = compressor.at(level)?;
        // The window covers both.
        let window = usize::BITS - (raw.len() + base.len()).leading_zeros();
        context.set_parameter(CParameter::WindowLog(window.clamp(10, 27))).map_err(describe)?;
        // Four bytes that detect another base.
        context.set_parameter(CParameter::ChecksumFlag(true)).map_err(describe)?;
        // SAFETY: the frame starts here, and fails or ends here; both drop the prefix.
        context.ref_prefix(unsafe { prefix(base) }).map_err(describe)?;
        let made = context.compress2(out, raw);
        // A frame that did not fit is still open.
        context.reset(ResetDirective::SessionOnly).map_err(describe)?;
        context.ref_prefix(&[]).map_err(describe)?;
        fitting(made)
    })
}

/// Fills `out` from a payload that passed `encode::check`, and the raw bytes of its base.
pub fn decode(stored: &[u8], base: &[u8], out: &mut [u8]) -> Result<(), Corruption> {
    let length = DECOMPRESSOR
        .with_borrow_mut(|context| {
            // SAFETY: the frame is decoded here, and the prefix is dropped in any case.
            context.ref_prefix(unsafe { prefix(base) })?;
            let decoded = context.decompress(out, stored);
            context.reset(ResetDirective::SessionOnly)?;
            context.ref_prefix(&[])?;
            decoded
        })
        .map_err(describe)?;
    filled(length, out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(seed: u64, length: usize) -> Vec<u8> {
        let mut state = seed | 1;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        };
        (0..length).map(|_| next()).collect()
    }

    #[test]
    fn a_delta_is_small_and_needs_its_own_base() {
        let base = noise(7, 100_000);
        let mut raw = base.clone();
        raw[40_000..40_010].fill(9);
        let mut out = vec![0; raw.len()];
        let stored = compress(&raw, &base, &mut out, 3).unwrap().unwrap();
        assert!(stored < 500, "{stored}");
        let mut back = vec![0; raw.len()];
        decode(&out[..stored], &base, &mut back).unwrap();
        assert_eq!(back, raw);
        let other = noise(8, 100_000);
        decode(&out[..stored], &other, &mut back).unwrap_err();
    }

    #[test]
    fn a_base_that_looks_like_a_dictionary_is_plain_content() {
        let mut base = noise(3, 50_000);
        base[..4].copy_from_slice(&0xEC30_A437u32.to_le_bytes());
        let mut raw = base.clone();
        raw.truncate(30_000);
        let mut out = vec![0; raw.len()];
        for level in [3, 12] {
            let stored = compress(&raw, &base, &mut out, level).unwrap().unwrap();
            assert!(stored < 300, "{stored}");
            let mut back = vec![0; raw.len()];
            decode(&out[..stored], &base, &mut back).unwrap();
            assert_eq!(back, raw);
        }
    }

    #[test]
    fn what_does_not_fit_is_no_payload_and_leaves_nothing_behind() {
        let (raw, base) = (noise(1, 20_000), noise(2, 20_000));
        let mut out = vec![0; 100];
        assert_eq!(compress(&raw, &base, &mut out, 3), Ok(None));
        let mut room = vec![0; 20_000];
        let same = raw.clone(); // zstd rejects a prefix at the address of the input
        let stored = compress(&raw, &same, &mut room, 3).unwrap().unwrap();
        assert!(stored < 100);
    }
}
