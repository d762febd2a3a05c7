//! The index: the part that suggests entries, the log below it, and a buffer of entries that are
//! not in the log yet.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::io::{Error, ErrorKind, Result};
use std::sync::Arc;

use super::fingerprint_map::FingerprintMap;
use super::log::Log;
use super::numbers::Numbers;
use super::suggest::Suggest;
use crate::chunker::Followers;
use crate::format::ids::{ContainerNumber, Fingerprint, RecordId, hash_of};
use crate::format::table_entry::State;

/// Number of keys whose memory is prefetched before the first of them is checked. In smaller
/// batches, the last entries without a slot would wait for their buckets without other work.
pub const AHEAD: usize = 128;

/// The result of `lookup` for an unknown fingerprint, which is not the id of a chunk.
pub const ABSENT: RecordId = RecordId::HOLE;

/// Size of the write buffer from which entries that are in the log are dropped.
const BUFFER_ENTRIES: usize = 1 << 14;

/// Counts since the index was created.
#[derive(Clone, Copy, Default)]
pub struct Counters {
    pub lookups: u64,
    /// Fingerprints that were found.
    pub hits: u64,
    /// Suggested entries with another fingerprint, or in an unusable state.
    pub false_positives: u64,
}

/// A container when it was indexed: the number of entries, and their digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    pub generation: u32,
    pub count: u32,
    pub digest: u64,
}

pub struct ChunkIndex<S> {
    pub suggest: S,
    pub(super) numbers: Numbers,
    pub(super) stamps: HashMap<ContainerNumber, Stamp>,
    pub(super) log: Log,
    /// Inserted entries that were not found in the log yet.
    buffer: FingerprintMap,
    buffer_max: usize,
    /// Containers with entries in the buffer, each with the number of entries in the log. The
    /// buffer has the later entries.
    written: BTreeMap<ContainerNumber, u32>,
    found_orphans: HashSet<RecordId>,
    pub counters: Counters,
    /// Number of entries that can be found: loaded entries in a usable state, and inserted entries.
    pub(super) usable: usize,
    /// Number of added entries that are not in the restored snapshot.
    pub added: usize,
    pub(super) candidates: Vec<u32>,
    /// True if `suggest` was restored from a snapshot, which may contain the loaded entries.
    pub(super) has_snapshot: bool,
    /// The container of the last inserted entry.
    last: Option<ContainerNumber>,
}

impl<S: Suggest> ChunkIndex<S> {
    pub fn new(log: Log, suggest: S) -> ChunkIndex<S> {
        ChunkIndex {
            suggest,
            numbers: Numbers::default(),
            stamps: HashMap::new(),
            log,
            buffer: FingerprintMap::default(),
            buffer_max: BUFFER_ENTRIES,
            written: BTreeMap::new(),
            found_orphans: HashSet::new(),
            counters: Counters::default(),
            usable: 0,
            added: 0,
            candidates: Vec::new(),
            has_snapshot: false,
            last: None,
        }
    }

    /// Report the chunks that followed looked-up chunks to `followers`.
    pub fn use_followers(&mut self, followers: Arc<Followers>) {
        self.log.followers = Some(followers);
    }

    pub fn len(&self) -> usize {
        self.usable
    }

    pub fn is_empty(&self) -> bool {
        self.usable == 0
    }

    pub fn reads(&self) -> u64 {
        self.log.reads + self.suggest.reads()
    }

    /// RAM of all parts that grow with the store, or are limited by a setting.
    pub fn bytes(&self) -> usize {
        self.suggest.bytes() + self.numbers.bytes() + self.log.bytes() + self.buffer.bytes()
    }

    pub fn take_found_orphans(&mut self) -> HashSet<RecordId> {
        std::mem::take(&mut self.found_orphans)
    }

    /// The id of each fingerprint, or `ABSENT`.
    pub fn lookup(&mut self, fingerprints: &[&Fingerprint]) -> Result<Vec<RecordId>> {
        let mut ids = Vec::with_capacity(fingerprints.len());
        for run in fingerprints.chunks(AHEAD) {
            run.iter().for_each(|one| self.suggest.prefetch(hash_of(one)));
            for one in run {
                ids.push(self.find(one)?);
            }
        }
        self.counters.lookups += ids.len() as u64;
        self.counters.hits += ids.iter().filter(|&&id| id != ABSENT).count() as u64;
        Ok(ids)
    }

    /// The id of a fingerprint, or `ABSENT`. In the latter case, `candidates` has the suggestions.
    fn find(&mut self, fingerprint: &Fingerprint) -> Result<RecordId> {
        let mut candidates = std::mem::take(&mut self.candidates);
        let mut found = self.find_among(fingerprint, &mut candidates);
        if found.as_ref().is_err_and(|error| error.kind() == ErrorKind::InvalidData) {
            found = self.rebuild().and_then(|()| self.find_among(fingerprint, &mut candidates));
        }
        self.candidates = candidates;
        found
    }

    fn find_among(&mut self, fingerprint: &Fingerprint, found: &mut Vec<u32>) -> Result<RecordId> {
        let hash = hash_of(fingerprint);
        found.clear();
        if !self.suggest.may_have(hash, found) {
            return Ok(ABSENT);
        }
        if let Some(id) = self.buffer.get(fingerprint) {
            return Ok(id);
        }
        let cached = self.log.search(fingerprint).filter(|&(id, _)| !self.is_unwritten(id));
        if let Some((id, state)) = cached {
            return Ok(self.take(id, state));
        }
        self.suggest.search(hash, found)?;
        self.check(fingerprint, found)
    }

    /// Marks an id that the caller is going to return as in use.
    fn take(&mut self, id: RecordId, state: State) -> RecordId {
        if state == State::ORPHANED {
            self.found_orphans.insert(id);
            self.log.take_for_live(id);
        }
        id
    }

    /// The candidate whose entry has the fingerprint. Candidates in the cache are checked first.
    fn check(&mut self, fingerprint: &Fingerprint, candidates: &[u32]) -> Result<RecordId> {
        for pass_cached in [true, false] {
            for id in candidates.iter().filter_map(|&number| self.numbers.id(number)) {
                if self.is_unwritten(id) {
                    continue;
                }
                let known = self.log.cached(id);
                let entry = match known {
                    Some(_) if pass_cached => known,
                    None if !pass_cached => self.log.read(id)?,
                    _ => continue,
                };
                match entry {
                    Some(entry)
                        if entry.fingerprint == *fingerprint && self.log.is_offered(&entry) =>
                    {
                        return Ok(self.take(id, entry.state));
                    }
                    _ => self.counters.false_positives += 1,
                }
            }
        }
        Ok(ABSENT)
    }

    /// Insert ids; a known fingerprint keeps its id. Returns the number of new fingerprints.
    pub fn insert(&mut self, rows: &[(&Fingerprint, RecordId)]) -> Result<usize> {
        let before = self.usable;
        for run in rows.chunks(AHEAD) {
            run.iter().for_each(|(one, _)| self.suggest.prefetch(hash_of(one)));
            for (fingerprint, id) in run {
                if self.find(fingerprint)? == ABSENT {
                    self.put(fingerprint, *id)?;
                }
            }
            self.suggest.settle();
        }
        if self.buffer.len() >= self.buffer_max {
            self.shrink_buffer()?;
        }
        if self.suggest.is_wide() {
            self.rebuild()?;
        }
        Ok(self.usable - before)
    }

    /// Insert the id of a fingerprint that a look-up has just not found.
    fn put(&mut self, fingerprint: &Fingerprint, id: RecordId) -> Result<()> {
        let number = self.numbers.number(id).ok_or_else(too_many)?;
        let container = id.container();
        if self.last != Some(container) {
            self.last = Some(container);
            self.log.note(id);
            if !self.written.contains_key(&container) {
                self.written.insert(container, self.log.count(container)?);
            }
        }
        self.buffer.insert(fingerprint, id);
        self.usable += 1;
        self.added += 1;
        let hash = hash_of(fingerprint);
        self.suggest.note(hash);
        match self.suggest.add(hash, number) {
            Err(error) if error.kind() == ErrorKind::InvalidData => self.rebuild(),
            done => done,
        }
    }

    /// Returns whether the entry of an id is only in the buffer.
    fn is_unwritten(&self, id: RecordId) -> bool {
        self.written.get(&id.container()).is_some_and(|&count| id.ordinal() >= count)
    }

    /// Drop the entries that are already in the log.
    fn shrink_buffer(&mut self) -> Result<()> {
        for (&container, count) in &mut self.written {
            *count = self.log.count(container)?;
        }
        let written = &self.written;
        let mut left = BTreeSet::new();
        self.buffer.retain(BUFFER_ENTRIES, |id| {
            let container = id.container();
            let is_left = written.get(&container).is_none_or(|&count| id.ordinal() >= count);
            is_left && (left.contains(&container) || left.insert(container))
        });
        self.written.retain(|container, _| left.contains(container));
        self.last = None;
        self.buffer_max = BUFFER_ENTRIES.max(2 * self.buffer.len());
        Ok(())
    }

    /// Rebuild everything above the log in the required size, from a sequential scan of the log.
    pub fn rebuild(&mut self) -> Result<()> {
        self.shrink_buffer()?;
        self.suggest.renew(self.usable)?;
        self.has_snapshot = false;
        self.numbers = Numbers::default();
        self.stamps.clear();
        self.usable = self.buffer.len();
        let containers: Vec<(ContainerNumber, u32)> = self.log.containers().collect();
        for (container, generation) in containers {
            self.usable += self.add_container(container, generation)?;
        }
        let rows: Vec<(u64, RecordId)> =
            self.buffer.iter().map(|(one, id)| (hash_of(one), id)).collect();
        for (hash, id) in rows {
            let number = self.numbers.number(id).ok_or_else(too_many)?;
            self.suggest.note(hash);
            self.suggest.add(hash, number)?;
            self.suggest.settle();
        }
        Ok(())
    }
}

pub(super) fn too_many() -> Error {
    Error::from_raw_os_error(libc::EOVERFLOW)
}
