//! The raw bytes of the records that others lean on, found in their place by id.
//!
//! Answers only where everything is exactly as expected. `dedupd/store` handles all other cases.

use std::collections::HashMap;
use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex};

use crate::codec::delta::RAW_BYTES_MAX;
use crate::format::ids::{ContainerNumber, Fingerprint, RecordId};
use crate::format::record_header::CODEC_ZSTD;
use crate::format::table_entry::{
    FORWARDS_MAX, State, TableEntry, checksum_seed, data_name, generation_in, header, table_name,
};
use crate::store::record_reader::{BaseBytes, Files, Reads};
use crate::system::files::owned;
use crate::threads::lock::locked;

/// Containers that are kept open, two descriptors each.
const CONTAINERS_MAX: usize = 64;

/// A container of the directory, open.
struct Opened {
    data: File,
    table: File,
    seed: u64,
}

struct Decoded {
    raw: Arc<Vec<u8>>,
    used: u64,
}

#[derive(Default)]
struct Kept {
    containers: HashMap<ContainerNumber, Arc<Opened>>,
    decoded: HashMap<RecordId, Decoded>,
    decoded_bytes: usize,
    clock: u64,
}

/// Reads bases from the containers of a directory, and keeps those that were decoded last: what one
/// record leans on, its neighbours are likely to lean on, too.
pub struct Bases {
    /// None once they are closed.
    directory: Mutex<Option<Arc<OwnedFd>>>,
    volume_id: [u8; 16],
    /// Of the decoded ones that are kept.
    bytes_max: usize,
    kept: Mutex<Kept>,
}

impl Bases {
    /// The descriptor stays the caller's. Fails where there is none left.
    pub fn new(directory: RawFd, volume_id: [u8; 16], bytes_max: usize) -> io::Result<Bases> {
        // SAFETY: the caller has it open.
        let directory = unsafe { BorrowedFd::borrow_raw(directory) }.try_clone_to_owned()?;
        let directory = Mutex::new(Some(Arc::new(directory)));
        Ok(Bases { directory, volume_id, bytes_max, kept: Mutex::default() })
    }

    /// Let go of every file: nothing is found any more.
    pub fn close(&self) {
        *locked(&self.directory) = None;
        *locked(&self.kept) = Kept::default();
    }

    /// As [`Bases::raw`], with the fingerprint that the record states.
    pub fn with_fingerprint(
        &self,
        id: RecordId,
        reads: Reads,
    ) -> Option<(Arc<Vec<u8>>, Fingerprint)> {
        let (_, entry, _) = self.end_of(id, reads)?;
        Some((self.raw(id, reads)?, entry.fingerprint))
    }

    /// Let go of containers, so that the space of those that were replaced comes back.
    pub fn drop_containers(&self, numbers: &[ContainerNumber]) {
        let mut kept = locked(&self.kept);
        for number in numbers {
            kept.containers.remove(number);
        }
    }

    fn kept(&self, id: RecordId) -> Option<Arc<Vec<u8>>> {
        let mut kept = locked(&self.kept);
        kept.clock += 1;
        let clock = kept.clock;
        let decoded = kept.decoded.get_mut(&id)?;
        decoded.used = clock;
        Some(Arc::clone(&decoded.raw))
    }

    fn keep(&self, id: RecordId, raw: &Arc<Vec<u8>>) {
        let mut kept = locked(&self.kept);
        kept.clock += 1;
        let used = kept.clock;
        kept.decoded_bytes += raw.len();
        if let Some(before) = kept.decoded.insert(id, Decoded { raw: Arc::clone(raw), used }) {
            kept.decoded_bytes -= before.raw.len();
        }
        while kept.decoded_bytes > self.bytes_max && kept.decoded.len() > 1 {
            let oldest = kept.decoded.iter().min_by_key(|(_, one)| one.used).map(|(&id, _)| id);
            let Some(gone) = oldest.and_then(|oldest| kept.decoded.remove(&oldest)) else { break };
            kept.decoded_bytes -= gone.raw.len();
        }
    }

    /// Reads again where that fails: the container may have been replaced since it was opened.
    fn read(&self, id: RecordId, reads: Reads) -> Option<Vec<u8>> {
        self.try_read(id, reads).or_else(|| {
            locked(&self.kept).containers.clear();
            self.try_read(id, reads)
        })
    }

    fn try_read(&self, id: RecordId, reads: Reads) -> Option<Vec<u8>> {
        let (end, entry, opened) = self.end_of(id, reads)?;
        let mut raw = vec![0; entry.raw_length as usize];
        let mut stored = Vec::new();
        let files = opened.files(reads);
        files.read_entry(&entry, end.ordinal(), &mut raw, &mut stored)?;
        Some(raw)
    }

    /// The record at the end of a row of merged ones, where it has bytes of its own.
    fn end_of(
        &self,
        mut id: RecordId,
        reads: Reads,
    ) -> Option<(RecordId, TableEntry, Arc<Opened>)> {
        for _ in 0..=FORWARDS_MAX {
            let (entry, opened) = self.entry(id, reads)?;
            if entry.state == State::MERGED {
                id = entry.target;
                continue;
            }
            let is_base = entry.state.has_bytes()
                && entry.codec <= CODEC_ZSTD
                && entry.raw_length as usize <= RAW_BYTES_MAX;
            return is_base.then_some((id, entry, opened));
        }
        None
    }

    /// Whether a record that leans on this one may be handed out to more files: it is live, or leads
    /// to a record that is.
    pub fn is_live(&self, id: RecordId) -> bool {
        let end = self.end_of(id, Reads::Any);
        end.is_some_and(|(_, entry, _)| entry.state == State::LIVE)
    }

    /// The entry of a record. A container that was replaced since it was opened is opened again.
    fn entry(&self, id: RecordId, reads: Reads) -> Option<(TableEntry, Arc<Opened>)> {
        let number = id.container();
        let known = locked(&self.kept).containers.get(&number).map(Arc::clone);
        if let Some(opened) = known {
            let entry = opened.files(reads).any_entry(id.ordinal());
            if let Some(entry) = entry.filter(|entry| entry.state != State::QUARANTINED) {
                return Some((entry, opened));
            }
        }
        let opened = Arc::new(self.open(number).ok()?);
        let entry = opened.files(reads).any_entry(id.ordinal())?;
        let mut kept = locked(&self.kept);
        if kept.containers.len() >= CONTAINERS_MAX {
            kept.containers.clear();
        }
        kept.containers.insert(number, Arc::clone(&opened));
        Some((entry, opened))
    }

    fn open(&self, number: ContainerNumber) -> io::Result<Opened> {
        let table = self.open_file(&table_name(number))?;
        let mut bytes = [0; header::BYTES];
        table.read_exact_at(&mut bytes, 0)?;
        let generation = generation_in(&bytes, &self.volume_id, number)
            .ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))?;
        // The seed shows whether the container is of this generation.
        let data = self.open_file(&data_name(number))?;
        Ok(Opened { data, table, seed: checksum_seed(&self.volume_id, number, generation) })
    }

    fn open_file(&self, name: &str) -> io::Result<File> {
        let name = CString::new(name)?;
        let flags = libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NOFOLLOW;
        let directory = locked(&self.directory).clone().ok_or(io::ErrorKind::NotFound)?;
        // SAFETY: the name is NUL-terminated, and both live for the call.
        let fd = unsafe { libc::openat(directory.as_raw_fd(), name.as_ptr(), flags) };
        Ok(owned(fd)?.into())
    }
}

impl BaseBytes for Bases {
    /// Whatever the record was merged into.
    fn raw(&self, id: RecordId, reads: Reads) -> Option<Arc<Vec<u8>>> {
        if let Some(raw) = self.kept(id) {
            return Some(raw);
        }
        let raw = Arc::new(self.read(id, reads)?);
        self.keep(id, &raw);
        Some(raw)
    }
}

impl Opened {
    fn files(&self, reads: Reads) -> Files<'static> {
        let (data, table) = (self.data.as_raw_fd(), self.table.as_raw_fd());
        Files { data, table, seed: self.seed, reads, bases: None }
    }
}
