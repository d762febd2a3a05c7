//! Commits of many files in two calls, one before and one after the sync between them.
//!
//! The steps, their order and what they mean are those of `begin_commit` and `finish_commit` in
//! `dedupd/stub.py`. Here is only the ordinary case: whatever else a file turns out to be, it is
//! left, or put back, as it was, for the caller to take it through those and learn why.

use std::ffi::CString;
use std::io::Result;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use crate::commit::steps::{exchange_attribute, punch_and_settle};
use crate::format::ids::{DIGEST_BYTES, RecordId};
use crate::format::stub::{COMMITTING, DIRECT, STUB_BYTES, StubHead};
use crate::system::calls::remove_attribute;
use crate::system::files::{Identity, open_beneath, status_of};
use crate::system::leases::lease_exclusively;
use crate::threads::scoped;

/// A plain file, as it was when it was read, and the recipe of its content.
#[derive(Clone)]
pub struct Request {
    pub path: CString,
    pub expected: Identity,
    pub recipe: RecordId,
    pub digest: [u8; DIGEST_BYTES],
    pub direct: bool,
}

/// What a volume's files have in common. `seed` is that of the attribute's checksum.
pub struct Volume {
    pub data: RawFd,
    pub attribute: CString,
    pub seed: u64,
    pub block_bytes: i64,
}

/// A file between the two calls: open, leased, with its attribute set. `identity` is as of then.
pub struct Begun {
    pub file: OwnedFd,
    pub identity: Identity,
}

/// Files that a thread takes at once: the small files of a directory mostly lie together.
const GROUP: usize = 32;

/// A file and how far its commit is; None before it, where it is left for the caller, and behind it,
/// however that ended.
pub type Commit = (Request, Option<Begun>);

/// Begins all of `files`, on up to `threads` threads.
pub fn begin_all(volume: &Volume, files: &mut [Commit], threads: usize) {
    scoped::for_each(files.chunks_mut(GROUP), threads, |group| {
        for (request, begun) in group {
            *begun = begin(volume, request);
        }
    });
}

/// Finishes what has begun of `files`, on up to `threads` threads; says which of them are done.
pub fn finish_all(volume: &Volume, files: &mut [Commit], threads: usize) -> Vec<bool> {
    let mut all = vec![false; files.len()];
    let groups = files.chunks_mut(GROUP).zip(all.chunks_mut(GROUP));
    scoped::for_each(groups, threads, |(group, done)| {
        for ((request, begun), done) in group.iter_mut().zip(done) {
            let end = begun.as_ref().map(|open| finish(volume, request, open));
            *done = end == Some(End::Done);
            if end != Some(End::Left) {
                *begun = None;
            }
        }
    });
    all
}

/// None where the file is left for the caller.
fn begin(volume: &Volume, request: &Request) -> Option<Begun> {
    let file = open_beneath(volume.data, &request.path, libc::O_RDWR).ok()?;
    let fd = file.as_raw_fd();
    if !lease_exclusively(fd) {
        return None;
    }
    let value = attribute(request, COMMITTING, volume.seed);
    let name = &volume.attribute;
    let identity = exchange_attribute(fd, request.expected, name, None, &value).ok()??;
    if (identity.size, identity.mtime_ns) != (request.expected.size, request.expected.mtime_ns) {
        // A writer's: setting the attribute moves the ctime only. If this fails, so does the
        // caller, who finds a stub in the middle of a commit: no harm, its blocks are all there.
        let _ = remove_attribute(fd, name);
        return None;
    }
    Some(Begun { file, identity })
}

/// How the second call ends for a file.
#[derive(PartialEq)]
enum End {
    Done,
    /// As `begin` made it: the caller may take it back.
    Left,
    /// Its blocks may be gone. It is a stub from here on, which whoever opens it settles; taken
    /// back, it would be a plain file of zeros.
    HalfWay,
}

fn finish(volume: &Volume, request: &Request, begun: &Begun) -> End {
    let fd = begun.file.as_raw_fd();
    if !lease_exclusively(fd) {
        // The sync took longer than a lease keeps others waiting.
        return End::Left;
    }
    let Ok(status) = status_of(fd) else { return End::Left };
    // A time that is too far away for 64 bits is the caller's.
    match atime_ns_of(&status) {
        Some(atime_ns) if Identity::of(&status) == begun.identity => {
            let done = punch(volume, request, fd, status.st_size, atime_ns);
            done.map_or(End::HalfWay, |()| End::Done)
        }
        _ => End::Left,
    }
}

fn atime_ns_of(status: &libc::stat64) -> Option<i64> {
    status.st_atime.checked_mul(1_000_000_000)?.checked_add(status.st_atime_nsec)
}

fn punch(volume: &Volume, request: &Request, fd: RawFd, size: i64, atime_ns: i64) -> Result<()> {
    let length = (size + volume.block_bytes - 1) / volume.block_bytes * volume.block_bytes;
    let value = attribute(request, 0, volume.seed);
    let mtime_ns = request.expected.mtime_ns;
    punch_and_settle(fd, length, atime_ns, mtime_ns, &volume.attribute, &value)
}

/// The attribute of the stub that the file becomes.
fn attribute(request: &Request, state: u8, seed: u64) -> [u8; STUB_BYTES] {
    let stub = StubHead {
        flags: state | if request.direct { DIRECT } else { 0 },
        local_count: 0,
        recipe: request.recipe,
        digest: request.digest,
        covered: request.expected.size as u64,
        mtime_ns: request.expected.mtime_ns,
    };
    stub.to_bytes(seed)
}
