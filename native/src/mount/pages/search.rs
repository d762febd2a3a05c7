//! A search for data, or for a hole, in a plain file, in any thread.
//!
//! Like a read in a thread (`requests/reading.rs`), its answer is valid until Python starts to
//! change the file. It holds neither a lock nor the turn, because the pages that it makes the
//! kernel write back arrive as write requests.

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use rustix::fs::{SeekFrom, fstat, seek};
use rustix::io::Errno;

use crate::mount::inodes::data_file::DataFile;
use crate::mount::inodes::watched::{Unwatched, Watched};
use crate::mount::pages::client::Pages;
use crate::mount::pages::message::Question;
use crate::mount::protocol::message::{Answer, Failure};

/// Maximum of holes that are checked for one answer. After that, all the rest counts as data.
const ROUNDS_MAX: usize = 64;

/// The target of a search, at or behind an offset.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sought {
    Data,
    Hole,
}

/// A search that would report a hole.
pub struct Search {
    pub file: Arc<DataFile>,
    pub offset: u64,
    pub sought: Sought,
    pub since: Unwatched,
    pub watched: Arc<Watched>,
    pub inode: NamedInode,
}

/// An inode as the worker finds it in the mount, and the client that asks the worker.
pub struct NamedInode {
    pub inode: u64,
    pub generation: u64,
    /// Relative to the mount; empty if the handle opens it.
    pub path: Vec<u8>,
    /// None before the mount is visible.
    pub pages: Option<Arc<Pages>>,
}

impl NamedInode {
    /// The first offset in a range that may lie in a page that is newer than the file system below.
    pub fn first_newer(&self, range: &Range<u64>) -> Option<u64> {
        let Range { start, end } = *range;
        let question = Question { inode: self.inode, generation: self.generation, start, end };
        match &self.pages {
            Some(pages) => pages.first_newer(&question, &self.path),
            None => Some(start),
        }
    }
}

impl Search {
    /// The answer. Returns None if Python may have started to change the file.
    pub fn answer(&self) -> Option<Answer<u64>> {
        let found = result(
            self.offset,
            self.sought,
            |at, sought| found(self.file.as_fd(), at, sought),
            |range| self.inode.first_newer(range),
        );
        self.watched.stays_unwatched(self.inode.inode, self.since).then_some(found)
    }
}

/// The result of the file system below.
pub struct Found {
    /// None: nothing is found before the end of the file.
    pub offset: Option<u64>,
    pub size: u64,
}

impl Found {
    /// The hole that an answer reports: the range before data, or the first byte of a hole. The end
    /// of a file is no hole.
    pub fn hole(&self, from: u64, sought: Sought) -> Option<Range<u64>> {
        let hole = match (sought, self.offset) {
            (Sought::Data, data) => from..data.unwrap_or(self.size),
            (Sought::Hole, Some(hole)) if hole < self.size => hole..hole + 1,
            (Sought::Hole, _) => return None,
        };
        (hole.start < hole.end).then_some(hole)
    }

    pub fn answer(&self) -> Answer<u64> {
        self.offset.ok_or(Failure(libc::ENXIO))
    }
}

/// Asks the file system below.
pub fn found(file: BorrowedFd<'_>, at: u64, sought: Sought) -> Answer<Found> {
    let to = match sought {
        Sought::Data => SeekFrom::Data(at),
        Sought::Hole => SeekFrom::Hole(at),
    };
    let offset = match seek(file, to) {
        Err(Errno::NXIO) => None,
        result => Some(result?),
    };
    Ok(Found { offset, size: fstat(file)?.st_size as u64 })
}

/// The answer to a search. `below` asks the file system below. `first_newer` returns the first
/// offset in a range that may lie in a newer page.
///
/// A hole is reported only if the file system below reports it again after that check.
fn result(
    offset: u64,
    sought: Sought,
    below: impl Fn(u64, Sought) -> Answer<Found>,
    first_newer: impl Fn(&Range<u64>) -> Option<u64>,
) -> Answer<u64> {
    let mut at = offset;
    let mut clean: Option<Range<u64>> = None;
    for _ in 0..ROUNDS_MAX {
        let found = below(at, sought)?;
        let Some(hole) = found.hole(at, sought) else { return found.answer() };
        if clean.is_some_and(|clean| clean.start <= hole.start && hole.end <= clean.end) {
            return found.answer();
        }
        match (first_newer(&hole), sought) {
            (None, _) => clean = Some(hole),
            (Some(newer), Sought::Data) => return Ok(newer),
            (Some(_), Sought::Hole) => {
                clean = None;
                match below(hole.start, Sought::Data)?.offset {
                    Some(data) => at = data,
                    None => return Ok(found.size),
                }
            }
        }
    }
    match sought {
        Sought::Data => Ok(offset),
        Sought::Hole => Ok(below(offset, sought)?.size),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use super::*;

    const SIZE: u64 = 100;

    /// A file of 100 bytes with data in 10..20 and 40..50, and ranges that become data if asked
    /// for.
    struct Below(RefCell<Vec<Range<u64>>>);

    impl Below {
        fn new() -> Below {
            Below(RefCell::new(vec![10..20, 40..50]))
        }

        fn found(&self, at: u64, sought: Sought) -> Answer<Found> {
            let has = |byte: &u64| {
                self.0.borrow().iter().any(|data| data.contains(byte)) == (sought == Sought::Data)
            };
            let end = (sought == Sought::Hole && at < SIZE).then_some(SIZE);
            Ok(Found { offset: (at..SIZE).find(has).or(end), size: SIZE })
        }
    }

    fn search(
        below: &Below,
        offset: u64,
        sought: Sought,
        first_newer: impl Fn(&Range<u64>) -> Option<u64>,
    ) -> Answer<u64> {
        result(offset, sought, |at, sought| below.found(at, sought), first_newer)
    }

    #[test]
    fn with_nothing_newer_the_answer_is_that_below() {
        let below = Below::new();
        for offset in 0..=SIZE {
            for sought in [Sought::Data, Sought::Hole] {
                let expected = below.found(offset, sought).unwrap().answer();
                assert_eq!(search(&below, offset, sought, |_| None), expected, "{offset}");
            }
        }
    }

    #[test]
    fn data_and_the_end_of_the_file_are_told_without_a_question() {
        let below = Below::new();
        let never = |range: &Range<u64>| panic!("{range:?}");
        assert_eq!(search(&below, 15, Sought::Data, never), Ok(15));
        assert_eq!(search(&below, SIZE, Sought::Data, never), Err(Failure(libc::ENXIO)));
        below.0.borrow_mut().push(0..SIZE);
        assert_eq!(search(&below, 15, Sought::Hole, never), Ok(SIZE));
    }

    #[test]
    fn what_is_written_back_by_a_question_is_found() {
        for (offset, sought, expected) in
            [(0, Sought::Data, 5), (50, Sought::Data, 60), (10, Sought::Hole, 30)]
        {
            let below = Below::new();
            let write_back = |_: &Range<u64>| {
                below.0.borrow_mut().extend([5..6, 20..30, 60..70]);
                None
            };
            assert_eq!(search(&below, offset, sought, write_back), Ok(expected));
        }
    }

    #[test]
    fn a_page_that_may_be_newer_counts_as_data() {
        let below = Below::new();
        let newer = |range: &Range<u64>| (25..28).find(|at| range.contains(at));
        assert_eq!(search(&below, 20, Sought::Data, newer), Ok(25));
        assert_eq!(search(&below, 30, Sought::Data, newer), Ok(40));
        assert_eq!(search(&below, 10, Sought::Hole, newer), Ok(20));
        let all = |range: &Range<u64>| Some(range.start);
        assert_eq!(search(&below, 20, Sought::Data, all), Ok(20));
        assert_eq!(search(&below, 10, Sought::Hole, all), Ok(SIZE));
    }

    #[test]
    fn a_file_that_changes_all_the_time_counts_as_data() {
        let below = Below::new();
        let next = Cell::new(50);
        let grow = |_: &Range<u64>| {
            below.0.borrow_mut().push(next.get()..next.get() + 1);
            next.set(next.get() + 1);
            None
        };
        assert_eq!(search(&below, 45, Sought::Hole, grow), Ok(SIZE));
    }
}
