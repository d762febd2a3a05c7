//! The redirection tables as the log that the index is over, with a cache of what was read of them.

use std::collections::HashMap;
use std::ffi::CString;
use std::io::{Error, ErrorKind, Result};
use std::os::fd::{FromRawFd, RawFd};
use std::os::unix::fs::FileExt;

use hashbrown::HashTable;
use xxhash_rust::xxh3::xxh3_64;

use crate::fingerprint::{Fingerprint, HASH_BYTES};
use crate::format::table_entry::{
    ENTRY_BYTES, STATE_AT, STATE_LIVE, TABLE_HEADER_BYTES, entry_body, entry_check,
};

pub const STATE_NONE: u8 = 0;
pub const STATE_ORPHANED: u8 = 2;

/// Entries of one read of a scan: 256 KiB, which stay in the cache of a core until they were looked at.
const SCAN_ENTRIES: usize = 1 << 12;

/// A state of chunks whose bytes are there, so that more files may come to name them.
pub fn is_usable(state: u8) -> bool {
    state == STATE_LIVE || state == STATE_ORPHANED
}

/// What a look-up needs of an entry; state 0 where it is damaged or was never written.
#[derive(Clone, Copy)]
pub struct Entry {
    pub fingerprint: Fingerprint,
    pub state: u8,
}

pub fn decode(data: &[u8; ENTRY_BYTES], seed: u64) -> Entry {
    let mut fingerprint = [0; HASH_BYTES];
    fingerprint.copy_from_slice(&data[..HASH_BYTES]);
    let state = entry_body(data, seed).map_or(STATE_NONE, |body| body[STATE_AT]);
    Entry { fingerprint, state }
}

/// Entries of one container that lie next to each other, as they were when they were read. They are
/// decoded one by one, as they are asked for: mostly few of them are.
struct Page {
    key: u64,
    data: Vec<u8>,
    used: u64,
}

impl Page {
    fn entry(&self, at: usize) -> Option<&[u8; ENTRY_BYTES]> {
        self.data.get(at * ENTRY_BYTES..)?.first_chunk()
    }
}

pub struct Log {
    dir_fd: RawFd,
    volume: [u8; 16],
    /// Container → generation.
    containers: HashMap<u32, u32>,
    page_entries: usize,
    pages_max: usize,
    pages: Vec<Page>,
    by_key: HashMap<u64, usize>,
    /// The page that was asked for last, which most often is the next one too.
    last: usize,
    /// Where the cache has a fingerprint, if anybody wants to know: page times `page_entries`, place.
    by_fingerprint: Option<HashTable<usize>>,
    clock: u64,
    pub reads: u64,
}

fn word(entry: &[u8]) -> u64 {
    entry.first_chunk().map_or(0, |word| u64::from_le_bytes(*word))
}

impl Log {
    /// `dir_fd` stays the caller's.
    pub fn new(dir_fd: RawFd, volume: [u8; 16], page_entries: usize, cache_entries: usize) -> Log {
        let page_entries = page_entries.max(1);
        Log {
            dir_fd,
            volume,
            containers: HashMap::new(),
            page_entries,
            pages_max: (cache_entries / page_entries).max(1),
            pages: Vec::new(),
            by_key: HashMap::new(),
            last: 0,
            by_fingerprint: None,
            clock: 0,
            reads: 0,
        }
    }

    /// Let `search` find what the cache has.
    pub fn searchable(mut self) -> Log {
        self.by_fingerprint = Some(HashTable::new());
        self
    }

    /// Containers that exist, with their generations.
    pub fn containers(&self) -> impl Iterator<Item = (u32, u32)> {
        self.containers.iter().map(|(&container, &generation)| (container, generation))
    }

    pub fn add_container(&mut self, container: u32, generation: u32) {
        self.containers.insert(container, generation);
    }

    /// Know the container of an id; one that was unknown is new, and so of the first generation.
    pub fn note(&mut self, id: u64) {
        self.containers.entry((id >> 32) as u32).or_insert(1);
    }

    pub fn bytes(&self) -> usize {
        self.pages.iter().map(|page| page.data.capacity()).sum::<usize>()
            + self.by_fingerprint.as_ref().map_or(0, HashTable::allocation_size)
    }

    fn seed(&self, container: u32, generation: u32) -> u64 {
        let mut key = [0; 24];
        key[..16].copy_from_slice(&self.volume);
        key[16..20].copy_from_slice(&container.to_le_bytes());
        key[20..].copy_from_slice(&generation.to_le_bytes());
        xxh3_64(&key)
    }

    /// The page that an id is on, and its place there.
    fn place(&self, id: u64) -> (u64, usize) {
        let ordinal = id as u32 as usize;
        let page = (ordinal / self.page_entries) as u64;
        (id >> 32 << 32 | page, ordinal % self.page_entries)
    }

    fn decode(&self, slot: usize, at: usize) -> Option<Entry> {
        let page = &self.pages[slot];
        let container = (page.key >> 32) as u32;
        let generation = *self.containers.get(&container)?;
        Some(decode(page.entry(at)?, self.seed(container, generation)))
    }

    /// Where the cache has a page, which counts as a use of it.
    fn slot(&mut self, key: u64) -> Option<usize> {
        if self.pages.get(self.last).is_none_or(|page| page.key != key) {
            self.last = *self.by_key.get(&key)?;
        }
        self.clock += 1;
        self.pages[self.last].used = self.clock;
        Some(self.last)
    }

    /// The entry of an id, if it is in the cache.
    pub fn cached(&mut self, id: u64) -> Option<Entry> {
        let (key, at) = self.place(id);
        let slot = self.slot(key)?;
        self.decode(slot, at)
    }

    /// The id of a usable entry with this fingerprint, and its state, if the cache has one.
    pub fn search(&mut self, fingerprint: &Fingerprint) -> Option<(u64, u8)> {
        let places = self.by_fingerprint.as_ref()?;
        let place = *places.find(word(fingerprint), |&place| {
            let entry = self.pages[place / self.page_entries].entry(place % self.page_entries);
            entry.is_some_and(|entry| entry.starts_with(fingerprint))
        })?;
        let (slot, at) = (place / self.page_entries, place % self.page_entries);
        let key = self.pages[slot].key;
        self.slot(key);
        let entry = self.decode(slot, at).filter(|entry| is_usable(entry.state))?;
        let ordinal = (key as u32) as usize * self.page_entries + at;
        Some((key >> 32 << 32 | ordinal as u64, entry.state))
    }

    /// The entry of an id, read together with its neighbours; None where there is none.
    pub fn read(&mut self, id: u64) -> Result<Option<Entry>> {
        let container = (id >> 32) as u32;
        if !self.containers.contains_key(&container) {
            return Ok(None);
        }
        let (key, at) = self.place(id);
        let slot = self.free_slot(key);
        let mut data = std::mem::take(&mut self.pages[slot].data);
        self.reads += 1;
        let result = self.read_entries(container, id as u32 as usize - at, &mut data);
        self.pages[slot].data = data;
        result?;
        self.clock += 1;
        self.pages[slot].used = self.clock;
        self.pages[slot].key = key;
        self.by_key.insert(key, slot);
        self.last = slot;
        self.enter(slot);
        Ok(self.decode(slot, at))
    }

    /// A slot for a page: its own, a new one, or that of the page that was unused for longest.
    /// Nothing of the slot is known any more.
    fn free_slot(&mut self, key: u64) -> usize {
        let own = self.by_key.get(&key).copied();
        if own.is_none() && self.pages.len() < self.pages_max {
            self.pages.push(Page { key, data: Vec::new(), used: 0 });
            return self.pages.len() - 1;
        }
        let oldest = || (0..self.pages.len()).min_by_key(|&slot| self.pages[slot].used);
        let slot = own.or_else(oldest).unwrap_or_default();
        self.forget(slot);
        self.by_key.remove(&self.pages[slot].key);
        slot
    }

    /// Let the entries of a page be found by their fingerprints.
    fn enter(&mut self, slot: usize) {
        let Self { by_fingerprint: Some(places), pages, page_entries, .. } = self else { return };
        let hash = |&place: &usize| {
            word(pages[place / *page_entries].entry(place % *page_entries).map_or(&[], |e| &e[..]))
        };
        for at in 0..pages[slot].data.len() / ENTRY_BYTES {
            let place = slot * *page_entries + at;
            places.insert_unique(hash(&place), place, hash);
        }
    }

    fn forget(&mut self, slot: usize) {
        let Self { by_fingerprint: Some(places), pages, page_entries, .. } = self else { return };
        for (at, entry) in entries(&pages[slot].data).enumerate() {
            let place = slot * *page_entries + at;
            if let Ok(found) = places.find_entry(word(entry), |&other| other == place) {
                found.remove();
            }
        }
    }

    /// Take an orphan that was found for live, as it is about to become.
    pub fn take_for_live(&mut self, id: u64) {
        let container = (id >> 32) as u32;
        let (key, at) = self.place(id);
        let Some(&generation) = self.containers.get(&container) else { return };
        let seed = self.seed(container, generation);
        let Some(slot) = self.slot(key) else { return };
        if let Some(entry) = self.pages[slot].data.chunks_exact_mut(ENTRY_BYTES).nth(at) {
            entry[STATE_AT] = STATE_LIVE;
            let check = entry_check(&entry[..ENTRY_BYTES - 2], seed);
            entry[ENTRY_BYTES - 2..].copy_from_slice(&check.to_le_bytes());
        }
    }

    /// How many entries a container's table has by now.
    pub fn count(&self, container: u32) -> Result<u32> {
        let Some(file) = self.open(container)? else { return Ok(0) };
        let length = file.metadata()?.len();
        Ok((length.saturating_sub(TABLE_HEADER_BYTES) / ENTRY_BYTES as u64) as u32)
    }

    fn read_entries(&self, container: u32, first: usize, data: &mut Vec<u8>) -> Result<()> {
        data.resize(self.page_entries * ENTRY_BYTES, 0);
        let filled = match self.open(container)? {
            Some(file) => read_from(&file, first, data),
            None => Ok(0),
        };
        data.truncate(*filled.as_ref().unwrap_or(&0));
        filled.map(drop)
    }

    /// Show all entries of a container to `visit`, in runs of bytes, with the seed of their checks.
    pub fn scan(&self, container: u32, mut visit: impl FnMut(&[u8], u64)) -> Result<()> {
        let generation = self.containers.get(&container).copied().unwrap_or(1);
        let seed = self.seed(container, generation);
        let Some(file) = self.open(container)? else { return Ok(()) };
        let mut first = 0;
        let mut data = vec![0; SCAN_ENTRIES * ENTRY_BYTES];
        loop {
            let filled = read_from(&file, first, &mut data)?;
            if filled == 0 {
                return Ok(());
            }
            visit(&data[..filled], seed);
            first += filled / ENTRY_BYTES;
        }
    }

    /// The redirection table of a container; None where there is no such file.
    fn open(&self, container: u32) -> Result<Option<std::fs::File>> {
        let name = CString::new(format!("{container:08}.dir"))?;
        let flags = libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NOFOLLOW;
        loop {
            // SAFETY: the name is NUL-terminated and lives for the call.
            let fd = unsafe { libc::openat(self.dir_fd, name.as_ptr(), flags) };
            if fd >= 0 {
                // SAFETY: the descriptor was just opened, and nobody else knows it.
                return Ok(Some(unsafe { std::fs::File::from_raw_fd(fd) }));
            }
            let error = Error::last_os_error();
            match error.kind() {
                ErrorKind::Interrupted => {}
                ErrorKind::NotFound => return Ok(None),
                _ => return Err(error),
            }
        }
    }
}

/// The entries that bytes of a table consist of.
pub fn entries(data: &[u8]) -> impl Iterator<Item = &[u8; ENTRY_BYTES]> {
    data.chunks_exact(ENTRY_BYTES).filter_map(|entry| entry.first_chunk())
}

/// Read entries from ordinal `first` on; returns how many bytes of whole ones there were.
fn read_from(file: &std::fs::File, first: usize, data: &mut [u8]) -> Result<usize> {
    let start = TABLE_HEADER_BYTES + (first * ENTRY_BYTES) as u64;
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
