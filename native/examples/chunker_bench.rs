//! Chunking speed on one core: this crate's paths, the `fastcdc` crate, and a plain rolling loop.
//!
//! `cargo run --release --no-default-features --example chunker_bench [MIB]` prints one JSON object
//! per line; `benchmarks/chunker.py` makes a table of them.

use std::hint::black_box;
use std::time::Instant;

use native::chunker::{Chunker, Parameters, Scratch, available_paths};
use native::fingerprint::Algorithm;
use native::ingest::chunks::{Segment, process};

/// The best of the rounds in this time: other work on the machine only makes a round slower.
const SECONDS_PER_CASE: f64 = 1.0;

/// name, bits, minimum, maximum
const PRESETS: [(&str, u32, usize, usize); 5] = [
    ("64k", 16, 32 << 10, 128 << 10),
    ("32k", 15, 16 << 10, 64 << 10),
    ("16k", 14, 8 << 10, 32 << 10),
    ("8k", 13, 4 << 10, 16 << 10),
    ("4k", 12, 2 << 10, 8 << 10),
];

fn main() {
    let mib: usize = std::env::args().nth(1).map_or(64, |arg| arg.parse().expect("MiB"));
    let data = noise(mib << 20);
    for path in available_paths() {
        let name = path.name();
        for (preset, bits, min_bytes, max_bytes) in PRESETS {
            let chunker = chunker(bits, min_bytes, max_bytes, name);
            let mut chunks = 0;
            let rate = best_rate(data.len(), || {
                chunks = cut_all(&chunker, &data);
                chunks
            });
            report(&format!("{name}, {preset}"), rate, data.len() / chunks);
        }
        let chunker = chunker(16, 32 << 10, 128 << 10, name);
        let rate = best_rate(data.len(), || chunker.candidates(black_box(&data)).len());
        report(&format!("{name}, every byte"), rate, 0);
        let cached = &data[..256 << 10];
        let rounds = data.len() / cached.len();
        let rate = best_rate(rounds * cached.len(), || {
            (0..rounds).map(|_| chunker.candidates(black_box(cached)).len()).sum()
        });
        report(&format!("{name}, every byte, data in L2"), rate, 0);
        let whole = [Segment { start: 0, end: data.len(), last: true }];
        let rate = best_rate(data.len(), || {
            process(&chunker, Algorithm::Blake3, black_box(&data), &whole, 1, None)[0].len()
        });
        report(&format!("{name}, 64k + BLAKE3"), rate, 0);
    }
    let mut chunks = 0;
    let rate = best_rate(data.len(), || {
        let cutter = fastcdc::v2020::FastCDC::new(black_box(&data), 32 << 10, 64 << 10, 128 << 10);
        chunks = cutter.count();
        chunks
    });
    report("fastcdc crate, 32/64/128 KiB", rate, data.len() / chunks);
    let rate = best_rate(data.len(), || rolling_loop(black_box(&data)));
    report("plain rolling loop, every byte", rate, 0);
}

fn chunker(bits: u32, min_bytes: usize, max_bytes: usize, path: &str) -> Chunker {
    let parameters = Parameters {
        polynomial: 0x16d43,
        bits,
        pattern: 0xcb6b,
        regression: 4,
        min_bytes,
        max_bytes,
    };
    Chunker::new(parameters, Some(path)).expect("valid parameters")
}

fn cut_all(chunker: &Chunker, data: &[u8]) -> usize {
    let mut scratch = Scratch::default();
    let (mut start, mut chunks) = (0, 0);
    while let Some(end) = chunker.next_cut(black_box(data), start, true, &mut scratch) {
        start = end;
        chunks += 1;
    }
    chunks
}

/// Rabin as usually written: one table step for every byte.
fn rolling_loop(data: &[u8]) -> usize {
    let (mut overflow, mut leave) = ([0u16; 256], [0u16; 256]);
    for byte in 0..256usize {
        let times_x = |value: u16| value << 1 ^ if value >> 15 == 1 { 0x6d43 } else { 0 };
        overflow[byte] = (0..16).fold(byte as u16, |value, _| times_x(value));
        leave[byte] = (0..512).fold(byte as u16, |value, _| times_x(value));
    }
    let mut value = 0u16;
    let mut matches = 0;
    for (index, &byte) in data.iter().enumerate() {
        value = value << 8 ^ u16::from(byte) ^ overflow[usize::from(value >> 8)];
        if index >= 64 {
            value ^= leave[usize::from(data[index - 64])];
        }
        matches += usize::from(value == 0xcb6b);
    }
    matches
}

fn best_rate(bytes: usize, mut work: impl FnMut() -> usize) -> f64 {
    let mut best = f64::MAX;
    let first = Instant::now();
    while best == f64::MAX || first.elapsed().as_secs_f64() < SECONDS_PER_CASE {
        let begin = Instant::now();
        black_box(work());
        best = best.min(begin.elapsed().as_secs_f64());
    }
    bytes as f64 / best / 1e6
}

fn report(name: &str, rate: f64, mean: usize) {
    println!("{{\"name\": \"{name}\", \"mb_s\": {rate:.0}, \"mean_bytes\": {mean}}}");
}

fn noise(length: usize) -> Vec<u8> {
    let mut state = 1u64;
    let words = std::iter::repeat_with(move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.wrapping_mul(0x2545_f491_4f6c_dd1d)
    });
    words.take(length / 8).flat_map(u64::to_le_bytes).collect()
}
