//! What an optimise job has to do with a directory, sorted out where it is read.

use std::ffi::{CStr, CString};

use crate::format::stub::is_settled_stub;
use crate::system::files::{Entry, Identity};
use crate::tree::stub_sizes::BySuffix;

/// No stub is longer (`LENGTH_BYTES_MAX` in `dedupd/stub.py`).
const LENGTH_MAX: i64 = i64::MAX & !0xFFFF;

/// What the policy asks of a plain file, and what a chunk is.
pub struct Rules {
    /// Of the attribute's checksum.
    pub seed: u64,
    pub size_min: i64,
    /// The latest change that is old enough.
    pub newest_ns: i64,
    /// On average.
    pub chunk_bytes: i64,
}

/// Files that are passed over for one reason.
#[derive(Clone, Copy, Default)]
pub struct Passed {
    pub count: u64,
    pub bytes: i64,
}

impl Passed {
    fn add(&mut self, size: i64) {
        self.count += 1;
        self.bytes += size;
    }
}

/// What a directory holds. `left` are directories, files of several names, and files and stubs that
/// are in any way out of the ordinary.
#[derive(Default)]
pub struct Candidates {
    pub left: Vec<Entry>,
    pub plain: Vec<(Identity, CString)>,
    pub optimised: Passed,
    pub empty: Passed,
    pub small: Passed,
    pub young: Passed,
}

impl Candidates {
    pub fn sort_out(&mut self, entries: &mut Vec<Entry>, rules: &Rules) {
        for entry in entries.drain(..) {
            match entry {
                Entry::File {
                    name,
                    identity,
                    links: 1,
                    attribute: None,
                    is_capable: false,
                    ..
                } if identity.size <= LENGTH_MAX => {
                    self.plain(name, identity, rules);
                }
                Entry::File {
                    identity,
                    links: 1,
                    allocated: 0,
                    attribute: Some(ref value),
                    ..
                } if is_settled_stub(value, identity.size, rules.seed) => {
                    self.optimised.add(identity.size);
                }
                _ => self.left.push(entry),
            }
        }
    }

    fn plain(&mut self, name: CString, identity: Identity, rules: &Rules) {
        let size = identity.size;
        if size == 0 {
            self.empty.add(size);
        } else if size < rules.size_min {
            self.small.add(size);
        } else if identity.mtime_ns.max(identity.ctime_ns) > rules.newest_ns {
            self.young.add(size);
        } else {
            self.plain.push((identity, name));
        }
    }

    /// The plain files in the order of their inodes, which on a disk is near that of their blocks.
    pub fn packed(&mut self, rules: &Rules) -> Vec<Packed> {
        self.plain.sort_unstable_by_key(|(identity, _)| identity.inode);
        let packed = self.plain.chunks(PACKED_MAX).map(|files| Packed::of(files, rules)).collect();
        self.plain = Vec::new();
        packed
    }
}

/// So many files are packed together: nobody has to unpack all of a large directory at once.
const PACKED_MAX: usize = 4096;

/// Plain files of a directory.
#[derive(Default)]
pub struct Packed {
    pub bytes: Vec<u8>,
    pub count: usize,
    /// Of the files together.
    pub size: i64,
    /// How many chunks they have, about.
    pub chunks: BySuffix,
}

impl Packed {
    fn of(files: &[(Identity, CString)], rules: &Rules) -> Packed {
        let mut packed = Packed { count: files.len(), ..Packed::default() };
        for (identity, name) in files {
            packed.size += identity.size;
            packed.chunks.add(name.to_bytes(), 1 + identity.size / rules.chunk_bytes);
            packed.bytes.extend_from_slice(&identity.inode.to_le_bytes());
            for field in [identity.size, identity.mtime_ns, identity.ctime_ns] {
                packed.bytes.extend_from_slice(&field.to_le_bytes());
            }
            packed.bytes.extend_from_slice(name.to_bytes_with_nul());
        }
        packed
    }
}

const IDENTITY_BYTES: usize = 32;

/// The files of [`Packed::bytes`]; None where it is not that.
pub fn unpacked(mut packed: &[u8]) -> Option<Vec<(Identity, &CStr)>> {
    let mut files = Vec::new();
    while !packed.is_empty() {
        let (head, rest) = packed.split_at_checked(IDENTITY_BYTES)?;
        let field = |at: usize| head[at..at + 8].try_into().map(i64::from_le_bytes).ok();
        let identity = Identity {
            inode: field(0)? as u64,
            size: field(8)?,
            mtime_ns: field(16)?,
            ctime_ns: field(24)?,
        };
        let name = CStr::from_bytes_until_nul(rest).ok()?;
        packed = &rest[name.count_bytes() + 1..];
        files.push((identity, name));
    }
    Some(files)
}
