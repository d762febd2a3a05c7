//! Reads of files: answered at once where memory has all, and else as far as needs no wait.
//!
//! What a stub is made of is looked at here, in the thread that takes the requests, while Python has
//! no state of it. Bytes of its own blocks are taken at once. What is left is the store's, and can be
//! read in any thread, whatever becomes of the file meanwhile: the answer is the content that the
//! file had at the look. A change of these bytes either waits for the answer (the kernel has locked
//! the pages that it reads into), or makes the kernel drop what it has read. A chunk that is not
//! needed any more, and was collected, is not there; then Python reads the file as it is now.
//!
//! A plain file may be read in any thread, too, as long as Python has not begun to change it: that is
//! looked at once more after the bytes are there.

use std::ops::Range;
use std::sync::Arc;

use rustix::io::Errno;

use crate::format::stub::StubHead;
use crate::mount::inodes::changes::Changes;
use crate::mount::inodes::data_file::DataFile;
use crate::mount::inodes::watched::{Unwatched, Watched};
use crate::mount::protocol::abi::ReadIn;
use crate::mount::protocol::message::{Answer, Request};
use crate::mount::requests::stubs::{Pieces, Store, VALUE_BYTES, touch};
use crate::mount::requests::tree::Tree;
use crate::store::record_reader::CacheUse;
use crate::store::stub_bytes::{AT_ONCE_BYTES, Part, Piece};
use crate::store::why::Unreadable;

/// What becomes of a request to read.
pub enum Reading {
    Answered(usize),
    HandedOver,
    OfStore(StubRead),
    OfPlain(PlainRead),
    /// The page cache lacks some of a range of a stub's own.
    OnDisk(Arc<DataFile>, Range<u64>),
}

/// A read of a stub that has still to get chunks.
pub struct StubRead {
    store: Arc<Store>,
    stub: StubHead,
    pieces: Vec<Piece>,
    length: u64,
    /// What its reader is expected to read next.
    ahead: Option<Range<u64>>,
}

impl StubRead {
    /// The answer, or what of it cannot be read.
    pub fn parts(&self) -> Result<Vec<Part>, Vec<Unreadable>> {
        self.store.parts(&self.stub, &self.pieces, CacheUse::Any)
    }

    /// How many bytes are asked for.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Whether chunks are to be loaded once the answer is given.
    pub fn has_ahead(&self) -> bool {
        self.ahead.is_some()
    }

    pub fn load_ahead(&self) {
        if let Some(range) = &self.ahead {
            self.store.load_ahead(&self.stub, range);
        }
    }
}

/// A read of a plain file that has to wait for the disk, in whatever thread.
///
/// The file was plain at an instant at which Python had no state of it, and is plain as long as Python
/// has not: so bytes that were read before it has are the file's.
pub struct PlainRead {
    file: Arc<DataFile>,
    node: u64,
    range: Range<u64>,
    since: Unwatched,
    watched: Arc<Watched>,
    changes: Arc<Changes>,
}

impl PlainRead {
    /// How many bytes are asked for.
    pub fn length(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// The bytes, as far as the file goes. None where Python may have begun to change the file, or
    /// they cannot be read.
    pub fn bytes(&self) -> Option<Vec<u8>> {
        let length = usize::try_from(self.length()).ok()?;
        let mut bytes = vec![0; length];
        let done = self.file.read_all(self.range.start, &mut bytes).ok()?;
        bytes.truncate(done);
        if !self.watched.stays_unwatched(self.node, self.since) {
            return None;
        }
        self.changes.note(self.node); // the access time
        Some(bytes)
    }
}

impl Tree {
    /// Begins a read of an inode that Python has no state of.
    pub fn begin_read(&self, request: &Request, out: &mut [u8]) -> Answer<Reading> {
        let (given, node): (ReadIn, u64) = (request.part()?, request.header.node);
        let Some(since) = self.inodes.watched.unwatched(node) else {
            return Ok(Reading::HandedOver);
        };
        let Ok(file) = self.inodes.data(node, false) else { return Ok(Reading::HandedOver) };
        let mut value = [0; VALUE_BYTES];
        let reading = match self.attribute_of(&file, &mut value) {
            Err(Errno::NODATA) => Some(self.read_plain(file, node, since, &given, out)),
            Err(_) => None,
            Ok(length) => self.read_stub(&file, node, &value[..length], &given, out),
        };
        if reading.is_none() {
            // Python opens it.
            self.inodes.close_data(node);
        }
        Ok(reading.unwrap_or(Reading::HandedOver))
    }

    fn read_plain(
        &self,
        file: Arc<DataFile>,
        node: u64,
        since: Unwatched,
        given: &ReadIn,
        out: &mut [u8],
    ) -> Reading {
        // With larger pages the kernel asks for more than there is room for.
        let Some(room) = out.get_mut(..given.size as usize) else { return Reading::HandedOver };
        if let Some(length) = file.read_cached(given.offset, room) {
            return Reading::Answered(length);
        }
        Reading::OfPlain(PlainRead {
            file,
            node,
            range: given.offset..given.offset.saturating_add(u64::from(given.size)),
            since,
            watched: Arc::clone(&self.inodes.watched),
            changes: Arc::clone(&self.inodes.changes),
        })
    }

    fn read_stub(
        &self,
        file: &Arc<DataFile>,
        node: u64,
        value: &[u8],
        given: &ReadIn,
        out: &mut [u8],
    ) -> Option<Reading> {
        let store = self.store.get()?;
        if let Some(length) = store.read_whole(file, node, value, given, out) {
            return Some(Reading::Answered(length));
        }
        let look = store.look(file, node, value, self.inodes.lent.uses(node))?;
        touch(file, look.size);
        let end = given.offset.saturating_add(u64::from(given.size)).min(look.size);
        if given.offset >= end {
            return Some(Reading::Answered(0));
        }
        let range = given.offset..end;
        let pieces = match store.pieces(file, &look, range.clone())? {
            Pieces::OnDisk(range) => return Some(Reading::OnDisk(Arc::clone(file), range)),
            Pieces::Known(pieces) => pieces,
        };
        let (store, length) = (Arc::clone(store), end - given.offset);
        let mut read = StubRead { store, stub: look.stub, pieces, length, ahead: None };
        if length <= AT_ONCE_BYTES {
            if let Some(length) = read.store.fill(&read.stub, &read.pieces, out) {
                return Some(Reading::Answered(length));
            }
        }
        if !look.is_local {
            let bytes_max = read.store.cache.bytes_max as u64;
            let ahead = read.store.content.ahead_bytes(length);
            read.ahead = self.readers.follow(node, &range, read.stub.covered, ahead, bytes_max);
        }
        Some(Reading::OfStore(read))
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{File, OpenOptions};
    use std::os::unix::fs::FileExt;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    const NODE: u64 = 7;
    static CONTENT: [u8; 64 << 10] = [7; 64 << 10];

    fn plain_read(file: &File, watched: &Arc<Watched>) -> Option<PlainRead> {
        Some(PlainRead {
            file: Arc::new(DataFile { fd: file.try_clone().unwrap().into(), is_writable: false }),
            node: NODE,
            range: 0..CONTENT.len() as u64,
            since: watched.unwatched(NODE)?,
            watched: Arc::clone(watched),
            changes: Arc::default(),
        })
    }

    fn with_file(work: impl FnOnce(&File)) {
        let name = format!("dedupd-reading-{:?}", std::thread::current().id());
        let path = std::env::temp_dir().join(name);
        let file =
            OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path);
        let file = file.unwrap();
        file.write_all_at(&CONTENT, 0).unwrap();
        work(&file);
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn what_was_punched_between_the_look_and_the_read_is_not_answered() {
        with_file(|file| {
            let watched = Arc::<Watched>::default();
            let (read, late) = (plain_read(file, &watched), plain_read(file, &watched));
            assert_eq!(read.unwrap().bytes().unwrap(), CONTENT);
            watched.add(NODE);
            file.write_all_at(&[0; CONTENT.len()], 0).unwrap();
            watched.remove(NODE);
            assert!(late.unwrap().bytes().is_none());
        });
    }

    #[test]
    fn bytes_of_a_file_that_is_punched_at_any_time_are_those_of_before_or_of_after() {
        with_file(|file| {
            let watched = Arc::<Watched>::default();
            let has_ended = AtomicBool::new(false);
            let are_right = std::thread::scope(|scope| {
                scope.spawn(|| {
                    while !has_ended.load(Ordering::Relaxed) {
                        watched.add(NODE);
                        file.write_all_at(&[0; CONTENT.len()], 0).unwrap();
                        file.write_all_at(&CONTENT, 0).unwrap();
                        watched.remove(NODE);
                        std::thread::yield_now();
                    }
                });
                let bytes = |_| plain_read(file, &watched)?.bytes();
                let are_right = (0..5_000).filter_map(bytes).all(|bytes| bytes == CONTENT);
                has_ended.store(true, Ordering::Relaxed);
                are_right
            });
            assert!(are_right);
        });
    }
}
