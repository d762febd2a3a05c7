//! Plain files in an optimize job, without an object per file.

use std::ffi::{CStr, CString};

use crate::format::suffix::suffix;
use crate::ingest::chunks::Segment;
use crate::system::files::Identity;

/// The properties of a file that was read.
#[derive(Clone, Copy, Debug, Default)]
pub struct Read {
    /// Bytes in holes.
    pub hole_bytes: i64,
    /// Bytes in blocks that snapshots or copies below share.
    pub shared_bytes: i64,
}

#[derive(Clone, Debug)]
pub struct PlainFile {
    pub path: CString,
    pub identity: Identity,
    /// Not to be compressed.
    pub as_is: bool,
    /// The position of its content in the buffer that it was read into.
    pub start: usize,
    pub read: Read,
}

impl PlainFile {
    pub fn new(path: CString, identity: Identity, as_is: bool) -> PlainFile {
        PlainFile { path, identity, as_is, start: 0, read: Read::default() }
    }

    /// Returns None if the name has none of the wanted suffixes.
    pub fn named(
        directory: &[u8],
        name: &CStr,
        identity: Identity,
        is_wanted: impl Fn(&[u8]) -> bool,
        is_as_is: impl Fn(&[u8]) -> bool,
    ) -> Option<PlainFile> {
        let suffix = suffix(name.to_bytes());
        if !is_wanted(suffix) {
            return None;
        }
        let path = CString::new([directory, name.to_bytes()].concat()).ok()?;
        Some(PlainFile::new(path, identity, is_as_is(suffix)))
    }

    pub fn size(&self) -> usize {
        usize::try_from(self.identity.size).unwrap_or(usize::MAX)
    }

    /// Returns the bytes outside of holes.
    pub fn read_bytes(&self) -> u64 {
        (self.identity.size - self.read.hole_bytes).max(0) as u64
    }

    /// Returns the bytes of its blocks.
    pub fn freed_bytes(&self, block_bytes: u64) -> u64 {
        let size = (self.size() as u64).next_multiple_of(block_bytes);
        size.saturating_sub((self.read.hole_bytes as u64).next_multiple_of(block_bytes))
    }

    pub fn segment(&self) -> Segment {
        Segment { start: self.start, end: self.start.saturating_add(self.size()), last: true }
    }
}

/// Returns the number of files, from the start of `files` on, that have at most `size_max` bytes
/// and together fit into `room` bytes; at most `count_max` files.
pub fn fitting(files: &[PlainFile], size_max: usize, mut room: usize, count_max: usize) -> usize {
    let fits = |file: &&PlainFile| {
        let size = file.size();
        let fits = size <= size_max.min(room);
        room -= if fits { size } else { 0 };
        fits
    };
    files.iter().take(count_max).take_while(fits).count()
}
