//! Sketches of chunks, by which those that are alike are found (docs/design/format.md, "Sketches").
//!
//! The N-transform of Shilane et al. with content-defined sampling (Odess): of the hashes that a
//! rolling hash takes on, one in 32 is looked at, and eight linear maps choose one each, that with the
//! largest value. What the hash was taken of there is a feature: eight of them find twice as many
//! chunks as six pairs of them do, and cost some more trials.

use xxhash_rust::xxh3::xxh3_64_with_seed;

pub const FEATURES: usize = 8;
pub const SKETCH_BYTES: usize = 8 * FEATURES;

/// Bits of a feature: of 800 million, those of 100 million chunks, one in 1,400 is like another
/// by chance, which costs a trial; more bits would cost a place in the files of sketches.
pub const FEATURE_BITS: u32 = 40;

/// All zeros where a chunk has nothing to be sketched.
pub type Sketch = [u64; FEATURES];

/// How many domains can be told apart, with the volume's, which is 0.
pub const DOMAINS_MAX: u64 = 1 << (u64::BITS - FEATURE_BITS);

/// A sketch that has no feature in common with those of other domains.
pub fn in_domain(sketch: Sketch, domain: u64) -> Sketch {
    sketch.map(|feature| if feature == 0 { 0 } else { feature | domain << FEATURE_BITS })
}

/// The hash is of so many bytes: each shifts the ones before it up by a bit.
const WINDOW: usize = 32;
/// A hash counts where as many of its upper bits are zero.
const SAMPLE_BITS: u32 = 5;
const LANES: usize = 4;
/// Shorter chunks save too little to be worth a second record to read.
const RAW_BYTES_MIN: usize = 1 << 10;
/// Steps of all lanes between two looks at the sampled hashes.
const STEPS: usize = 256;

const GEAR: [u32; 256] = {
    let mut table = [0; 256];
    let mut at = 0;
    while at < 256 {
        table[at] = mix(at as u64 + 1) as u32;
        at += 1;
    }
    table
};

const FACTORS: [u32; FEATURES] = parameters(0x1000);
const ADDENDS: [u32; FEATURES] = parameters(0x2000);

/// The finalizer of SplitMix64.
pub(crate) const fn mix(value: u64) -> u64 {
    let value = value.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let value = (value ^ value >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let value = (value ^ value >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ value >> 31
}

const fn parameters(seed: u64) -> [u32; FEATURES] {
    let mut values = [0; FEATURES];
    let mut at = 0;
    while at < FEATURES {
        values[at] = mix(seed + at as u64) as u32 | 1;
        at += 1;
    }
    values
}

/// The sketch of a chunk.
pub fn sketch(raw: &[u8]) -> Sketch {
    if raw.len() < RAW_BYTES_MIN {
        return Sketch::default();
    }
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has these instructions.
        return features(raw, &unsafe { largest_avx2(raw) });
    }
    features(raw, &largest(raw))
}

/// What each map has found: its largest value, and where the bytes end whose hash has it.
#[derive(Default, Debug, PartialEq, Eq)]
struct Largest {
    values: [u32; FEATURES],
    ends: [u32; FEATURES],
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn largest_avx2(raw: &[u8]) -> Largest {
    largest(raw)
}

/// Four parts of the chunk at once, each from a window before its beginning on: the hash at a place
/// is that of the bytes before it, wherever it was begun.
#[inline(always)]
fn largest(raw: &[u8]) -> Largest {
    let mut found = Largest::default();
    let part = (raw.len() - WINDOW) / LANES;
    let lanes: [&[u8]; LANES] = std::array::from_fn(|lane| {
        let start = lane * part;
        &raw[start..start + WINDOW + part]
    });
    let mut hashes = [0u32; LANES];
    for (hash, bytes) in hashes.iter_mut().zip(&lanes) {
        for &byte in &bytes[..WINDOW] {
            *hash = (*hash << 1).wrapping_add(GEAR[byte as usize]);
        }
    }
    let mut sampled = [(0u32, 0u32); LANES * STEPS + 1];
    let mut first = WINDOW;
    while first < WINDOW + part {
        let end = (first + STEPS).min(WINDOW + part);
        let rest: [&[u8]; LANES] = std::array::from_fn(|lane| &lanes[lane][first..end]);
        let mut count = 0;
        for at in 0..end - first {
            for lane in 0..LANES {
                let hash = (hashes[lane] << 1).wrapping_add(GEAR[rest[lane][at] as usize]);
                hashes[lane] = hash;
                sampled[count] = (hash, (lane * part + first + at + 1) as u32);
                count += usize::from(hash >> (u32::BITS - SAMPLE_BITS) == 0);
            }
        }
        look_at(&sampled[..count], &mut found);
        first = end;
    }
    found
}

#[inline(always)]
fn look_at(sampled: &[(u32, u32)], found: &mut Largest) {
    let Largest { mut values, mut ends } = *found;
    for &(hash, end) in sampled {
        for map in 0..FEATURES {
            let value = hash.wrapping_mul(FACTORS[map]).wrapping_add(ADDENDS[map]);
            ends[map] = if value > values[map] { end } else { ends[map] };
            values[map] = values[map].max(value);
        }
    }
    *found = Largest { values, ends };
}

/// The bytes themselves are hashed: among the largest values of a map there are few.
fn features(raw: &[u8], found: &Largest) -> Sketch {
    std::array::from_fn(|map| {
        let end = found.ends[map] as usize;
        let Some(start) = end.checked_sub(WINDOW) else { return 0 };
        // The place is part of it, so that equal features are in the same place.
        let hash = xxh3_64_with_seed(&raw[start..end], map as u64 + 1);
        (hash >> (u64::BITS - FEATURE_BITS)).max(1)
    })
}

const PACKED_FEATURE_BYTES: usize = FEATURE_BITS as usize / 8;
const PACKED_BYTES: usize = PACKED_FEATURE_BYTES * FEATURES;

/// A bit for each sketch that is not all zeros, and these: as they are in a file.
pub fn pack(sketches: &[Sketch]) -> Vec<u8> {
    let mut out = vec![0; sketches.len().div_ceil(8)];
    for (place, sketch) in sketches.iter().enumerate() {
        if sketch.iter().any(|&one| one != 0) {
            out[place / 8] |= 1 << (place % 8);
            for one in sketch {
                out.extend_from_slice(&one.to_le_bytes()[..PACKED_FEATURE_BYTES]);
            }
        }
    }
    out
}

/// What [`pack`] was given; None where the bytes are not those of so many sketches.
pub fn unpack(packed: &[u8], count: usize) -> Option<Vec<Sketch>> {
    let (bits, rest) = packed.split_at_checked(count.div_ceil(8))?;
    let mut rest = rest.chunks_exact(PACKED_BYTES);
    let mut sketches = vec![Sketch::default(); count];
    for (place, sketch) in sketches.iter_mut().enumerate() {
        if bits[place / 8] >> (place % 8) & 1 == 1 {
            for (one, bytes) in sketch.iter_mut().zip(rest.next()?.chunks(PACKED_FEATURE_BYTES)) {
                let mut whole = [0; 8];
                whole[..PACKED_FEATURE_BYTES].copy_from_slice(bytes);
                *one = u64::from_le_bytes(whole);
            }
        }
    }
    (rest.next().is_none() && rest.remainder().is_empty()).then_some(sketches)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(seed: u64, length: usize) -> Vec<u8> {
        (0..length as u64).map(|at| mix(seed << 32 | at) as u8).collect()
    }

    fn common(one: &Sketch, other: &Sketch) -> usize {
        one.iter().zip(other).filter(|(one, other)| one == other && **one != 0).count()
    }

    #[test]
    fn chunks_that_are_alike_have_features_in_common_and_others_have_none() {
        let base = noise(1, 80_000);
        let mut edited = base.clone();
        edited.splice(30_000..30_004, noise(2, 50));
        assert!(common(&sketch(&base), &sketch(&edited)) >= 3);
        assert_eq!(common(&sketch(&base), &sketch(&noise(3, 80_000))), 0);
        assert_eq!(sketch(&base), sketch(&base));
    }

    #[test]
    fn most_of_what_shares_four_tenths_has_a_feature_in_common() {
        let shared = |seed: u64| {
            let base = noise(seed, 40_000);
            let mut other = noise(1000 + seed, 40_000);
            for at in (0..40_000).step_by(5000) {
                other[at..at + 2000].copy_from_slice(&base[at..at + 2000]);
            }
            usize::from(common(&sketch(&base), &sketch(&other)) > 0)
        };
        let found: usize = (1..=20).map(shared).sum();
        assert!(found >= 15, "{found} of 20");
    }

    #[test]
    fn features_of_many_chunks_that_have_nothing_in_common_differ() {
        let mut all: Vec<_> = (1..=800).flat_map(|seed| sketch(&noise(seed, 16_000))).collect();
        all.sort_unstable();
        assert!(all.windows(2).all(|pair| pair[0] != pair[1]));
    }

    #[test]
    fn sketches_are_as_before_after_they_were_packed() {
        let mut sketches: Vec<_> = (1..20).map(|seed| sketch(&noise(seed, 5000))).collect();
        sketches[7] = Sketch::default();
        let packed = pack(&sketches);
        assert_eq!(packed.len(), 3 + 18 * 40);
        assert_eq!(unpack(&packed, 19).as_deref(), Some(&sketches[..]));
        assert_eq!(unpack(&packed[..packed.len() - 1], 19), None);
        assert_eq!(unpack(&packed, 18), None);
        assert_eq!(unpack(&packed, 9000), None);
    }

    #[test]
    fn short_chunks_and_uniform_ones_are_sketched_or_left_alone() {
        assert_eq!(sketch(&[]), Sketch::default());
        assert_eq!(sketch(&noise(1, RAW_BYTES_MIN - 1)), Sketch::default());
        assert_ne!(sketch(&noise(1, RAW_BYTES_MIN)), Sketch::default());
        let uniform = [vec![7; 70_000], vec![7; 90_000]].map(|raw| sketch(&raw));
        assert_eq!(uniform[0], uniform[1]);
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn the_vector_instructions_change_nothing() {
        if std::arch::is_x86_feature_detected!("avx2") {
            for length in [1024, 1025, 4099, 131_072] {
                let raw = noise(9, length);
                // SAFETY: the processor has these instructions.
                assert_eq!(unsafe { largest_avx2(&raw) }, largest(&raw));
            }
        }
    }
}
