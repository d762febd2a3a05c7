//! Number of chunks of random data that end at the maximum size without any match.
//!
//! `cargo run --release --no-default-features --example forced_cuts [GB]`

use native::chunker::{Chunker, Parameters, Scratch};

const BUFFER_BYTES: usize = 256 << 20;

fn main() {
    let gigabytes: usize = std::env::args().nth(1).map_or(10, |arg| arg.parse().expect("GB"));
    let chunkers = [4, 3, 2, 1, 0].map(|regression| {
        let parameters = Parameters {
            polynomial: 0x16d43,
            bits: 16,
            pattern: 0xcb6b,
            regression,
            min_bytes: 32 << 10,
            max_bytes: 128 << 10,
        };
        (regression, Chunker::new(parameters, None).expect("valid parameters"))
    });
    let mut state = 0x853c_49e6_748f_ea9b;
    let mut data = vec![0; BUFFER_BYTES];
    let mut counts = [[0u64; 2]; 5];
    for _ in 0..(gigabytes * 1_000_000_000).div_ceil(BUFFER_BYTES) {
        fill(&mut state, &mut data);
        for ((_, chunker), [chunks, forced]) in chunkers.iter().zip(&mut counts) {
            let mut scratch = Scratch::default();
            let mut start = 0;
            while let Some(end) = chunker.next_cut(&data, start, false, &mut scratch) {
                *chunks += 1;
                *forced += u64::from(is_forced(chunker, &data[start..end]));
                start = end;
            }
        }
    }
    for ((regression, _), [chunks, forced]) in chunkers.iter().zip(counts) {
        let share = forced as f64 / chunks as f64;
        println!("regression {regression}: {chunks} chunks, {forced} forced ({share:.5})");
    }
}

fn is_forced(chunker: &Chunker, chunk: &[u8]) -> bool {
    chunk.len() == chunker.max_bytes() && chunker.candidates(&chunk[chunk.len() - 64..]).is_empty()
}

fn fill(state: &mut u64, data: &mut [u8]) {
    for word in data.chunks_exact_mut(8) {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        word.copy_from_slice(&state.wrapping_mul(0x2545_f491_4f6c_dd1d).to_le_bytes());
    }
}
