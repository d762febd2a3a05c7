//! The pre-filter: a Bloom filter in RAM that recognizes most new keys (seed 002, 4.4.3).
//!
//! A key's bits lie in one cache line. The filter grows by parts, created for a number of keys
//! each. The owner rebuilds it in one part before there are many parts.

use super::positions::{Line, mix};

const LINE_WORDS: usize = 8;
const LINE_BYTES: usize = LINE_WORDS * 8;

/// Bits of RAM for each key.
const KEY_BITS: usize = 10;

/// Bits that a key sets in its line.
const KEY_ONES: u32 = 6;

/// Keys of the smallest part: 80 KiB.
const PART_KEYS_MIN: usize = 1 << 16;

/// An added part has room for the existing keys divided by this number.
const GROWTH: usize = 4;

/// Maximum of parts, because each part has false positives.
const PARTS_MAX: usize = 4;

struct Part {
    lines: Vec<Line>,
    free: usize,
}

impl Part {
    fn new(keys: usize) -> Part {
        let keys = keys.max(PART_KEYS_MIN);
        Part { lines: vec![Line::default(); keys * KEY_BITS / (LINE_BYTES * 8)], free: keys }
    }

    #[inline]
    fn line(&self, hash: u64) -> usize {
        ((u128::from(hash) * self.lines.len() as u128) >> 64) as usize
    }
}

pub struct Prefilter {
    parts: Vec<Part>,
    keys: usize,
}

/// The bits of a hash in its line, each as a word and a mask.
#[inline]
fn ones(hash: u64) -> impl Iterator<Item = (usize, u64)> {
    let mixed = mix(hash);
    (0..KEY_ONES).map(move |at| {
        let bit = mixed >> (9 * at);
        ((bit >> 6) as usize % LINE_WORDS, 1 << (bit & 63))
    })
}

impl Prefilter {
    /// A filter with room for this number of keys in one part.
    pub fn new(keys: usize) -> Prefilter {
        Prefilter { parts: vec![Part::new(keys)], keys: 0 }
    }

    pub fn bytes(&self) -> usize {
        self.parts.iter().map(|part| part.lines.len() * LINE_BYTES).sum()
    }

    /// Returns whether a rebuild in one part is worth its cost.
    pub fn is_wide(&self) -> bool {
        self.parts.len() > PARTS_MAX
    }

    #[inline]
    pub fn prefetch(&self, hash: u64) {
        for part in &self.parts {
            part.lines[part.line(hash)].prefetch();
        }
    }

    /// Returns false if the key was never inserted.
    #[inline]
    pub fn may_have(&self, hash: u64) -> bool {
        self.parts.iter().any(|part| {
            let line = &part.lines[part.line(hash)].0;
            ones(hash).all(|(word, mask)| line[word] & mask != 0)
        })
    }

    /// Inserts a key, unless it may already exist: inserting it again would never change anything.
    pub fn insert(&mut self, hash: u64) {
        if self.may_have(hash) {
            return;
        }
        if self.parts.last().is_none_or(|part| part.free == 0) {
            self.parts.push(Part::new(self.keys / GROWTH));
        }
        self.keys += 1;
        if let Some(part) = self.parts.last_mut() {
            part.free -= 1;
            let at = part.line(hash);
            let line = &mut part.lines[at].0;
            ones(hash).for_each(|(word, mask)| line[word] |= mask);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_inserted_may_be_there_through_all_growth() {
        let mut filter = Prefilter::new(1000);
        (0..200_000).for_each(|n| filter.insert(mix(n)));
        assert!((0..200_000).all(|n| filter.may_have(mix(n))));
        assert!(filter.parts.len() > 2);
    }

    #[test]
    fn little_else_may_be_there() {
        let mut filter = Prefilter::new(200_000);
        (0..200_000).for_each(|n| filter.insert(mix(n)));
        let wrong = (200_000..300_000).filter(|&n| filter.may_have(mix(n))).count();
        assert!(wrong < 2000, "{wrong} of 100000");
        assert!(filter.bytes() * 8 <= 200_000 * KEY_BITS);
    }
}
