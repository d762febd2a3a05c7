//! Classifies the entries of a directory for an optimize job while they are read.

use std::collections::{HashMap, HashSet};
use std::ffi::{CStr, CString};
use std::sync::Arc;

use crate::admission::ledger::Ledger;
use crate::format::stub::{LENGTH_BYTES_MAX, is_settled_stub};
use crate::format::suffix::suffix;
use crate::system::files::{Entry, Identity};

/// Sums by the suffix of names, after the last dot.
#[derive(Default)]
pub struct BySuffix(pub HashMap<Box<[u8]>, i64>);

impl BySuffix {
    pub fn add(&mut self, name: &[u8], amount: i64) {
        let suffix = suffix(name);
        match self.0.get_mut(suffix) {
            Some(sum) => *sum += amount,
            None => drop(self.0.insert(suffix.into(), amount)),
        }
    }
}

/// The policy's conditions for a file, and the chunk size.
pub struct Rules {
    /// Seed of the attribute's checksum.
    pub seed: u64,
    pub size_min: i64,
    /// The latest change that is old enough.
    pub newest_ns: i64,
    /// Average size of a chunk.
    pub chunk_bytes: i64,
    /// The files that save too little.
    pub ledger: Option<Arc<Ledger>>,
    /// The requested files by inode, if not all are requested.
    pub recalled: Option<HashSet<u64>>,
    /// Whether files of several owners are packed separately.
    pub by_owner: bool,
}

/// Why a file is skipped.
#[derive(Clone, Copy)]
pub enum Reason {
    Optimized,
    Empty,
    Small,
    Judged,
    Full,
    Young,
}

impl Reason {
    pub const ALL: [Reason; 6] = [
        Reason::Optimized,
        Reason::Empty,
        Reason::Small,
        Reason::Judged,
        Reason::Full,
        Reason::Young,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Reason::Optimized => "optimized",
            Reason::Empty => "empty",
            Reason::Small => "small",
            Reason::Judged => "judged",
            Reason::Full => "full",
            Reason::Young => "young",
        }
    }
}

impl Rules {
    /// Returns whether a file was changed too recently.
    pub fn is_young(&self, identity: &Identity) -> bool {
        identity.mtime_ns.max(identity.ctime_ns) > self.newest_ns
    }

    /// Returns whether a file in its current state is known to save too little.
    fn is_judged(&self, identity: &Identity) -> bool {
        match (&self.recalled, &self.ledger) {
            (Some(recalled), _) => !recalled.contains(&identity.inode),
            (None, Some(ledger)) => ledger.passes_over(identity),
            (None, None) => false,
        }
    }

    fn why_judged(&self, identity: &Identity) -> Reason {
        let is_full = |ledger: &Arc<Ledger>| ledger.is_full_of_attributes(identity);
        if self.ledger.as_ref().is_some_and(is_full) { Reason::Full } else { Reason::Judged }
    }

    /// Returns why a plain file is no candidate, if its identity shows this.
    pub fn reason(&self, identity: &Identity) -> Option<Reason> {
        match identity.size {
            0 => Some(Reason::Empty),
            size if size < self.size_min => Some(Reason::Small),
            _ if self.is_judged(identity) => Some(self.why_judged(identity)),
            _ if self.is_young(identity) => Some(Reason::Young),
            _ => None,
        }
    }
}

/// If a plain file has at least this number of bytes in holes, they are not read (`HOLE_BYTES_MIN`
/// in `dedupd_core/system/file_reader.py`).
const HOLE_BYTES_MIN: i64 = 1 << 20;

/// Names of files that may keep their directory plain (`Marker` in `dedupd_core/config/policy.py`).
pub const MARKERS: [&CStr; 2] = [c"CACHEDIR.TAG", c".nodedup"];

/// Files that are skipped for one reason.
#[derive(Clone, Copy, Default)]
pub struct Passed {
    pub count: u64,
    /// For plain files, the bytes in their blocks: holes are not read.
    pub size: i64,
}

/// A plain file of a directory.
struct Plain {
    identity: Identity,
    owner: u32,
    name: CString,
}

/// The content of a directory. `left` are directories, files of several names, and unusual files
/// and stubs.
#[derive(Default)]
pub struct Candidates {
    pub left: Vec<Entry>,
    plain: Vec<Plain>,
    passed: [Passed; Reason::ALL.len()],
    /// Whether each of [`MARKERS`] exists, in their order.
    markers: [bool; MARKERS.len()],
}

impl Candidates {
    pub fn sort_out(&mut self, entries: &mut Vec<Entry>, rules: &Rules) {
        for entry in entries.drain(..) {
            if let Entry::File { name, .. } = &entry {
                for (found, marker) in self.markers.iter_mut().zip(MARKERS) {
                    *found |= name.as_c_str() == marker;
                }
            }
            match entry {
                Entry::File { ref identity, links: 1, allocated, attribute: None, .. }
                    if is_sparse(identity, allocated) && rules.reason(identity).is_none() =>
                {
                    self.left.push(entry);
                }
                Entry::File {
                    name,
                    identity,
                    links: 1,
                    owner,
                    attribute: None,
                    is_capable: false,
                    allocated,
                    ..
                } if identity.size <= LENGTH_BYTES_MAX as i64 => match rules.reason(&identity) {
                    None => {
                        let owner = if rules.by_owner { owner } else { 0 };
                        self.plain.push(Plain { identity, owner, name });
                    }
                    Some(reason) => self.pass(reason, identity.size.min(allocated)),
                },
                Entry::File {
                    identity,
                    links: 1,
                    allocated: 0,
                    attribute: Some(ref value),
                    ..
                } if is_settled_stub(value, identity.size, rules.seed) => {
                    self.pass(Reason::Optimized, identity.size);
                }
                _ => self.left.push(entry),
            }
        }
    }

    fn pass(&mut self, reason: Reason, size: i64) {
        let passed = &mut self.passed[reason as usize];
        passed.count += 1;
        passed.size += size;
    }

    /// The reasons why files were skipped.
    pub fn passed(&self) -> impl Iterator<Item = (Reason, Passed)> {
        Reason::ALL
            .into_iter()
            .map(|reason| (reason, self.passed[reason as usize]))
            .filter(|(_, passed)| passed.count > 0)
    }

    /// The names of files that may keep this directory plain.
    pub fn markers(&self) -> impl Iterator<Item = &'static CStr> {
        MARKERS.into_iter().zip(self.markers).filter(|&(_, found)| found).map(|(name, _)| name)
    }

    /// Returns the plain files in the order of their inodes, which is similar to that of their
    /// blocks on a disk. If owners are packed separately, files are ordered by owner first.
    pub fn packed(&mut self, rules: &Rules) -> Vec<Packed> {
        self.plain.sort_unstable_by_key(|file| (file.owner, file.identity.inode));
        let of_owners = self.plain.chunk_by(|one, other| one.owner == other.owner);
        let parts = of_owners.flat_map(|files| files.chunks(PACKED_MAX));
        let packed = parts.map(|files| Packed::of(files, rules)).collect();
        self.plain = Vec::new();
        packed
    }
}

/// Returns whether the holes of a file are too large to estimate the bytes to read by its length.
fn is_sparse(identity: &Identity, allocated: i64) -> bool {
    identity.size - allocated >= HOLE_BYTES_MIN
}

/// Files that are packed together: a large directory need not be unpacked at once.
const PACKED_MAX: usize = 4096;

/// Plain files of a directory.
#[derive(Default)]
pub struct Packed {
    pub bytes: Vec<u8>,
    pub count: usize,
    /// Owner of all files; 0 if not requested.
    pub owner: u32,
    /// Total size of the files.
    pub size: i64,
    /// The approximate number of their chunks.
    pub chunks: BySuffix,
    /// The number of files.
    pub files: BySuffix,
}

impl Packed {
    fn of(files: &[Plain], rules: &Rules) -> Packed {
        let owner = files.first().map_or(0, |file| file.owner);
        let mut packed = Packed { count: files.len(), owner, ..Packed::default() };
        for Plain { identity, name, .. } in files {
            packed.size += identity.size;
            packed.chunks.add(name.to_bytes(), 1 + identity.size / rules.chunk_bytes);
            packed.files.add(name.to_bytes(), 1);
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

/// Returns the files of [`Packed::bytes`], or None if it is invalid.
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
