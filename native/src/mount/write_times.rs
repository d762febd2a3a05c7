//! Times of the last writes of users to parts of files, so that the unchanged parts of files that
//! are always in use can be optimized.

use std::collections::{BTreeMap, HashMap};
use std::sync::Mutex;
use std::time::Instant;

use crate::threads::lock::locked;

/// Size of a part with a separate time, which takes 4 bytes and a share of a tree node.
pub const GRAIN_BYTES: u64 = 1 << 20;

/// Limit for all files together: about 64 MB.
const GRAINS_MAX: usize = 2 << 20;
/// If more parts of a file were written to (1 TiB), all parts count as written to.
const GRAINS_PER_FILE_MAX: usize = 1 << 20;

/// Time of a part that is not offered again until it is written to.
const PASSED_OVER: u32 = u32::MAX;

/// The write times of a mount, for all threads. The clock starts with this object.
pub struct Notes {
    times: Mutex<WriteTimes>,
    began: Instant,
}

impl Default for Notes {
    fn default() -> Notes {
        Notes { times: Mutex::new(WriteTimes::new(0)), began: Instant::now() }
    }
}

impl Notes {
    /// Notes a write of the bytes from `start` to `end`, which is done, or is about to be done.
    pub fn note(&self, inode: u64, start: u64, end: u64) {
        let now_s = self.now_s() as u32;
        locked(&self.times).note(inode, start, end, now_s);
    }

    pub fn quiet(&self, inode: u64, size: u64, age_s: f64, passed_over: bool) -> Vec<(u64, u64)> {
        // A write is noted with the beginning of its second.
        let before_s = match self.now_s() - age_s {
            _ if age_s <= 0.0 && passed_over => PASSED_OVER,
            _ if age_s <= 0.0 => PASSED_OVER - 1,
            before_s if before_s < 1.0 => return Vec::new(),
            before_s => before_s as u32 - 1,
        };
        locked(&self.times).quiet(inode, size, before_s)
    }

    /// The files that were written to.
    pub fn files(&self) -> Vec<u64> {
        locked(&self.times).files.keys().copied().collect()
    }

    pub fn pass_over(&self, inode: u64, start: u64, end: u64) {
        locked(&self.times).pass_over(inode, start, end);
    }

    pub fn forget(&self, inode: u64) {
        locked(&self.times).forget(inode);
    }

    fn now_s(&self) -> f64 {
        self.began.elapsed().as_secs_f64()
    }
}

#[derive(Default)]
struct File {
    /// Seconds of the last writes, by the number of the part.
    grains: BTreeMap<u64, u32>,
    /// Time that counts as the last write of all other parts.
    since_s: u32,
    last_s: u32,
}

/// Times are seconds of a clock that never goes backwards.
pub struct WriteTimes {
    files: HashMap<u64, File>,
    grains: usize,
    grains_max: usize,
    /// Start of the record for files without an entry; earlier writes are unknown.
    since_s: u32,
}

impl WriteTimes {
    pub fn new(now_s: u32) -> WriteTimes {
        WriteTimes::limited(now_s, GRAINS_MAX)
    }

    fn limited(now_s: u32, grains_max: usize) -> WriteTimes {
        WriteTimes { files: HashMap::new(), grains: 0, grains_max, since_s: now_s }
    }

    /// Notes a write of the bytes from `start` to `end`.
    pub fn note(&mut self, inode: u64, start: u64, end: u64, now_s: u32) {
        if start >= end {
            return;
        }
        let since_s = self.since_s;
        let file = self.files.entry(inode).or_insert_with(|| File { since_s, ..File::default() });
        file.last_s = now_s;
        let before = file.grains.len();
        for grain in start / GRAIN_BYTES..=(end - 1) / GRAIN_BYTES {
            file.grains.insert(grain, now_s);
        }
        if file.grains.len() > GRAINS_PER_FILE_MAX {
            file.grains.clear();
            file.since_s = now_s;
        }
        self.grains = self.grains + file.grains.len() - before;
        if self.grains + self.files.len() > self.grains_max {
            self.make_room(now_s);
        }
    }

    /// Drops the half of the files with the oldest writes.
    fn make_room(&mut self, now_s: u32) {
        let mut last: Vec<u32> = self.files.values().map(|file| file.last_s).collect();
        last.sort_unstable();
        let middle = last[last.len() / 2];
        self.since_s = now_s;
        self.files.retain(|_, file| file.last_s > middle);
        self.grains = self.files.values().map(|file| file.grains.len()).sum();
    }

    pub fn forget(&mut self, inode: u64) {
        if let Some(file) = self.files.remove(&inode) {
            self.grains -= file.grains.len();
        }
    }

    /// The ranges of the first `size` bytes without a write after `before_s`, in complete parts
    /// except at the end. Skipped parts are included only if `before_s` is `PASSED_OVER`.
    pub fn quiet(&self, inode: u64, size: u64, before_s: u32) -> Vec<(u64, u64)> {
        let unknown = File { since_s: self.since_s, ..File::default() };
        let file = self.files.get(&inode).unwrap_or(&unknown);
        let rest_is_quiet = file.since_s <= before_s;
        let mut found: Vec<(u64, u64)> = Vec::new();
        let mut add = |first: u64, end: u64| {
            let (start, end) = (first * GRAIN_BYTES, (end * GRAIN_BYTES).min(size));
            match found.last_mut() {
                Some(last) if last.1 == start => last.1 = end,
                _ if start < end => found.push((start, end)),
                _ => {}
            }
        };
        let mut next = 0;
        for (&grain, &time_s) in file.grains.range(..size.div_ceil(GRAIN_BYTES)) {
            if rest_is_quiet && next < grain {
                add(next, grain);
            }
            if time_s <= before_s {
                add(grain, grain + 1);
            }
            next = grain + 1;
        }
        if rest_is_quiet && next < size.div_ceil(GRAIN_BYTES) {
            add(next, size.div_ceil(GRAIN_BYTES));
        }
        found
    }

    /// Does not offer the parts from `start` to `end` again until they are written to.
    pub fn pass_over(&mut self, inode: u64, start: u64, end: u64) {
        let Some(file) = self.files.get_mut(&inode) else { return };
        let before = file.grains.len();
        for grain in start / GRAIN_BYTES..end.div_ceil(GRAIN_BYTES) {
            file.grains.insert(grain, PASSED_OVER);
        }
        self.grains = self.grains + file.grains.len() - before;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = GRAIN_BYTES;

    #[test]
    fn what_was_not_written_to_counts_as_written_when_the_notes_began() {
        let mut times = WriteTimes::new(10);
        times.note(7, 2 * MIB + 5, 2 * MIB + 6, 20);
        assert_eq!(times.quiet(7, 5 * MIB + 9, 9), []);
        let around = [(0, 2 * MIB), (3 * MIB, 5 * MIB + 9)];
        assert_eq!(times.quiet(7, 5 * MIB + 9, 10), around);
        assert_eq!(times.quiet(7, 5 * MIB + 9, 19), around);
        assert_eq!(times.quiet(7, 5 * MIB + 9, 20), [(0, 5 * MIB + 9)]);
        assert_eq!(times.quiet(8, MIB, 9), [], "nor is anything known of other files");
        assert_eq!(times.quiet(8, MIB, 10), [(0, MIB)]);
    }

    #[test]
    fn a_write_counts_for_each_part_that_it_touches() {
        let mut times = WriteTimes::new(0);
        times.note(7, MIB - 1, 2 * MIB + 1, 5);
        assert_eq!(times.quiet(7, 4 * MIB, 4), [(3 * MIB, 4 * MIB)]);
        times.note(7, 3 * MIB, 4 * MIB, 6);
        assert_eq!(times.quiet(7, 4 * MIB, 5), [(0, 3 * MIB)]);
        times.note(7, MIB, MIB, 9);
        assert_eq!(times.quiet(7, 4 * MIB, 5), [(0, 3 * MIB)]);
    }

    #[test]
    fn what_was_passed_over_comes_back_once_it_is_written_to() {
        let mut times = WriteTimes::new(0);
        times.note(7, 0, 1, 1);
        times.pass_over(7, 0, 2 * MIB);
        assert_eq!(times.quiet(7, 3 * MIB, PASSED_OVER - 1), [(2 * MIB, 3 * MIB)]);
        assert_eq!(times.quiet(7, 3 * MIB, PASSED_OVER), [(0, 3 * MIB)]);
        times.note(7, MIB, MIB + 1, 60);
        assert_eq!(times.quiet(7, 3 * MIB, 60), [(MIB, 3 * MIB)]);
    }

    #[test]
    fn memory_is_bounded_and_what_was_forgotten_is_not_quiet() {
        let mut times = WriteTimes::limited(0, 100);
        for inode in 0..60 {
            times.note(inode, 0, 1, inode as u32 + 1);
        }
        assert!(times.grains + times.files.len() <= 100);
        assert_eq!(times.quiet(0, MIB, 50), []);
        times.note(0, 5 * MIB, 5 * MIB + 1, 70);
        assert_eq!(times.quiet(0, 4 * MIB, 50), [], "it was forgotten at 51");
        assert_eq!(times.quiet(0, 4 * MIB, 70), [(0, 4 * MIB)]);
        assert_eq!(times.quiet(59, MIB, 60), [(0, MIB)]);
    }
}
