//! The redirection tables as the log that the index is over, with a cache of what was read of them.

use std::collections::HashMap;
use std::ffi::CString;
use std::io::{Error, ErrorKind, Result};
use std::os::fd::{FromRawFd, RawFd};
use std::os::unix::fs::FileExt;

use xxhash_rust::xxh3::xxh3_64;

use crate::fingerprint::{Fingerprint, HASH_BYTES};
use crate::seal::{ENTRY_BYTES, STATE_AT, STATE_LIVE, TABLE_HEADER_BYTES, entry_body};

pub const STATE_NONE: u8 = 0;
pub const STATE_ORPHANED: u8 = 2;

/// Entries of one read of a scan: 4 MiB, sequential.
const SCAN_ENTRIES: usize = 1 << 16;

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

/// Entries of one container that lie next to each other, as they were when they were read.
struct Page {
    entries: Vec<Entry>,
    used: u64,
}

pub struct Log {
    dir_fd: RawFd,
    volume: [u8; 16],
    /// Container → generation.
    containers: HashMap<u32, u32>,
    page_entries: usize,
    pages_max: usize,
    pages: HashMap<u64, Page>,
    clock: u64,
    pub reads: u64,
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
            pages: HashMap::new(),
            clock: 0,
            reads: 0,
        }
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
        self.pages.len() * self.page_entries * size_of::<Entry>()
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

    /// The entry of an id, if it is in the cache.
    pub fn cached(&mut self, id: u64) -> Option<Entry> {
        let (key, at) = self.place(id);
        self.clock += 1;
        let page = self.pages.get_mut(&key)?;
        page.used = self.clock;
        page.entries.get(at).copied()
    }

    /// The entry of an id, read together with its neighbours; None where there is none.
    pub fn read(&mut self, id: u64) -> Result<Option<Entry>> {
        let container = (id >> 32) as u32;
        let Some(&generation) = self.containers.get(&container) else {
            return Ok(None);
        };
        let (key, at) = self.place(id);
        let first = id as u32 as usize - at;
        self.reads += 1;
        let data = self.read_entries(container, first, self.page_entries)?;
        let seed = self.seed(container, generation);
        let entries: Vec<Entry> = entries(&data).map(|entry| decode(entry, seed)).collect();
        let found = entries.get(at).copied();
        if !self.pages.contains_key(&key) && self.pages.len() >= self.pages_max {
            let oldest = self.pages.iter().min_by_key(|(_, page)| page.used).map(|(&key, _)| key);
            oldest.map(|key| self.pages.remove(&key));
        }
        self.clock += 1;
        self.pages.insert(key, Page { entries, used: self.clock });
        Ok(found)
    }

    /// Take an orphan that was found for live, as it is about to become.
    pub fn take_for_live(&mut self, id: u64) {
        let (key, at) = self.place(id);
        if let Some(entry) = self.pages.get_mut(&key).and_then(|page| page.entries.get_mut(at)) {
            entry.state = STATE_LIVE;
        }
    }

    /// How many entries a container's table has by now.
    pub fn count(&self, container: u32) -> Result<u32> {
        let Some(file) = self.open(container)? else { return Ok(0) };
        let length = file.metadata()?.len();
        Ok((length.saturating_sub(TABLE_HEADER_BYTES) / ENTRY_BYTES as u64) as u32)
    }

    fn read_entries(&self, container: u32, first: usize, count: usize) -> Result<Vec<u8>> {
        let Some(file) = self.open(container)? else { return Ok(Vec::new()) };
        read_from(&file, first, count)
    }

    /// Show all entries of a container to `visit`, in runs of bytes, with the seed of their checks.
    pub fn scan(&self, container: u32, mut visit: impl FnMut(&[u8], u64)) -> Result<()> {
        let generation = self.containers.get(&container).copied().unwrap_or(1);
        let seed = self.seed(container, generation);
        let Some(file) = self.open(container)? else { return Ok(()) };
        let mut first = 0;
        loop {
            let data = read_from(&file, first, SCAN_ENTRIES)?;
            if data.is_empty() {
                return Ok(());
            }
            visit(&data, seed);
            first += data.len() / ENTRY_BYTES;
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

/// Up to `count` whole entries from ordinal `first` on; fewer at the end of the file.
fn read_from(file: &std::fs::File, first: usize, count: usize) -> Result<Vec<u8>> {
    let start = TABLE_HEADER_BYTES + (first * ENTRY_BYTES) as u64;
    let mut data = vec![0; count * ENTRY_BYTES];
    let mut filled = 0;
    while filled < data.len() {
        match file.read_at(&mut data[filled..], start + filled as u64) {
            Ok(0) => break,
            Ok(more) => filled += more,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    data.truncate(filled / ENTRY_BYTES * ENTRY_BYTES);
    Ok(data)
}
