//! Savings and time of compression with and without the test for incompressible data.
//!
//! `cargo run --release --no-default-features --example selective_compression PATH...` splits the
//! files as a volume would, and compresses every distinct chunk twice: always, and unless
//! `incompressible` advises against it. One JSON object per line.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use native::chunker::{Chunker, Parameters, Scratch};
use native::codec::compressibility::incompressible;
use native::fingerprint::Algorithm;
use zstd_safe::{CCtx, CParameter};

const LEVEL: i32 = 3;
/// The policy's default.
const SAVING_MIN: f64 = 0.05;

#[derive(Default)]
struct Sums {
    chunks: u64,
    raw_bytes: u64,
    /// Chunks that are stored raw if all are tried, because they save nothing.
    hopeless: u64,
    hopeless_bytes: u64,
    /// Chunks that the test calls incompressible, and those that zstd would have shrunk anyway.
    skipped: u64,
    skipped_wrongly: u64,
    saved_always: u64,
    saved_selectively: u64,
    time_always: Duration,
    time_test: Duration,
    time_skipped: Duration,
}

fn main() {
    let mut files = Vec::new();
    for root in std::env::args().skip(1) {
        collect(Path::new(&root), &mut files);
    }
    let parameters = Parameters {
        polynomial: 0x16d43,
        bits: 16,
        pattern: 0xcb6b,
        regression: 4,
        min_bytes: 32 << 10,
        max_bytes: 128 << 10,
    };
    let chunker = Chunker::new(parameters, None).expect("valid parameters");
    let mut scratch = Scratch::default();
    let mut zstd = CCtx::create();
    zstd.set_parameter(CParameter::CompressionLevel(LEVEL)).expect("a valid level");
    let mut room = vec![0; chunker.max_bytes()];
    let mut known = HashSet::new();
    let mut sums = Sums::default();
    for file in files {
        let Ok(data) = fs::read(&file) else { continue };
        let mut start = 0;
        while let Some(end) = chunker.next_cut(&data, start, true, &mut scratch) {
            if known.insert(Algorithm::Blake3.digest(&data[start..end])) {
                sums.add(&mut zstd, &data[start..end], &mut room);
            }
            start = end;
        }
    }
    sums.report();
}

impl Sums {
    fn add(&mut self, zstd: &mut CCtx<'_>, chunk: &[u8], room: &mut [u8]) {
        let begin = Instant::now();
        let skip = incompressible(chunk);
        self.time_test += begin.elapsed();
        let begin = Instant::now();
        let saved = saving(zstd, chunk, room);
        let time = begin.elapsed();
        self.chunks += 1;
        self.raw_bytes += chunk.len() as u64;
        self.hopeless += u64::from(saved == 0);
        self.hopeless_bytes += if saved == 0 { chunk.len() as u64 } else { 0 };
        self.saved_always += saved;
        self.time_always += time;
        if skip {
            self.skipped += 1;
            self.skipped_wrongly += u64::from(saved > 0);
            self.time_skipped += time;
        } else {
            self.saved_selectively += saved;
        }
    }

    fn report(&self) {
        let seconds = |time: Duration| time.as_secs_f64();
        let always = seconds(self.time_always);
        let selectively = always - seconds(self.time_skipped) + seconds(self.time_test);
        println!(
            "{{\"chunks\": {}, \"raw_mb\": {:.1}, \"hopeless_chunks\": {}, \"hopeless_mb\": {:.1}, \
             \"skipped\": {}, \"skipped_wrongly\": {}, \"saved_always_mb\": {:.3}, \
             \"savings_kept_percent\": {:.4}, \"seconds_always\": {always:.2}, \
             \"seconds_selectively\": {selectively:.2}, \"seconds_test\": {:.3}}}",
            self.chunks,
            self.raw_bytes as f64 / 1e6,
            self.hopeless,
            self.hopeless_bytes as f64 / 1e6,
            self.skipped,
            self.skipped_wrongly,
            self.saved_always as f64 / 1e6,
            100.0 * self.saved_selectively as f64 / self.saved_always.max(1) as f64,
            seconds(self.time_test),
        );
    }
}

/// Bytes that zstd saves of `chunk`; 0 if the saving is below the threshold.
fn saving(zstd: &mut CCtx<'_>, chunk: &[u8], room: &mut [u8]) -> u64 {
    let stored_max = (chunk.len() as f64 * (1.0 - SAVING_MIN)) as usize;
    let stored = zstd.compress2(&mut room[..stored_max], chunk).unwrap_or(chunk.len());
    (chunk.len() - stored) as u64
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
