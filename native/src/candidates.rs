//! What an optimise job has to do with a directory, sorted out where it is read.

use std::collections::HashMap;
use std::ffi::{CStr, CString};

use crate::commits::is_settled_stub;
use crate::files::{Entry, Identity};
use crate::sizes::suffix;

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

/// What a directory holds. `left` are directories, files of several names, and stubs that are in
/// any way out of the ordinary.
#[derive(Default)]
pub struct Candidates {
    pub left: Vec<Entry>,
    pub plain: Vec<(Identity, CString)>,
    /// How many chunks there are about in plain files, by what follows the last dot of their names.
    pub chunks: HashMap<Box<[u8]>, i64>,
    pub optimised: Passed,
    pub empty: Passed,
    pub small: Passed,
    pub young: Passed,
}

impl Candidates {
    pub fn sort_out(&mut self, entries: &mut Vec<Entry>, rules: &Rules) {
        for entry in entries.drain(..) {
            match entry {
                Entry::File { name, identity, links: 1, attribute: None, .. } => {
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
            let (suffix, chunks) = (suffix(name.to_bytes()), 1 + size / rules.chunk_bytes);
            match self.chunks.get_mut(suffix) {
                Some(sum) => *sum += chunks,
                None => drop(self.chunks.insert(suffix.into(), chunks)),
            }
            self.plain.push((identity, name));
        }
    }

    /// The plain files in the order of their inodes, which on a disk is near that of their blocks.
    pub fn packed(&mut self) -> Vec<u8> {
        self.plain.sort_unstable_by_key(|(identity, _)| identity.inode);
        let mut packed = Vec::new();
        for (identity, name) in &self.plain {
            packed.extend_from_slice(&identity.inode.to_le_bytes());
            for field in [identity.size, identity.mtime_ns, identity.ctime_ns] {
                packed.extend_from_slice(&field.to_le_bytes());
            }
            packed.extend_from_slice(name.to_bytes_with_nul());
        }
        packed
    }
}

const IDENTITY_BYTES: usize = 32;

/// What [`Candidates::packed`] made; None where it is not that.
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
