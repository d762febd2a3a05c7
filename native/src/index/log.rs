//! The redirection tables as the log below the index, with a cache of pages.

use std::collections::HashMap;
use std::io::{ErrorKind, Result};
use std::os::fd::RawFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use hashbrown::HashTable;

use crate::chunker::{Followers, KnownChunk};
use crate::format::ids::{ContainerNumber, Fingerprint, RecordId, hash_of};
use crate::format::table_entry::{
    ENTRY_BYTES, EntryBytes, FORWARDS_MAX, State, TableEntry, entries, header, seed_in, set_state,
    table_name,
};
use crate::format::table_map::{LINE_BYTES, TableMap};
use crate::system::files::open_in;

/// Entries per read of a scan: 256 KiB, which stay in the cache of a core until they are processed.
const SCAN_ENTRIES: usize = 1 << 12;

/// The part of an entry that a look-up needs. No state if the entry is damaged or was never
/// written.
#[derive(Clone, Copy)]
pub struct LogEntry {
    pub fingerprint: Fingerprint,
    pub state: State,
    /// The record that this record depends on, or a hole if the entry does not name it.
    pub base: Option<RecordId>,
}

pub fn decode(data: &EntryBytes, seed: u64) -> LogEntry {
    let entry = TableEntry::unchecked(data);
    let state = TableEntry::sound(data, seed).map_or(State::NONE, |entry| entry.state);
    let base = || if state == State::LIVE { entry.target } else { RecordId::HOLE };
    LogEntry { fingerprint: entry.fingerprint, state, base: entry.leans().then(base) }
}

/// Adjacent entries of a container, as they were read. Each is decoded on demand, because usually
/// only a few are used.
struct Page {
    /// The id of the first entry.
    key: RecordId,
    /// Seed of the checksums of the entries.
    seed: u64,
    data: Vec<u8>,
    used: u64,
}

/// An open redirection table.
struct OpenTable {
    file: std::fs::File,
    seed: u64,
    map: TableMap,
}

impl Page {
    fn entry(&self, at: usize) -> Option<&EntryBytes> {
        self.data.get(at * ENTRY_BYTES..)?.first_chunk()
    }
}

pub struct Log {
    dir_fd: RawFd,
    volume_id: [u8; 16],
    /// Container → generation.
    containers: HashMap<ContainerNumber, u32>,
    /// Container → number of entries when it was loaded. If another job appends to a container,
    /// later entries are ignored, because that job may roll them back.
    counts: HashMap<ContainerNumber, u32>,
    page_entries: usize,
    pages_max: usize,
    pages: Vec<Page>,
    by_key: HashMap<RecordId, usize>,
    /// The last used page, which usually is the next page too.
    last: usize,
    /// Places of fingerprints in the cache, if the log is searchable: page times `page_entries`,
    /// plus the place in it.
    by_fingerprint: Option<HashTable<usize>>,
    clock: u64,
    pub reads: u64,
    /// Receives the entries that were read.
    pub followers: Option<Arc<Followers>>,
}

fn hash_in(entry: &EntryBytes) -> u64 {
    hash_of(&TableEntry::unchecked(entry).fingerprint)
}

impl Log {
    /// `dir_fd` still belongs to the caller.
    pub fn new(
        dir_fd: RawFd,
        volume_id: [u8; 16],
        page_entries: usize,
        cache_entries: usize,
    ) -> Log {
        let page_entries = page_entries.max(1);
        Log {
            dir_fd,
            volume_id,
            containers: HashMap::new(),
            counts: HashMap::new(),
            page_entries,
            pages_max: (cache_entries / page_entries).max(1),
            pages: Vec::new(),
            by_key: HashMap::new(),
            last: 0,
            by_fingerprint: None,
            clock: 0,
            reads: 0,
            followers: None,
        }
    }

    /// Make `search` find the entries in the cache.
    pub fn searchable(mut self) -> Log {
        self.by_fingerprint = Some(HashTable::new());
        self
    }

    /// Containers that exist, with their generations.
    pub fn containers(&self) -> impl Iterator<Item = (ContainerNumber, u32)> {
        self.containers.iter().map(|(&container, &generation)| (container, generation))
    }

    /// Add a container with its first `count` entries.
    pub fn add_container(&mut self, container: ContainerNumber, generation: u32, count: u32) {
        self.containers.insert(container, generation);
        self.counts.insert(container, count);
    }

    /// Note the container of an id that is going to be appended: all its entries belong to this
    /// job. An unknown container is new, so it has the first generation.
    pub fn note(&mut self, id: RecordId) {
        self.containers.entry(id.container()).or_insert(1);
        self.counts.remove(&id.container());
    }

    fn count_max(&self, container: ContainerNumber) -> u32 {
        self.counts.get(&container).copied().unwrap_or(u32::MAX)
    }

    pub fn bytes(&self) -> usize {
        self.pages.iter().map(|page| page.data.capacity()).sum::<usize>()
            + self.by_fingerprint.as_ref().map_or(0, HashTable::allocation_size)
            + self.followers.as_ref().map_or(0, |followers| followers.bytes())
    }

    /// The page of an id, and its place there.
    fn place(&self, id: RecordId) -> (RecordId, usize) {
        let at = id.place() % self.page_entries;
        (RecordId::new(id.container(), id.ordinal() - at as u32), at)
    }

    fn decode(&self, slot: usize, at: usize) -> Option<LogEntry> {
        let page = &self.pages[slot];
        let is_known = self.containers.contains_key(&page.key.container());
        page.entry(at).filter(|_| is_known).map(|entry| decode(entry, page.seed))
    }

    /// The slot of a page in the cache. Counts as a use of the page.
    fn slot(&mut self, key: RecordId) -> Option<usize> {
        if self.pages.get(self.last).is_none_or(|page| page.key != key) {
            self.last = *self.by_key.get(&key)?;
        }
        self.clock += 1;
        self.pages[self.last].used = self.clock;
        Some(self.last)
    }

    /// The entry of an id, if it is in the cache.
    pub fn cached(&mut self, id: RecordId) -> Option<LogEntry> {
        let (key, at) = self.place(id);
        let slot = self.slot(key)?;
        self.decode(slot, at)
    }

    /// Returns whether more files may use the record of an entry. A record that depends on another
    /// may be used if that one is live, because the base of an orphan may be missing.
    pub fn is_offered(&self, entry: &LogEntry) -> bool {
        let Some(base) = entry.base else { return entry.state.has_bytes() };
        if entry.state != State::LIVE || base.is_hole() {
            return false;
        }
        self.is_live_base(base).unwrap_or(false)
    }

    /// Returns whether a record, or its merge target, is live and no delta. Base and record may lie
    /// in different partitions, so the container may be unknown here.
    fn is_live_base(&self, mut id: RecordId) -> Result<bool> {
        for _ in 0..=FORWARDS_MAX {
            let table = match self.open(id.container()) {
                Err(error) if error.kind() == ErrorKind::InvalidData => None,
                opened => opened?,
            };
            let Some(table) = table else { return Ok(false) };
            let Some(place) = table.map.place(id.ordinal()) else { return Ok(false) };
            let mut bytes = [0; ENTRY_BYTES];
            table.file.read_exact_at(&mut bytes, table.map.offset(place))?;
            match TableEntry::sound(&bytes, table.seed) {
                Some(entry) if entry.state == State::MERGED => id = entry.target,
                entry => {
                    return Ok(entry.is_some_and(|entry| {
                        entry.state == State::LIVE && entry.codec.may_be_base()
                    }));
                }
            }
        }
        Ok(false)
    }

    /// Id and state of a usable entry with this fingerprint, if the cache has one.
    pub fn search(&mut self, fingerprint: &Fingerprint) -> Option<(RecordId, State)> {
        let places = self.by_fingerprint.as_ref()?;
        let place = *places.find(hash_of(fingerprint), |&place| {
            let entry = self.pages[place / self.page_entries].entry(place % self.page_entries);
            entry.is_some_and(|entry| TableEntry::unchecked(entry).fingerprint == *fingerprint)
        })?;
        let (slot, at) = (place / self.page_entries, place % self.page_entries);
        let key = self.pages[slot].key;
        self.slot(key);
        let entry = self.decode(slot, at)?;
        self.is_offered(&entry).then(|| (key.plus(at as u64), entry.state))
    }

    /// The entry of an id, read together with its neighbours. Returns None if it does not exist.
    pub fn read(&mut self, id: RecordId) -> Result<Option<LogEntry>> {
        let container = id.container();
        if !self.containers.contains_key(&container) {
            return Ok(None);
        }
        let (key, at) = self.place(id);
        let slot = self.free_slot(key);
        let mut data = std::mem::take(&mut self.pages[slot].data);
        self.reads += 1;
        let seed = self.read_entries(key, &mut data);
        self.pages[slot].data = data;
        self.pages[slot].seed = seed?;
        self.clock += 1;
        self.pages[slot].used = self.clock;
        self.pages[slot].key = key;
        self.by_key.insert(key, slot);
        self.last = slot;
        self.enter(slot);
        self.tell_followers(slot);
        Ok(self.decode(slot, at))
    }

    /// A slot for a page: its own, a new one, or the least recently used one. Drops the old entries
    /// of the slot.
    fn free_slot(&mut self, key: RecordId) -> usize {
        let own = self.by_key.get(&key).copied();
        if own.is_none() && self.pages.len() < self.pages_max {
            self.pages.push(Page { key, seed: 0, data: Vec::new(), used: 0 });
            return self.pages.len() - 1;
        }
        let oldest = || (0..self.pages.len()).min_by_key(|&slot| self.pages[slot].used);
        let slot = own.or_else(oldest).unwrap_or_default();
        self.forget(slot);
        self.by_key.remove(&self.pages[slot].key);
        slot
    }

    /// Make the entries of a page searchable.
    fn enter(&mut self, slot: usize) {
        let Self { by_fingerprint: Some(places), pages, page_entries, .. } = self else { return };
        let hash = |&place: &usize| {
            pages[place / *page_entries].entry(place % *page_entries).map_or(0, hash_in)
        };
        for at in 0..pages[slot].data.len() / ENTRY_BYTES {
            let place = slot * *page_entries + at;
            places.insert_unique(hash(&place), place, hash);
        }
    }

    /// Report the usable chunks of a page to `followers`, which suggests their ends as cuts.
    fn tell_followers(&self, slot: usize) {
        let Some(followers) = &self.followers else { return };
        followers.add(entries(&self.pages[slot].data).map(|bytes| {
            let entry = TableEntry::unchecked(bytes);
            let length = if entry.state.has_bytes() { entry.raw_length } else { 0 };
            KnownChunk { fingerprint: entry.fingerprint, length, hint: entry.hint }
        }));
    }

    fn forget(&mut self, slot: usize) {
        let Self { by_fingerprint: Some(places), pages, page_entries, .. } = self else { return };
        for (at, entry) in entries(&pages[slot].data).enumerate() {
            let place = slot * *page_entries + at;
            if let Ok(found) = places.find_entry(hash_in(entry), |&other| other == place) {
                found.remove();
            }
        }
    }

    /// Mark an orphan in the cache as live, because its state is going to change.
    pub fn take_for_live(&mut self, id: RecordId) {
        let (key, at) = self.place(id);
        let Some(slot) = self.slot(key) else { return };
        let seed = self.pages[slot].seed;
        let mut entries = self.pages[slot].data.chunks_exact_mut(ENTRY_BYTES);
        if let Some(entry) = entries.nth(at).and_then(|entry| entry.first_chunk_mut()) {
            set_state(entry, State::LIVE, seed);
        }
    }

    /// Number of records that a container's table has now.
    pub fn count(&self, container: ContainerNumber) -> Result<u32> {
        let Some(OpenTable { file, map, .. }) = self.open(container)? else { return Ok(0) };
        let entries = file.metadata()?.len().saturating_sub(map.start()) / ENTRY_BYTES as u64;
        Ok((entries as u32 + map.left_out()).min(self.count_max(container)))
    }

    /// Reads the entries of a page, which starts at `first`. Returns the seed of their checksums.
    fn read_entries(&self, first: RecordId, data: &mut Vec<u8>) -> Result<u64> {
        let left = self.count_max(first.container()).saturating_sub(first.ordinal());
        data.resize(self.page_entries.min(left as usize) * ENTRY_BYTES, 0);
        let read = self.open(first.container()).and_then(|table| {
            let Some(table) = table else { return Ok((0, 0)) };
            Ok((read_from(&table.file, &table.map, first.place(), data)?, table.seed))
        });
        data.truncate(read.as_ref().map_or(0, |&(filled, _)| filled));
        read.map(|(_, seed)| seed)
    }

    /// Pass all entries of a container to `visit`, as runs of bytes with the seed of their
    /// checksums.
    pub fn scan(
        &self,
        container: ContainerNumber,
        mut visit: impl FnMut(&[u8], u64),
    ) -> Result<()> {
        let Some(OpenTable { file, seed, map }) = self.open(container)? else { return Ok(()) };
        let mut first = 0;
        let count_max = self.count_max(container) as usize;
        let mut data = vec![0; SCAN_ENTRIES * ENTRY_BYTES];
        loop {
            data.truncate((count_max - first) * ENTRY_BYTES);
            let filled = read_from(&file, &map, first, &mut data)?;
            if filled == 0 {
                return Ok(());
            }
            visit(&data[..filled], seed);
            first += filled / ENTRY_BYTES;
        }
    }

    /// The redirection table of a container. None if it does not exist, or was only just created.
    fn open(&self, container: ContainerNumber) -> Result<Option<OpenTable>> {
        let name = table_name(container);
        let file = loop {
            match open_in(self.dir_fd, &name) {
                Ok(file) => break file,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
                Err(error) => return Err(error),
            }
        };
        let mut head = [0; header::BYTES];
        match file.read_exact_at(&mut head, 0) {
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(None),
            read => read?,
        }
        let seed = seed_in(&head, &self.volume_id, container).ok_or(ErrorKind::InvalidData)?;
        let mut lines = vec![0; usize::from(header::MAP_LINES.u16(&head)) * LINE_BYTES];
        file.read_exact_at(&mut lines, header::BYTES as u64)?;
        let map = TableMap::of(&lines, seed).ok_or(ErrorKind::InvalidData)?;
        Ok(Some(OpenTable { file, seed, map }))
    }
}

/// Read entries from ordinal `first` on; returns the number of bytes of complete entries.
fn read_from(file: &std::fs::File, map: &TableMap, first: usize, data: &mut [u8]) -> Result<usize> {
    if map.left_out() == 0 {
        return read_packed(file, map.offset(first as u32), data);
    }
    let (first, end) = (first as u32, (first + data.len() / ENTRY_BYTES) as u32);
    let (from, to) = (map.places_below(first), map.places_below(end));
    let mut packed = vec![0; (to - from) as usize * ENTRY_BYTES];
    let filled = read_packed(file, map.offset(from), &mut packed)?;
    let whole = map.expand(&packed[..filled], first, end);
    data[..whole.len()].copy_from_slice(&whole);
    Ok(whole.len())
}

/// As [`read_from`], from an offset of the table.
fn read_packed(file: &std::fs::File, start: u64, data: &mut [u8]) -> Result<usize> {
    let mut filled = 0;
    while filled < data.len() {
        match file.read_at(&mut data[filled..], start + filled as u64) {
            Ok(0) => break,
            Ok(more) => filled += more,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled / ENTRY_BYTES * ENTRY_BYTES)
}
