//! Consecutive records of a file, decoded in parallel into one buffer, before a reader asks for
//! them.

use std::cell::UnsafeCell;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::codec::encode::Buffer;
use crate::format::ids::FingerprintCheck;
use crate::store::bases::Bases;
use crate::store::record_reader::{BaseBytes, Files, Reads, Row, Wanted, with_scratch};
use crate::threads::pool::{self, Begun};

/// Memory is allocated in multiples of this, so that it fits the next window too.
const ROOM_BYTES: usize = 512 << 10;

pub struct Window {
    // Declared first, and so dropped before the data of the tasks.
    begun: Begun,
    parts: Arc<Parts>,
}

impl Window {
    /// Begins to decode records into the buffer after `head`, with `helpers` threads.
    ///
    /// Fails where the page cache does not have all of the records. The descriptors stay the
    /// caller's.
    pub fn begin(
        data: RawFd,
        table: RawFd,
        seed: u64,
        bases: Option<Arc<Bases>>,
        rows: &[Row],
        head: &[u8],
        helpers: usize,
    ) -> io::Result<Window> {
        let files = [owned(data)?, owned(table)?];
        let parts = Arc::new(Parts::new(files, seed, bases, rows, head));
        let own = Arc::clone(&parts);
        let begun = pool::begin(rows.len(), helpers, move |at| own.read(at));
        Ok(Window { begun, parts })
    }

    /// All bytes, head and records, when they are there; None where a record is not as expected.
    pub fn finish(&self) -> Option<&[u8]> {
        self.begun.finish();
        // SAFETY: every task has ended, so nobody writes any more.
        let buffer = unsafe { &*self.parts.buffer.get() };
        let is_sound = self.parts.sound.load(Ordering::Acquire) == self.parts.places.len();
        is_sound.then(|| &buffer[..self.parts.length])
    }
}

struct Place {
    ordinal: u32,
    fingerprint_check: FingerprintCheck,
    range: Range<usize>,
}

/// The data of the tasks. Each task writes to its own part of the buffer.
struct Parts {
    files: [OwnedFd; 2],
    seed: u64,
    bases: Option<Arc<Bases>>,
    places: Vec<Place>,
    buffer: UnsafeCell<Buffer>,
    start: *mut u8,
    length: usize,
    /// Records that were read and are as expected.
    sound: AtomicUsize,
}

// SAFETY: ranges of the buffer are disjoint, each is written by one task, and none is read before
// all tasks have ended.
unsafe impl Send for Parts {}
// SAFETY: as above.
unsafe impl Sync for Parts {}

impl Parts {
    fn new(
        files: [OwnedFd; 2],
        seed: u64,
        bases: Option<Arc<Bases>>,
        rows: &[Row],
        head: &[u8],
    ) -> Parts {
        let mut length = head.len();
        let places = rows
            .iter()
            .map(|&(ordinal, raw_length, check)| {
                let range = length..length + raw_length;
                length = range.end;
                Place { ordinal, fingerprint_check: FingerprintCheck(check), range }
            })
            .collect();
        let mut buffer = Buffer::of(length.next_multiple_of(ROOM_BYTES));
        buffer[..head.len()].copy_from_slice(head);
        let start = buffer.as_mut_ptr();
        let sound = AtomicUsize::new(0);
        let buffer = UnsafeCell::new(buffer);
        Parts { files, seed, bases, places, buffer, start, length, sound }
    }

    fn read(&self, at: usize) {
        let Place { ordinal, fingerprint_check, range } = &self.places[at];
        let [data, table] = self.files.each_ref().map(AsRawFd::as_raw_fd);
        let bases = self.bases.as_deref().map(|bases| bases as &dyn BaseBytes);
        let reads = Reads::CachedOnly;
        let files = Files { data, table, seed: self.seed, reads, bases };
        // SAFETY: the range lies in the buffer, and is this task's alone.
        let out =
            unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.len()) };
        let mut wanted = Wanted { ordinal: *ordinal, fingerprint_check: *fingerprint_check, out };
        if with_scratch(|scratch| files.read(&mut wanted, scratch)) {
            self.sound.fetch_add(1, Ordering::Release);
        }
    }
}

fn owned(fd: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: the caller has it open.
    unsafe { BorrowedFd::borrow_raw(fd) }.try_clone_to_owned()
}
