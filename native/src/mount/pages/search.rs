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
pub enum SeekTarget {
    Data,
    Hole,
}

/// A search that would report a hole.
pub struct Search {
    pub file: Arc<DataFile>,
    pub offset: u64,
    pub sought: SeekTarget,
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
pub struct SearchResult {
    /// None: nothing is found before the end of the file.
    pub offset: Option<u64>,
    pub size: u64,
}

impl SearchResult {
    /// The hole that an answer reports: the range before data, or the first byte of a hole. The end
    /// of a file is no hole.
    pub fn hole(&self, from: u64, sought: SeekTarget) -> Option<Range<u64>> {
        let hole = match (sought, self.offset) {
            (SeekTarget::Data, data) => from..data.unwrap_or(self.size),
            (SeekTarget::Hole, Some(hole)) if hole < self.size => hole..hole + 1,
            (SeekTarget::Hole, _) => return None,
        };
        (hole.start < hole.end).then_some(hole)
    }

    pub fn answer(&self) -> Answer<u64> {
        self.offset.ok_or(Failure(libc::ENXIO))
    }
}

/// Asks the file system below.
pub fn found(file: BorrowedFd<'_>, at: u64, sought: SeekTarget) -> Answer<SearchResult> {
    let to = match sought {
        SeekTarget::Data => SeekFrom::Data(at),
        SeekTarget::Hole => SeekFrom::Hole(at),
    };
    let offset = match seek(file, to) {
        Err(Errno::NXIO) => None,
        result => Some(result?),
    };
    Ok(SearchResult { offset, size: fstat(file)?.st_size as u64 })
}

/// The answer to a search. `below` asks the file system below. `first_newer` returns the first
/// offset in a range that may lie in a newer page.
///
/// A hole is reported only if the file system below reports it again after that check.
fn result(
    offset: u64,
    sought: SeekTarget,
    below: impl Fn(u64, SeekTarget) -> Answer<SearchResult>,
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
            (Some(newer), SeekTarget::Data) => return Ok(newer),
            (Some(_), SeekTarget::Hole) => {
                clean = None;
                match below(hole.start, SeekTarget::Data)?.offset {
                    Some(data) => at = data,
                    None => return Ok(found.size),
                }
            }
        }
    }
    match sought {
        SeekTarget::Data => Ok(offset),
        SeekTarget::Hole => Ok(below(offset, sought)?.size),
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

        fn found(&self, at: u64, sought: SeekTarget) -> Answer<SearchResult> {
            let has = |byte: &u64| {
                self.0.borrow().iter().any(|data| data.contains(byte))
                    == (sought == SeekTarget::Data)
            };
            let end = (sought == SeekTarget::Hole && at < SIZE).then_some(SIZE);
            Ok(SearchResult { offset: (at..SIZE).find(has).or(end), size: SIZE })
        }
    }

    fn search(
        below: &Below,
        offset: u64,
        sought: SeekTarget,
        first_newer: impl Fn(&Range<u64>) -> Option<u64>,
    ) -> Answer<u64> {
        result(offset, sought, |at, sought| below.found(at, sought), first_newer)
    }

    #[test]
    fn with_nothing_newer_the_answer_is_that_below() {
        let below = Below::new();
        for offset in 0..=SIZE {
            for sought in [SeekTarget::Data, SeekTarget::Hole] {
                let expected = below.found(offset, sought).unwrap().answer();
                assert_eq!(search(&below, offset, sought, |_| None), expected, "{offset}");
            }
        }
    }

    #[test]
    fn data_and_the_end_of_the_file_are_told_without_a_question() {
        let below = Below::new();
        let never = |range: &Range<u64>| panic!("{range:?}");
        assert_eq!(search(&below, 15, SeekTarget::Data, never), Ok(15));
        assert_eq!(search(&below, SIZE, SeekTarget::Data, never), Err(Failure(libc::ENXIO)));
        below.0.borrow_mut().push(0..SIZE);
        assert_eq!(search(&below, 15, SeekTarget::Hole, never), Ok(SIZE));
    }

    #[test]
    fn what_is_written_back_by_a_question_is_found() {
        for (offset, sought, expected) in
            [(0, SeekTarget::Data, 5), (50, SeekTarget::Data, 60), (10, SeekTarget::Hole, 30)]
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
        assert_eq!(search(&below, 20, SeekTarget::Data, newer), Ok(25));
        assert_eq!(search(&below, 30, SeekTarget::Data, newer), Ok(40));
        assert_eq!(search(&below, 10, SeekTarget::Hole, newer), Ok(20));
        let all = |range: &Range<u64>| Some(range.start);
        assert_eq!(search(&below, 20, SeekTarget::Data, all), Ok(20));
        assert_eq!(search(&below, 10, SeekTarget::Hole, all), Ok(SIZE));
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
        assert_eq!(search(&below, 45, SeekTarget::Hole, grow), Ok(SIZE));
    }
}
