//! A sample of the chunks of all other partitions, which leads to most of the other chunks.
//!
//! A chunk is a *hook* if its hash ends in some zeros. Only hooks are in memory. Data that was
//! stored before usually arrives in long runs, in the order of storing. A hook of the run loads the
//! page of the redirection table with its neighbours into the cache, which then finds them by their
//! fingerprints.

use std::io::Result;

use super::chunks::{ABSENT, ChunkIndex};
use super::suggest::Suggest;
use super::table::Table;
use crate::format::ids::{Fingerprint, RecordId, hash_of};

/// A table of hooks. It reports all other chunks as possibly in the cache.
pub struct Hooks {
    table: Table,
    zeros: u32,
}

impl Hooks {
    /// The hooks of `capacity` chunks: those whose hash ends in this number of `zeros`.
    pub fn with_capacity(capacity: usize, zeros: u32) -> Hooks {
        Hooks { table: Table::with_capacity(capacity >> zeros), zeros }
    }

    fn is_hook(&self, hash: u64) -> bool {
        hash.trailing_zeros() >= self.zeros
    }
}

impl Suggest for Hooks {
    fn prefetch(&self, hash: u64) {
        if self.is_hook(hash) {
            self.table.prefetch(hash);
        }
    }

    fn may_have(&self, hash: u64, found: &mut Vec<u32>) -> bool {
        !self.is_hook(hash) || self.table.may_have(hash, found)
    }

    fn add(&mut self, hash: u64, number: u32) -> Result<()> {
        if self.is_hook(hash) {
            self.table.add(hash, number);
        }
        Ok(())
    }

    fn settle(&mut self) {
        self.table.settle();
    }

    fn len(&self) -> usize {
        self.table.len()
    }

    fn bytes(&self) -> usize {
        self.table.bytes()
    }

    fn is_wide(&self) -> bool {
        self.table.is_wide()
    }

    fn renew(&mut self, capacity: usize) -> Result<()> {
        self.table.renew(capacity >> self.zeros)
    }
}

impl ChunkIndex<Hooks> {
    /// Look up the fingerprints whose id is `ABSENT`; returns the ids of all.
    ///
    /// Hooks come first, so that the pages of their neighbours are in the cache for the others.
    pub fn find_absent(
        &mut self,
        fingerprints: &[&Fingerprint],
        mut ids: Vec<RecordId>,
    ) -> Result<Vec<RecordId>> {
        let absent = (0..fingerprints.len()).filter(|&at| ids[at] == ABSENT);
        let (hooks, others): (Vec<usize>, Vec<usize>) =
            absent.partition(|&at| self.suggest.is_hook(hash_of(fingerprints[at])));
        for places in [hooks, others] {
            let keys: Vec<&Fingerprint> = places.iter().map(|&at| fingerprints[at]).collect();
            for (at, id) in places.into_iter().zip(self.lookup(&keys)?) {
                ids[at] = id;
            }
        }
        Ok(ids)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_hooks_take_memory_and_no_other_chunk_is_ruled_out() {
        let hash = |n: u64| xxhash_rust::xxh3::xxh3_64(&n.to_le_bytes());
        let mut hooks = Hooks::with_capacity(16_000, 4);
        for n in 0..16_000 {
            hooks.add(hash(n), n as u32).unwrap();
        }
        hooks.settle();
        assert!((800..1200).contains(&hooks.len()), "{}", hooks.len());
        let mut found = Vec::new();
        for n in 0..16_000 {
            found.clear();
            assert!(hooks.may_have(hash(n), &mut found));
            assert_eq!(found.contains(&(n as u32)), hooks.is_hook(hash(n)));
        }
        let absent = (16_000..32_000).filter(|&n| hooks.is_hook(hash(n)));
        let (mut asked, mut suggested) = (0, 0);
        for n in absent {
            found.clear();
            asked += 1;
            suggested += usize::from(hooks.may_have(hash(n), &mut found));
        }
        assert!(asked > 800 && suggested < 5, "{suggested} of {asked}");
    }
}
