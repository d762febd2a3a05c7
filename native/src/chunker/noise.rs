//! Test data for the paths of stage 1.

/// Reproducible random bytes (SplitMix64).
pub(super) fn noise(length: usize) -> Vec<u8> {
    let mut state = 0u64;
    let words = std::iter::repeat_with(move || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    });
    words.flat_map(u64::to_le_bytes).take(length).collect()
}
