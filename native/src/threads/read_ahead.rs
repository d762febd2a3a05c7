//! Reads a file span by span, ahead of the threads that process the spans.
//!
//! `O_DIRECT` bypasses the page cache: it takes a fifth of the CPU time, evicts no pages of users,
//! and reads the disk instead of a cached copy.

use std::fs::{File, OpenOptions};
use std::ops::Range;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use crate::system::calls::is_cached;
use crate::system::reads::fill_at;
use crate::threads::lock::locked;

/// Alignment of offsets, lengths and addresses of direct reads: a multiple of all usual block
/// sizes.
const DIRECT_ALIGN_BYTES: usize = 4096;
/// Number of reading threads, so that the disk is busy while one of them passes on a span.
const READERS: usize = 2;
/// Spans that are read ahead while every processing thread is busy.
const AHEAD: usize = 4;

/// A file that is open for reading, and for direct reads if the file system supports them.
pub struct Source {
    fd: RawFd,
    direct: Option<File>,
}

impl Source {
    /// `fd` must stay open as long as this object exists.
    pub fn new(fd: RawFd) -> Source {
        let path = format!("/proc/self/fd/{fd}");
        let direct = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path);
        Source { fd, direct: direct.ok() }
    }
}

/// Reusable memory for a span, which lies at `at` among the aligned bytes around it.
#[derive(Default)]
pub struct Buffer {
    bytes: Vec<u8>,
    at: Range<usize>,
    is_filled: bool,
}

impl Buffer {
    /// Makes room for `span` and the aligned bytes around it. Returns the number of bytes before
    /// the span, and the range of all bytes in memory.
    fn make_room(&mut self, span: &Range<u64>) -> (usize, Range<usize>) {
        let skipped = span.start as usize % DIRECT_ALIGN_BYTES;
        let length = (span.end - span.start) as usize;
        let whole = (skipped + length).next_multiple_of(DIRECT_ALIGN_BYTES);
        self.bytes.resize(self.bytes.len().max(whole + DIRECT_ALIGN_BYTES), 0);
        let start = self.bytes.as_ptr().align_offset(DIRECT_ALIGN_BYTES);
        self.at = start + skipped..start + skipped + length;
        (skipped, start..start + whole)
    }

    /// Reads a span, or notes that it cannot be read.
    pub fn fill(&mut self, source: &Source, span: &Range<u64>) {
        let length = (span.end - span.start) as usize;
        let (skipped, around) = self.make_room(span);
        let around = &mut self.bytes[around];
        self.is_filled = match &source.direct {
            Some(file) => read_direct(file, span.start - skipped as u64, around, skipped + length)
                .unwrap_or_else(|| {
                    fill_at(source.fd, span.start, &mut self.bytes[self.at.clone()]).is_ok()
                }),
            None => fill_at(source.fd, span.start, &mut self.bytes[self.at.clone()]).is_ok(),
        };
    }

    /// Reads a span if the page cache has all of it and the kernel can confirm that.
    pub fn fill_cached(&mut self, file: &File, span: &Range<u64>) -> bool {
        if !is_cached(file.as_raw_fd(), span) {
            return false;
        }
        self.make_room(span);
        self.is_filled = file.read_exact_at(&mut self.bytes[self.at.clone()], span.start).is_ok();
        self.is_filled
    }

    /// The span, if it could be read.
    pub fn data(&self) -> Option<&[u8]> {
        self.is_filled.then(|| &self.bytes[self.at.clone()])
    }
}

/// Returns whether the first `wanted` bytes of `out` could be filled. None if direct reads are
/// impossible.
fn read_direct(file: &File, offset: u64, out: &mut [u8], wanted: usize) -> Option<bool> {
    let mut have = 0;
    while have < wanted {
        match file.read_at(&mut out[have..], offset + have as u64) {
            Ok(count) => {
                have += count;
                if count == 0 || count % DIRECT_ALIGN_BYTES != 0 {
                    break; // the end of the file
                }
            }
            Err(error) => match error.raw_os_error() {
                Some(libc::EINTR) => {}
                Some(libc::EINVAL | libc::EOPNOTSUPP) => return None,
                _ => return Some(false),
            },
        }
    }
    Some(have >= wanted)
}

/// Reads the span of each task, in order, and runs `work` on it, on one of `threads`. None means
/// that the bytes could not be read.
///
/// The next task is taken from `tasks` when there is memory for its span. So after the end of
/// `tasks`, at most [`AHEAD`] spans and those of the threads remain to be processed.
pub fn for_each<T: Send>(
    source: &Source,
    mut tasks: impl Iterator<Item = (Range<u64>, T)> + Send,
    threads: usize,
    work: impl Fn(T, Option<&[u8]>) + Sync,
) {
    let Some(first) = tasks.next() else { return };
    let Some(second) = tasks.next() else {
        // With a single task, there is nothing to read ahead.
        let mut buffer = Buffer::default();
        buffer.fill(source, &first.0);
        return work(first.1, buffer.data());
    };
    let tasks = Mutex::new([first, second].into_iter().chain(tasks));
    let (give, free) = channel();
    for _ in 0..threads + AHEAD {
        // Cannot fail: the receiver exists.
        let _ = give.send(Buffer::default());
    }
    let (free, (put, full)) = (Mutex::new(free), channel());
    let full = Mutex::new(full);
    thread::scope(|scope| {
        let readers = (0..READERS).filter(|_| {
            let put = put.clone();
            let read = || read_all(source, &tasks, &free, put);
            thread::Builder::new().spawn_scoped(scope, read).is_ok()
        });
        if readers.count() == 0 {
            // The system refused another thread.
            return one_by_one(source, &tasks, &work);
        }
        // When the last sender is dropped, the receivers end.
        drop(put);
        let workers = (0..threads).filter(|_| {
            let give = give.clone();
            let look = || look_at_all(&full, give, &work);
            thread::Builder::new().spawn_scoped(scope, look).is_ok()
        });
        if workers.count() == 0 {
            look_at_all(&full, give, &work);
        }
    });
}

fn one_by_one<T>(
    source: &Source,
    tasks: &Mutex<impl Iterator<Item = (Range<u64>, T)>>,
    work: &impl Fn(T, Option<&[u8]>),
) {
    let next = || locked(tasks).next();
    let mut buffer = Buffer::default();
    while let Some((span, task)) = next() {
        buffer.fill(source, &span);
        work(task, buffer.data());
    }
}

fn read_all<T>(
    source: &Source,
    tasks: &Mutex<impl Iterator<Item = (Range<u64>, T)>>,
    free: &Mutex<Receiver<Buffer>>,
    put: Sender<(T, Buffer)>,
) {
    // A guard in the head of the loop would live during the loop's body.
    let next = || locked(free).recv();
    while let Ok(mut buffer) = next() {
        let Some((span, task)) = locked(tasks).next() else { return };
        buffer.fill(source, &span);
        if put.send((task, buffer)).is_err() {
            return;
        }
    }
}

fn look_at_all<T>(
    full: &Mutex<Receiver<(T, Buffer)>>,
    give: Sender<Buffer>,
    work: &impl Fn(T, Option<&[u8]>),
) {
    let next = || locked(full).recv();
    while let Ok((task, buffer)) = next() {
        work(task, buffer.data());
        // Fails after all readers have ended, when the buffer is no longer needed.
        let _ = give.send(buffer);
    }
}
