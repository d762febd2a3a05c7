//! The raw bytes of the records that others lean on, found in their place by id.
//!
//! If anything is not exactly as expected, the answer is the reason. `dedupd_core/store` decides about
//! the repair.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex};

use crate::codec::delta::RAW_BYTES_MAX;
use crate::codec::dictionary::Dictionary;
use crate::format::ids::{ChunkKey, ContainerNumber, Fingerprint, FingerprintCheck, RecordId};
use crate::format::table_entry::{
    FORWARDS_MAX, State, TableEntry, data_name, header, seed_in, table_name,
};
use crate::format::table_map::{TableMap, entries_start};
use crate::store::blocks_ahead::Blocks;
use crate::store::bounded::Bounded;
use crate::store::record_reader::{BaseBytes, CacheUse, Files, require_live, with_scratch};
use crate::store::why::Why;
use crate::system::files::{duplicate, open_in};
use crate::system::reads::read_all;
use crate::threads::lock::locked;

/// Containers that are kept open, two descriptors each.
const CONTAINERS_MAX: usize = 128;

/// Dictionaries that are kept ready, some 150 KiB each.
const DICTIONARIES_MAX: usize = 64;

/// A container of the directory, open.
pub struct OpenContainer {
    pub data: File,
    table: File,
    pub seed: u64,
}

/// A live record, and the container that it is in.
pub struct Located {
    pub id: RecordId,
    pub entry: TableEntry,
    opened: Arc<OpenContainer>,
}

impl Located {
    pub fn number(&self) -> u32 {
        self.id.container().0
    }

    pub fn data(&self) -> RawFd {
        self.opened.data.as_raw_fd()
    }

    /// Fails unless it has the length and the start of the fingerprint.
    fn meant(&self, key: &ChunkKey) -> Result<(), Why> {
        let is_same = self.entry.raw_length == key.length;
        let is_meant = is_same && self.entry.fingerprint_check() == key.check;
        if is_meant { Ok(()) } else { Err(Why::NotMeant) }
    }

    /// Fills `out`, of its raw length, whether it leans on another record or not.
    pub fn read(&self, bases: &Bases, reads: CacheUse, out: &mut [u8]) -> Result<(), Why> {
        let files = Files { bases: Some(bases), ..self.opened.files(reads) };
        with_scratch(|scratch| files.read_entry(&self.entry, self.id.ordinal(), out, scratch))
    }

    /// Fills `out`, of its stored length, past the page cache. The file is read by `blocks`, if they
    /// are of its container.
    pub fn read_stored(&self, blocks: Option<&Blocks>, out: &mut [u8]) -> Result<(), Why> {
        let blocks = blocks.filter(|blocks| blocks.number() == self.number());
        let files = self.opened.files(CacheUse::Uncached);
        files.read_stored(&self.entry, self.id.ordinal(), blocks, out)
    }
}

struct CachedBases {
    containers: HashMap<ContainerNumber, Arc<OpenContainer>>,
    decoded: Bounded<RecordId, Arc<Vec<u8>>>,
    dictionaries: HashMap<RecordId, Arc<Dictionary>>,
}

impl CachedBases {
    fn new(bytes_max: usize) -> CachedBases {
        let (containers, dictionaries) = (HashMap::new(), HashMap::new());
        CachedBases { containers, decoded: Bounded::new(bytes_max), dictionaries }
    }
}

/// Reads bases from the containers of a directory, and keeps those that were decoded last: what one
/// record leans on, its neighbours are likely to lean on, too.
pub struct Bases {
    /// None once they are closed.
    directory: Mutex<Option<Arc<OwnedFd>>>,
    volume_id: [u8; 16],
    /// Of the decoded ones that are kept.
    bytes_max: usize,
    kept: Mutex<CachedBases>,
}

impl Bases {
    /// The descriptor stays the caller's. Fails where there is none left.
    pub fn new(directory: RawFd, volume_id: [u8; 16], bytes_max: usize) -> io::Result<Bases> {
        let directory = Mutex::new(Some(Arc::new(duplicate(directory)?)));
        Ok(Bases { directory, volume_id, bytes_max, kept: Mutex::new(CachedBases::new(bytes_max)) })
    }

    /// Let go of every file: nothing is found any more.
    pub fn close(&self) {
        *locked(&self.directory) = None;
        *locked(&self.kept) = CachedBases::new(self.bytes_max);
    }

    /// As [`Bases::raw`], with the fingerprint that the record states.
    pub fn with_fingerprint(
        &self,
        id: RecordId,
        reads: CacheUse,
    ) -> Result<(Arc<Vec<u8>>, Fingerprint), Why> {
        let (raw, entry) = self.with_entry(id, reads)?;
        Ok((raw, entry.fingerprint))
    }

    /// As [`Bases::raw`], with the entry of the record that has the bytes.
    pub fn with_entry(
        &self,
        id: RecordId,
        reads: CacheUse,
    ) -> Result<(Arc<Vec<u8>>, TableEntry), Why> {
        let (_, entry, _) = self.end_of(id, reads)?;
        Ok((self.raw(id, reads)?, entry))
    }

    /// The raw bytes of a live record, also of one that is the difference to another, and the
    /// fingerprint that it states. They are not kept.
    pub fn of_any(&self, id: RecordId, reads: CacheUse) -> Result<(Vec<u8>, Fingerprint), Why> {
        let (entry, opened) = self.entry(id, reads)?;
        require_live(&entry)?;
        Ok((self.bytes(id, &entry, &opened, reads)?, entry.fingerprint))
    }

    /// The raw bytes of a live or orphaned record, or of the record into which it was merged.
    pub fn of_end(&self, id: RecordId, reads: CacheUse) -> Result<Vec<u8>, Why> {
        let (id, entry, opened) = self.unmerged(id, reads)?;
        if !entry.state.has_bytes() {
            require_live(&entry)?;
        }
        self.bytes(id, &entry, &opened, reads)
    }

    fn bytes(
        &self,
        id: RecordId,
        entry: &TableEntry,
        opened: &OpenContainer,
        reads: CacheUse,
    ) -> Result<Vec<u8>, Why> {
        if entry.raw_length as usize > RAW_BYTES_MAX {
            return Err(Why::Damaged);
        }
        let mut raw = vec![0; entry.raw_length as usize];
        let files = Files { bases: Some(self), ..opened.files(reads) };
        files.read_entry(entry, id.ordinal(), &mut raw, &mut Vec::new())?;
        Ok(raw)
    }

    /// Fills `out`, of its raw length, with a live record, whether it leans on another one or not.
    ///
    /// Where its container would have to be opened, a thread of its own does that.
    pub fn read_opened(
        self: &Arc<Bases>,
        id: RecordId,
        fingerprint_check: FingerprintCheck,
        out: &mut [u8],
    ) -> Result<(), Why> {
        if !locked(&self.kept).containers.contains_key(&id.container()) {
            let bases = Arc::clone(self);
            // Without a thread it is opened another time.
            let _ = std::thread::Builder::new()
                .name("opens".into())
                .spawn(move || bases.entry(id, CacheUse::Any));
            return Err(Why::NotInMemory);
        }
        self.fill_from_memory(id, fingerprint_check, out)
    }

    /// As [`Bases::fill`], of a record that was not merged, if nothing has to be read or opened for it.
    pub fn fill_from_memory(
        &self,
        id: RecordId,
        fingerprint_check: FingerprintCheck,
        out: &mut [u8],
    ) -> Result<(), Why> {
        let opened = locked(&self.kept).containers.get(&id.container()).map(Arc::clone);
        let opened = opened.ok_or(Why::NotInMemory)?;
        let entry = opened.files(CacheUse::CachedOnly).entry(id.ordinal())?;
        let length = u32::try_from(out.len()).map_err(|_| Why::NotMeant)?;
        let located = Located { id, entry, opened };
        located.meant(&ChunkKey { id, length, check: fingerprint_check })?;
        located.read(self, CacheUse::CachedOnly, out)
    }

    /// Fills `out`, of its raw length, with a live record, or the one that it was merged into, whether
    /// that leans on another one or not.
    pub fn fill(
        &self,
        id: RecordId,
        fingerprint_check: FingerprintCheck,
        out: &mut [u8],
    ) -> Result<(), Why> {
        self.try_fill(id, fingerprint_check, out).or_else(|_| {
            // Its container may have been replaced since it was opened.
            self.drop_containers(&[id.container()]);
            self.try_fill(id, fingerprint_check, out)
        })
    }

    fn try_fill(
        &self,
        id: RecordId,
        fingerprint_check: FingerprintCheck,
        out: &mut [u8],
    ) -> Result<(), Why> {
        let length = u32::try_from(out.len()).map_err(|_| Why::NotMeant)?;
        let located = self.try_locate(&ChunkKey { id, length, check: fingerprint_check })?;
        located.read(self, CacheUse::Any, out)
    }

    /// Finds a live record, or the record into which it was merged.
    pub fn locate(&self, key: &ChunkKey) -> Result<Located, Why> {
        self.try_locate(key).or_else(|_| {
            // Its container may have been replaced since it was opened.
            self.drop_containers(&[key.id.container()]);
            self.try_locate(key)
        })
    }

    fn try_locate(&self, key: &ChunkKey) -> Result<Located, Why> {
        let (id, entry, opened) = self.unmerged(key.id, CacheUse::Any)?;
        require_live(&entry)?;
        let located = Located { id, entry, opened };
        located.meant(key)?;
        Ok(located)
    }

    /// The raw length and the fingerprint of a live record.
    pub fn described(&self, id: RecordId, reads: CacheUse) -> Result<(u32, Fingerprint), Why> {
        let (entry, _) = self.entry(id, reads)?;
        require_live(&entry)?;
        Ok((entry.raw_length, entry.fingerprint))
    }

    /// Let go of containers, so that the space of those that were replaced comes back.
    pub fn drop_containers(&self, numbers: &[ContainerNumber]) {
        let mut kept = locked(&self.kept);
        for number in numbers {
            kept.containers.remove(number);
        }
    }

    /// Reads again where that fails: the container may have been replaced since it was opened.
    fn read(&self, id: RecordId, reads: CacheUse) -> Result<Vec<u8>, Why> {
        let found = self.try_read(id, reads);
        if reads == CacheUse::CachedOnly {
            return found; // it may only not be in memory
        }
        found.or_else(|_| {
            locked(&self.kept).containers.clear();
            self.try_read(id, reads)
        })
    }

    fn try_read(&self, id: RecordId, reads: CacheUse) -> Result<Vec<u8>, Why> {
        let (end, entry, opened) = self.end_of(id, reads)?;
        self.bytes(end, &entry, &opened, reads)
    }

    /// The record at the end of a row of merged ones, where it has bytes of its own.
    fn end_of(
        &self,
        id: RecordId,
        reads: CacheUse,
    ) -> Result<(RecordId, TableEntry, Arc<OpenContainer>), Why> {
        let (id, entry, opened) = self.unmerged(id, reads)?;
        if !entry.state.has_bytes() {
            require_live(&entry)?;
        }
        let may_be_base = entry.codec.may_be_base() && entry.raw_length as usize <= RAW_BYTES_MAX;
        if may_be_base { Ok((id, entry, opened)) } else { Err(Why::Damaged) }
    }

    /// The record at the end of a row of merged ones.
    fn unmerged(
        &self,
        mut id: RecordId,
        reads: CacheUse,
    ) -> Result<(RecordId, TableEntry, Arc<OpenContainer>), Why> {
        for _ in 0..=FORWARDS_MAX {
            let (entry, opened) = self.entry(id, reads)?;
            if entry.state != State::MERGED {
                return Ok((id, entry, opened));
            }
            id = entry.target;
        }
        Err(Why::Merged)
    }

    /// Whether a record that leans on this one may be handed out to more files: it is live, or leads
    /// to a record that is.
    pub fn is_live(&self, id: RecordId) -> bool {
        let end = self.end_of(id, CacheUse::Any);
        end.is_ok_and(|(_, entry, _)| entry.state == State::LIVE)
    }

    /// The entry of a record. A container that was replaced since it was opened is opened again.
    fn entry(
        &self,
        id: RecordId,
        reads: CacheUse,
    ) -> Result<(TableEntry, Arc<OpenContainer>), Why> {
        let number = id.container();
        let known = locked(&self.kept).containers.get(&number).map(Arc::clone);
        if let Some(opened) = known {
            match opened.files(reads).any_entry(id.ordinal()) {
                Ok(entry) if entry.state != State::QUARANTINED => return Ok((entry, opened)),
                _ => {}
            }
        }
        if reads == CacheUse::CachedOnly {
            return Err(Why::NotInMemory); // to open it may mean to wait for the disk
        }
        let opened = Arc::new(self.open(number).map_err(|error| Why::of(&error))?);
        let entry = opened.files(reads).any_entry(id.ordinal())?;
        let mut kept = locked(&self.kept);
        if kept.containers.len() >= CONTAINERS_MAX {
            // Any one: to find the longest unused, each use would have to be noted.
            let one = kept.containers.keys().next().copied();
            one.and_then(|number| kept.containers.remove(&number));
        }
        kept.containers.insert(number, Arc::clone(&opened));
        Ok((entry, opened))
    }

    /// A container as it is now.
    pub fn open(&self, number: ContainerNumber) -> io::Result<OpenContainer> {
        let table = self.open_file(&table_name(number))?;
        let mut bytes = [0; header::BYTES];
        table.read_exact_at(&mut bytes, 0)?;
        let seed = seed_in(&bytes, &self.volume_id, number)
            .ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))?;
        // The seed shows whether the container is of the table's generation.
        let data = self.open_file(&data_name(number))?;
        Ok(OpenContainer { data, table, seed })
    }

    fn open_file(&self, name: &str) -> io::Result<File> {
        let directory = locked(&self.directory).clone().ok_or(io::ErrorKind::NotFound)?;
        open_in(directory.as_raw_fd(), name)
    }
}

impl BaseBytes for Bases {
    /// Whatever the record was merged into.
    fn raw(&self, id: RecordId, reads: CacheUse) -> Result<Arc<Vec<u8>>, Why> {
        if let Some(raw) = locked(&self.kept).decoded.get(&id) {
            return Ok(raw);
        }
        let raw = Arc::new(self.read(id, reads)?);
        let gone = locked(&self.kept).decoded.keep(id, Arc::clone(&raw), raw.len());
        drop(gone);
        Ok(raw)
    }

    /// Whatever the record was merged into; never one that leans on another.
    fn dictionary(&self, id: RecordId, reads: CacheUse) -> Result<Arc<Dictionary>, Why> {
        if let Some(found) = locked(&self.kept).dictionaries.get(&id) {
            return Ok(Arc::clone(found));
        }
        let (_, entry, _) = self.end_of(id, reads)?;
        if entry.leans() {
            return Err(Why::Damaged);
        }
        let found = Dictionary::of(&self.read(id, reads)?).ok_or(Why::Damaged)?;
        let found = Arc::new(found);
        let mut kept = locked(&self.kept);
        if kept.dictionaries.len() >= DICTIONARIES_MAX {
            kept.dictionaries.clear();
        }
        kept.dictionaries.insert(id, Arc::clone(&found));
        Ok(found)
    }
}

impl OpenContainer {
    /// The entries of the records from `first` to `end`, as far as the table goes.
    pub fn entries(&self, first: u32, end: u32) -> Result<Vec<u8>, Why> {
        let mut lines = [0; 2];
        self.fill_table(header::MAP_LINES.start as u64, &mut lines)?;
        let start = entries_start(u16::from_le_bytes(lines));
        let mut map = vec![0; usize::try_from(start).unwrap_or(0).saturating_sub(header::BYTES)];
        self.fill_table(header::BYTES as u64, &mut map)?;
        let map = TableMap::of(&map, self.seed).ok_or(Why::Damaged)?;
        let start = map.offset(map.places_below(first));
        let length = map.offset(map.places_below(end)) - start;
        let mut packed = vec![0; usize::try_from(length).map_err(|_| Why::Damaged)?];
        let read = self.fill_table(start, &mut packed)?;
        Ok(map.expand(&packed[..read], first, end))
    }

    fn fill_table(&self, offset: u64, out: &mut [u8]) -> Result<usize, Why> {
        read_all(&self.table, offset, out).map_err(|error| Why::Io(error.raw_os_error()))
    }

    fn files<'a>(&self, reads: CacheUse) -> Files<'a> {
        let (data, table) = (self.data.as_raw_fd(), self.table.as_raw_fd());
        Files { data, table, seed: self.seed, reads, bases: None }
    }
}
