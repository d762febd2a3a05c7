//! The table alone: additions and look-ups per second of processor time, from a size on and during
//! its growth.
//!
//! cargo run --release --no-default-features --example table_bench -- ENTRIES [FIRST]

use native::index::table::Table;

const AHEAD: usize = native::index::chunks::AHEAD;

/// A bijection that mixes well: the finalizer of SplitMix64.
fn hash(n: u64) -> u64 {
    let mut z = n.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Seconds of processor time that this thread has taken.
fn cpu_s() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the value is writable, and lives during the call.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

fn add(table: &mut Table, from: u64, to: u64) -> f64 {
    let began = cpu_s();
    for first in (from..to).step_by(AHEAD) {
        let run = first..(first + AHEAD as u64).min(to);
        run.clone().for_each(|n| table.prefetch(hash(n)));
        for n in run {
            table.add(hash(n), n as u32);
        }
        table.settle();
    }
    (to - from) as f64 / (cpu_s() - began) / 1e6
}

fn look_up(table: &Table, from: u64, to: u64) -> (f64, usize) {
    let began = cpu_s();
    let (mut found, mut count) = (Vec::new(), 0);
    for first in (from..to).step_by(AHEAD) {
        let run = first..(first + AHEAD as u64).min(to);
        run.clone().for_each(|n| table.prefetch(hash(n)));
        for n in run {
            found.clear();
            table.candidates(hash(n), &mut found);
            count += found.len();
        }
    }
    ((to - from) as f64 / (cpu_s() - began) / 1e6, count)
}

fn main() {
    let mut arguments = std::env::args().skip(1).map(|one| one.parse::<u64>().expect("a number"));
    let entries = arguments.next().expect("how many entries");
    let first = arguments.next().unwrap_or(entries / 4);
    let mut table = Table::with_capacity(first as usize);
    println!("{first} at once: {:.2} million additions/s", add(&mut table, 0, first));
    let mut at = first;
    while at < entries {
        let next = (at + at / 2).min(entries);
        let rate = add(&mut table, at, next);
        at = next;
        let probes = at.min(4_000_000);
        let (new, wrong) = look_up(&table, 1 << 40, (1 << 40) + probes);
        let (known, right) = look_up(&table, 0, probes);
        assert!(right as u64 >= probes);
        println!(
            "{at}: {rate:.2} million additions/s; look-ups new {new:.2}, known {known:.2}; \
             load {:.3}, {:.2} bytes an entry, {:.4} wrong",
            table.load(),
            table.bytes() as f64 / table.len() as f64,
            wrong as f64 / probes as f64,
        );
    }
}
