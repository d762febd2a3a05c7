//! Checks whether deleted content exists at its old path.

use std::ffi::{CStr, CString};
use std::os::fd::{AsRawFd, RawFd};

use rustix::fs::{AtFlags, StatxFlags, getxattr, statx};

use crate::format::deletion::{Row, head};
use crate::format::stub::{DIRECT, STUB_BYTES, StubHead, stub_head};
use crate::system::calls::generation_of;
use crate::system::files::open_beneath;

/// The tree of a volume: its directory, and the attribute of its stubs.
#[derive(Clone, Copy)]
pub struct StubTree<'a> {
    pub data: RawFd,
    pub attribute: &'a CStr,
    /// Seed of the attribute's checksum.
    pub seed: u64,
}

impl StubTree<'_> {
    /// Returns whether the content of a deletion is missing at its path. It may exist: a deletion
    /// is noted before it happens, and the content may have been restored.
    pub fn lacks(self, row: &Row) -> bool {
        if *row.path == *format!("#{}", head::INODE.u64(&row.fields)).as_bytes() {
            return true; // no path was known
        }
        let there = CString::new(&*row.path).ok().and_then(|path| self.found(row, &path));
        !there.is_some_and(|there| match there {
            SameOrStub::Same => true,
            SameOrStub::Stub(stub) => {
                stub.flags & !DIRECT == 0
                    && stub.local == 0
                    && stub.recipe.0 == head::RECIPE.u64(&row.fields)
                    && stub.covered == head::COVERED.u64(&row.fields)
            }
        })
    }

    fn found(self, row: &Row, path: &CStr) -> Option<SameOrStub> {
        let file = open_beneath(self.data, path, libc::O_PATH).ok()?;
        let status = statx(&file, c"", AtFlags::EMPTY_PATH, StatxFlags::INO).ok()?;
        // A restored or new file may have received the inode number of the deleted file.
        let is_same = status.stx_ino == head::INODE.u64(&row.fields)
            && generation_of(file.as_raw_fd()).ok()? == head::GENERATION.u32(&row.fields);
        if is_same && row.cause.takes_the_whole_file() {
            return Some(SameOrStub::Same);
        }
        let mut value = [0; STUB_BYTES + 1];
        let link = format!("/proc/self/fd/{}", file.as_raw_fd());
        let length = getxattr(link, self.attribute, &mut value[..]).ok()?;
        stub_head(&value[..length], self.seed).map(SameOrStub::Stub)
    }
}

enum SameOrStub {
    /// The same file.
    Same,
    Stub(StubHead),
}
