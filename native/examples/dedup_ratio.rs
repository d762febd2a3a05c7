//! Savings on real files: this chunker against a Rabin fingerprint of degree 53, same rules.
//!
//! `cargo run --release --no-default-features --example dedup_ratio PATH...`

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

use native::chunker::{Chunker, Parameters, Scratch};
use native::fingerprint::{Algorithm, Fingerprint};

const BITS: u32 = 16;
const REGRESSION: u32 = 4;
const MIN_BYTES: usize = 32 << 10;
const MAX_BYTES: usize = 128 << 10;

#[derive(Default)]
struct Tally {
    chunks: u64,
    bytes: u64,
    unique_bytes: u64,
    known: HashSet<Fingerprint>,
}

impl Tally {
    fn add(&mut self, chunk: &[u8]) {
        self.chunks += 1;
        self.bytes += chunk.len() as u64;
        if self.known.insert(Algorithm::Blake3.digest(chunk)) {
            self.unique_bytes += chunk.len() as u64;
        }
    }

    fn report(&self, name: &str) {
        println!(
            "{name:24} {:9} chunks, mean {:6} bytes, {:6.1} MB unique of {:6.1} MB, saved {:.3} %",
            self.chunks,
            self.bytes / self.chunks.max(1),
            self.unique_bytes as f64 / 1e6,
            self.bytes as f64 / 1e6,
            100.0 * (1.0 - self.unique_bytes as f64 / self.bytes as f64),
        );
    }
}

fn main() {
    let mut files = Vec::new();
    for root in std::env::args().skip(1) {
        collect(Path::new(&root), &mut files);
    }
    let parameters = Parameters {
        polynomial: 0x16d43,
        bits: BITS,
        pattern: 0xcb6b,
        regression: REGRESSION,
        min_bytes: MIN_BYTES,
        max_bytes: MAX_BYTES,
    };
    let chunker = Chunker::new(parameters, None).expect("valid parameters");
    let rabin = Rabin53::new();
    let [mut ours, mut theirs, mut whole, mut fast] = <[Tally; 4]>::default();
    let mut scratch = Scratch::default();
    for file in files {
        let Ok(data) = fs::read(&file) else { continue };
        if data.is_empty() {
            continue;
        }
        whole.add(&data);
        let mut start = 0;
        while let Some(end) = chunker.next_cut(&data, start, true, &mut scratch) {
            ours.add(&data[start..end]);
            start = end;
        }
        start = 0;
        while start < data.len() {
            let end = start + rabin.cut(&data[start..]);
            theirs.add(&data[start..end]);
            start = end;
        }
        let cutter =
            fastcdc::v2020::FastCDC::new(&data, MIN_BYTES as u32, 64 << 10, MAX_BYTES as u32);
        for chunk in cutter {
            fast.add(&data[chunk.offset..chunk.offset + chunk.length]);
        }
    }
    whole.report("whole files");
    ours.report("degree 16");
    theirs.report("degree 53");
    fast.report("fastcdc crate");
}

fn collect(path: &Path, files: &mut Vec<PathBuf>) {
    let Ok(kind) = fs::symlink_metadata(path) else { return };
    if kind.is_file() {
        files.push(path.to_owned());
    } else if kind.is_dir() {
        for entry in fs::read_dir(path).into_iter().flatten().flatten() {
            collect(&entry.path(), files);
        }
    }
}

/// Rolling Rabin over 64 bytes modulo an irreducible polynomial of degree 53, byte by byte.
struct Rabin53 {
    overflow: [u64; 256],
    leave: [u64; 256],
}

const POLYNOMIAL: u64 = 0x3d_a335_8b4d_c173;
const DEGREE: u32 = 53;
const PATTERN: u64 = 0xcb6b;

impl Rabin53 {
    fn new() -> Rabin53 {
        let times_x = |value: u64| {
            let shifted = value << 1;
            if shifted >> DEGREE == 1 { shifted ^ POLYNOMIAL } else { shifted }
        };
        let table = |power: u32| {
            std::array::from_fn(|byte| (0..power).fold(byte as u64, |value, _| times_x(value)))
        };
        Rabin53 { overflow: table(DEGREE), leave: table(8 * 64) }
    }

    fn cut(&self, data: &[u8]) -> usize {
        let limit = data.len().min(MAX_BYTES);
        if limit < MIN_BYTES {
            return limit;
        }
        let low_mask = (1u64 << (DEGREE - 8)) - 1;
        let mut value = 0u64;
        let mut relaxed = (0, limit);
        for end in MIN_BYTES - 63..=limit {
            value = (value & low_mask) << 8
                ^ u64::from(data[end - 1])
                ^ self.overflow[(value >> (DEGREE - 8)) as usize];
            if end > MIN_BYTES {
                value ^= self.leave[usize::from(data[end - 65])];
            }
            if end >= MIN_BYTES {
                let matched = (value ^ PATTERN).trailing_zeros().min(BITS);
                if matched == BITS {
                    return end;
                }
                if matched >= BITS - REGRESSION && matched >= relaxed.0 {
                    relaxed = (matched, end);
                }
            }
        }
        if limit == MAX_BYTES { relaxed.1 } else { limit }
    }
}
