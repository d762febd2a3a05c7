//! Blocks of containers, which threads of their own read before a reader that goes forward asks for
//! them.

use std::cell::RefCell;
use std::fs::File;
use std::ops::Range;
use std::os::fd::{AsRawFd, RawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, JoinHandle};

use crate::system::files::duplicate;
use crate::threads::lock::{locked, woken};
use crate::threads::read_ahead::{Buffer, Source};

/// Large enough for a disk to give what it can with as many at a time as there are readers.
const BLOCK_BYTES: u64 = 1 << 20;
const READERS: usize = 2;
/// Places that are remembered of those where reads ended: so many files may be read in turns.
const PLACES: usize = 4;
/// A reader that passes over no more than this, or goes back no farther, goes forward.
const PASSED_BYTES_MAX: u64 = BLOCK_BYTES;

/// Used by one reader at a time.
pub struct BlocksAhead {
    shared: Arc<Shared>,
    readers: Vec<JoinHandle<()>>,
}

/// Where blocks are from.
struct Container {
    number: u32,
    length: u64,
    // Declared before the file, and so dropped before it.
    source: Source,
    file: File,
}

impl Container {
    fn open(number: u32, fd: RawFd) -> Option<Container> {
        let file = File::from(duplicate(fd).ok()?);
        let length = file.metadata().ok()?.len();
        Some(Container { number, length, source: Source::new(file.as_raw_fd()), file })
    }

    fn read(&self, span: &Range<u64>, buffer: &mut Buffer) {
        if !buffer.fill_cached(&self.file, span) {
            buffer.fill(&self.source, span);
        }
    }

    fn read_block(&self, number: u64, buffer: &mut Buffer) {
        let start = number * BLOCK_BYTES;
        self.read(&(start..(start + BLOCK_BYTES).min(self.length)), buffer);
    }
}

enum Content {
    Asked,
    Reading,
    /// What was read, or could not be.
    There(Arc<Buffer>),
}

struct Block {
    container: Arc<Container>,
    number: u64,
    content: Content,
}

struct ReadPosition {
    container: Arc<Container>,
    end: u64,
}

#[derive(Default)]
struct State {
    /// Those that were asked for last are last, in the order in which they are read.
    blocks: Vec<Block>,
    free: Vec<Buffer>,
    /// The last places where reads ended.
    places: Vec<ReadPosition>,
    is_over: bool,
}

struct Shared {
    blocks_max: usize,
    state: Mutex<State>,
    changed: Condvar,
}

impl BlocksAhead {
    /// Keeps up to `bytes_max` in memory.
    pub fn new(bytes_max: usize) -> BlocksAhead {
        let blocks_max = bytes_max / BLOCK_BYTES as usize;
        let (state, changed) = (Mutex::default(), Condvar::new());
        let shared = Arc::new(Shared { blocks_max, state, changed });
        let readers = (0..READERS).filter_map(|_| {
            let shared = Arc::clone(&shared);
            // Where the system refuses a thread, the other one reads, or nothing is read ahead.
            thread::Builder::new().spawn(move || shared.read_all()).ok()
        });
        BlocksAhead { readers: readers.collect(), shared }
    }

    /// Container `number`, open as `fd`, with the blocks around `span`, after which those that
    /// follow are read. Without blocks where the reader does not go forward, the span is too long,
    /// or `is_dense` says that little of it is needed. None where there is no descriptor left.
    pub fn get(&self, number: u32, fd: RawFd, span: &Range<u64>, is_dense: bool) -> Option<Blocks> {
        self.shared.get(number, fd, span, is_dense && !self.readers.is_empty())
    }
}

impl Drop for BlocksAhead {
    fn drop(&mut self) {
        locked(&self.shared.state).is_over = true;
        self.shared.changed.notify_all();
        for reader in self.readers.drain(..) {
            // It is over, whichever way.
            let _ = reader.join();
        }
    }
}

impl Shared {
    fn get(&self, number: u32, fd: RawFd, span: &Range<u64>, is_dense: bool) -> Option<Blocks> {
        let (first, end) = (span.start / BLOCK_BYTES, span.end.div_ceil(BLOCK_BYTES));
        let mut state = locked(&self.state);
        let (container, goes_forward) = state.pass(number, fd, span)?;
        let last = container.length.div_ceil(BLOCK_BYTES);
        let ahead = (self.blocks_max as u64).checked_sub(end - first + READERS as u64);
        let ahead = ahead.filter(|_| goes_forward && is_dense && end <= last);
        let Some(ahead) = ahead else {
            return Some(Blocks { container, start: 0, buffers: Vec::new() });
        };
        state.ask(&container, first..(end + ahead).min(last), self.blocks_max);
        self.changed.notify_all();
        loop {
            if let Some(buffers) = state.there(number, first..end) {
                return Some(Blocks { container, start: first * BLOCK_BYTES, buffers });
            }
            state = woken(&self.changed, state);
        }
    }

    fn read_all(&self) {
        let mut state = locked(&self.state);
        while !state.is_over {
            let Some(block) = state.blocks.iter_mut().find(|one| one.is_asked()) else {
                state = woken(&self.changed, state);
                continue;
            };
            block.content = Content::Reading;
            let (container, number) = (Arc::clone(&block.container), block.number);
            let mut buffer = state.free.pop().unwrap_or_default();
            drop(state);
            // Readers wait for the block, whatever happens here; without bytes they read themselves.
            if catch_unwind(AssertUnwindSafe(|| container.read_block(number, &mut buffer))).is_err()
            {
                buffer = Buffer::default();
            }
            state = locked(&self.state);
            // It is there: what is being read is not let go of.
            if let Some(block) = state.block(container.number, number) {
                block.content = Content::There(Arc::new(buffer));
            }
            self.changed.notify_all();
        }
    }
}

impl Block {
    fn is_asked(&self) -> bool {
        matches!(self.content, Content::Asked)
    }

    fn is_of(&self, container: u32, numbers: &Range<u64>) -> bool {
        self.container.number == container && numbers.contains(&self.number)
    }
}

impl State {
    /// Notes that `span` is read; the container, and whether the reader goes on about where it
    /// ended before, or has a long way to go.
    fn pass(
        &mut self,
        number: u32,
        fd: RawFd,
        span: &Range<u64>,
    ) -> Option<(Arc<Container>, bool)> {
        let is_here = |place: &ReadPosition| place.container.number == number;
        let known = self.places.iter().find(|place| is_here(place));
        let container = match known {
            Some(place) => Arc::clone(&place.container),
            None => Arc::new(Container::open(number, fd)?),
        };
        let is_near = |place: &ReadPosition| {
            is_here(place) && place.end.abs_diff(span.start) <= PASSED_BYTES_MAX
        };
        let found = self.places.iter().position(is_near);
        if let Some(at) = found {
            self.places.remove(at);
        } else if self.places.len() == PLACES {
            self.places.remove(0);
        }
        self.places.push(ReadPosition { container: Arc::clone(&container), end: span.end });
        Some((container, found.is_some() || span.end - span.start >= BLOCK_BYTES))
    }

    fn block(&mut self, container: u32, number: u64) -> Option<&mut Block> {
        self.blocks.iter_mut().find(|one| one.is_of(container, &(number..number + 1)))
    }

    /// Have blocks read that are not there, and let go of others where there are too many.
    fn ask(&mut self, container: &Arc<Container>, numbers: Range<u64>, blocks_max: usize) {
        let all = std::mem::take(&mut self.blocks);
        let (mut known, others): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|one| one.is_of(container.number, &numbers));
        let wanted = (numbers.end - numbers.start) as usize;
        let mut excess = (others.len() + wanted).saturating_sub(blocks_max);
        for block in others {
            let goes = block.is_asked() || excess > 0;
            match block.content {
                Content::There(buffer) if goes => self.free.extend(Arc::into_inner(buffer)),
                Content::Asked => {}
                _ => {
                    self.blocks.push(block);
                    continue;
                }
            }
            excess = excess.saturating_sub(1);
        }
        for number in numbers {
            let found = known.iter().position(|one| one.number == number);
            self.blocks.push(match found {
                Some(at) => known.swap_remove(at),
                None => Block { container: Arc::clone(container), number, content: Content::Asked },
            });
        }
    }

    /// The buffers of blocks, once all of them are there.
    fn there(&mut self, container: u32, mut numbers: Range<u64>) -> Option<Vec<Arc<Buffer>>> {
        numbers.try_fold(Vec::new(), |mut buffers, number| {
            match &self.block(container, number)?.content {
                Content::There(buffer) => buffers.push(Arc::clone(buffer)),
                _ => return None,
            }
            Some(buffers)
        })
    }
}

/// A container, and blocks of it that follow each other, or none.
pub struct Blocks {
    container: Arc<Container>,
    start: u64,
    buffers: Vec<Arc<Buffer>>,
}

thread_local! {
    static ALONE: RefCell<Buffer> = RefCell::default();
}

impl Blocks {
    /// The container that they are of.
    pub fn number(&self) -> u32 {
        self.container.number
    }

    /// Fills two buffers with what lies at `offset`, one after the other, from the blocks or from
    /// the container; false where it cannot be read.
    pub fn read(&self, offset: u64, first: &mut [u8], second: &mut [u8]) -> bool {
        let end = offset.checked_add((first.len() + second.len()) as u64);
        let Some(end) = end.filter(|&end| end <= self.container.length) else { return false };
        if self.copy(offset, first) && self.copy(offset + first.len() as u64, second) {
            return true;
        }
        ALONE.with_borrow_mut(|buffer| {
            self.container.read(&(offset..end), buffer);
            let Some((head, rest)) = buffer.data().map(|data| data.split_at(first.len())) else {
                return false;
            };
            first.copy_from_slice(head);
            second.copy_from_slice(rest);
            true
        })
    }

    fn copy(&self, offset: u64, mut out: &mut [u8]) -> bool {
        let Some(mut at) = offset.checked_sub(self.start) else { return false };
        while !out.is_empty() {
            let Some(data) = self.after(at) else { return false };
            let (part, left) = out.split_at_mut(data.len().min(out.len()));
            part.copy_from_slice(&data[..part.len()]);
            at += part.len() as u64;
            out = left;
        }
        true
    }

    /// What a block has from `at` on, counted from the first one's start.
    fn after(&self, at: u64) -> Option<&[u8]> {
        let data = self.buffers.get((at / BLOCK_BYTES) as usize)?.data()?;
        data.get((at % BLOCK_BYTES) as usize..).filter(|rest| !rest.is_empty())
    }
}
