//! Loading of existing containers. Each table is read once, from beginning to end.

use std::collections::HashMap;
use std::io::{ErrorKind, Result};
use std::ops::Range;

use xxhash_rust::xxh3::Xxh3;

use super::chunks::{AHEAD, ChunkIndex, Stamp, too_many};
use super::log;
use super::suggest::Suggest;
use crate::format::ids::{ContainerNumber, RecordId, hash_of};
use crate::format::table_entry::{ENTRY_BYTES, entries};

/// The digest of the entries of a container, and the digest of the first `count` of them.
struct Digests {
    hasher: Xxh3,
    count: u32,
    prefix: Option<u64>,
    seen: u32,
}

impl Digests {
    fn new(count: u32) -> Digests {
        let hasher = Xxh3::new();
        let prefix = (count == 0).then(|| hasher.digest());
        Digests { hasher, count, prefix, seen: 0 }
    }

    fn update(&mut self, data: &[u8]) {
        let here = (data.len() / ENTRY_BYTES) as u32;
        let mut rest = data;
        if self.prefix.is_none() && self.count <= self.seen + here {
            let (head, tail) = data.split_at((self.count - self.seen) as usize * ENTRY_BYTES);
            self.hasher.update(head);
            self.prefix = Some(self.hasher.digest());
            rest = tail;
        }
        self.hasher.update(rest);
        self.seen += here;
    }

    fn stamp(&self, generation: u32) -> Stamp {
        Stamp { generation, count: self.seen, digest: self.hasher.digest() }
    }
}

impl<S: Suggest> ChunkIndex<S> {
    /// Load the first `count` entries of a container, which must not change during the call.
    /// Entries in the snapshot are skipped.
    pub fn load(&mut self, container: ContainerNumber, generation: u32, count: u32) -> Result<()> {
        self.log.add_container(container, generation, count);
        match self.add_container(container, generation) {
            Err(error) if error.kind() == ErrorKind::InvalidData => return self.rebuild(),
            usable => self.usable += usable?,
        }
        if self.suggest.is_wide() { self.rebuild() } else { Ok(()) }
    }

    /// Add the usable entries of a container; returns their number.
    pub(super) fn add_container(
        &mut self,
        container: ContainerNumber,
        generation: u32,
    ) -> Result<usize> {
        let known = self.stamps.get(&container).filter(|known| known.generation == generation);
        let known = known.copied().unwrap_or(Stamp { generation, count: 0, digest: 0 });
        let mut digests = Digests::new(known.count);
        let usable = self.add_entries(container, known.count..u32::MAX, &mut digests)?;
        if known.count > 0 && digests.prefix != Some(known.digest) {
            // The table has changed since the snapshot.
            self.add_entries(container, 0..known.count, &mut Digests::new(0))?;
        }
        self.stamps.insert(container, digests.stamp(generation));
        Ok(usable)
    }

    /// Note the usable entries of a container, and add those in a range of ordinals. Returns the
    /// number of usable entries.
    fn add_entries(
        &mut self,
        container: ContainerNumber,
        range: Range<u32>,
        digests: &mut Digests,
    ) -> Result<usize> {
        let Self { suggest, numbers, candidates, added, has_snapshot, .. } = self;
        let (mut ordinal, mut usable) = (0, 0);
        let mut keys: Vec<(u64, Option<u32>)> = Vec::new();
        let mut result = Ok(());
        self.log.scan(container, |data, seed| {
            digests.update(data);
            keys.clear();
            for entry in entries(data) {
                let entry = log::decode(entry, seed);
                if entry.state.has_bytes() {
                    usable += 1;
                    let number = range
                        .contains(&ordinal)
                        .then(|| numbers.number(RecordId::new(container, ordinal)));
                    if number == Some(None) {
                        result = Err(too_many());
                    }
                    keys.push((hash_of(&entry.fingerprint), number.flatten()));
                }
                ordinal += 1;
            }
            for run in keys.chunks(AHEAD) {
                run.iter().for_each(|&(hash, _)| suggest.prefetch(hash));
                for &(hash, number) in run {
                    suggest.note(hash);
                    let Some(number) = number else { continue };
                    if *has_snapshot {
                        candidates.clear();
                        suggest.may_have(hash, candidates);
                        if candidates.contains(&number) {
                            continue;
                        }
                    }
                    *added += 1;
                    let done = suggest.add(hash, number);
                    if result.is_ok() {
                        result = done;
                    }
                }
                suggest.settle();
            }
        })?;
        result.map(|()| usable)
    }

    /// Update the stamps of all containers: containers that grew are read again.
    pub fn restamp(&mut self) -> Result<()> {
        let containers: HashMap<ContainerNumber, u32> = self.log.containers().collect();
        self.stamps.retain(|container, _| containers.contains_key(container));
        for (container, generation) in containers {
            let known = self.stamps.get(&container);
            if known.is_none_or(|stamp| Ok(stamp.count) != self.log.count(container).map_err(drop))
            {
                let mut digests = Digests::new(0);
                self.log.scan(container, |data, _| digests.update(data))?;
                self.stamps.insert(container, digests.stamp(generation));
            }
        }
        Ok(())
    }
}
