//! Commits of many files in two calls, one before and one after the sync between them.
//!
//! The steps, their order and what they mean are those of `begin_commit` and `finish_commit` in
//! `dedupd_core/stub/transition.py`. Here is only the ordinary case: a file that turns out to be anything
//! else is left, or put back, as it was. The caller takes it through those, which say what is wrong.

use std::ffi::CString;
use std::io::Result;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::AtomicI64;
use std::sync::atomic::Ordering::Relaxed;

use crate::commit::requests::Request;
use crate::commit::steps::{exchange_attribute, punch_and_settle};
use crate::format::stub::{COMMITTING, DIRECT, STUB_BYTES, Seeds, StubHead};
use crate::system::calls::generation_of;
use crate::system::effects::Effects;
use crate::system::files::{Identity, SECOND_NS, open_beneath, status_of};
use crate::system::leases::lease_exclusively;
use crate::threads::scoped;

/// What a volume's files have in common.
pub struct Volume {
    pub data: RawFd,
    pub attribute: CString,
    pub seeds: Seeds,
    pub block_bytes: i64,
    pub effects: Arc<dyn Effects>,
    /// Whether other processes may open the files: then each is leased. The process that serves the
    /// mount is the only one, and knows what its users have open.
    pub is_shared: bool,
}

/// A file between the two calls: open, leased, with its attribute set. `identity` is as of then,
/// `binding` what ties the attribute to this inode.
pub struct Begun {
    pub file: OwnedFd,
    pub identity: Identity,
    pub binding: u64,
}

/// Files that a thread takes at once: the small files of a directory mostly lie together.
const GROUP: usize = 32;

/// A file and how far its commit is; None before it, where it is left for the caller, and after it,
/// however that ended.
pub type Commit = (Request, Option<Begun>);

/// Begins all of `files`, on up to `threads` threads.
pub fn begin_all(volume: &Volume, files: &mut [Commit], threads: usize) {
    let threads = volume.effects.threads(threads);
    scoped::for_each(files.chunks_mut(GROUP), threads, |group| {
        for (request, begun) in group {
            *begun = begin(volume, request);
        }
    });
}

/// Finishes what has begun of `files`, on up to `threads` threads; says which of them are done, and
/// how many bytes of blocks they have given up together.
pub fn finish_all(volume: &Volume, files: &mut [Commit], threads: usize) -> (Vec<bool>, i64) {
    let freed_bytes = AtomicI64::new(0);
    let threads = volume.effects.threads(threads);
    let mut all = vec![false; files.len()];
    let groups = files.chunks_mut(GROUP).zip(all.chunks_mut(GROUP));
    scoped::for_each(groups, threads, |(group, done)| {
        for ((request, begun), done) in group.iter_mut().zip(done) {
            let end = begun.as_ref().map(|open| finish(volume, request, open));
            if let Some(End::Done(freed)) = end {
                *done = true;
                freed_bytes.fetch_add(freed, Relaxed);
            }
            if end != Some(End::Left) {
                *begun = None;
            }
        }
    });
    (all, freed_bytes.into_inner())
}

/// Takes back what has begun of `files`; says of which of them that failed: these are stubs that have
/// all their blocks, and must not be written to as plain files.
pub fn revert_all(volume: &Volume, files: &mut [Commit]) -> Vec<bool> {
    let revert = |(_, begun): &mut Commit| {
        let taken_back = begun.take().map(|open| {
            let fd = open.file.as_raw_fd();
            volume.effects.remove_attribute(fd, &volume.attribute)
        });
        taken_back.is_some_and(|result| result.is_err())
    };
    files.iter_mut().map(revert).collect()
}

/// None where the file is left for the caller.
fn begin(volume: &Volume, request: &Request) -> Option<Begun> {
    let file = open_beneath(volume.data, &request.path, libc::O_RDWR).ok()?;
    let fd = file.as_raw_fd();
    if volume.is_shared && !lease_exclusively(fd) {
        return None;
    }
    let generation = generation_of(fd).ok()?;
    let binding = volume.seeds.binding(request.expected.inode, generation);
    let value = attribute(request, COMMITTING, binding, volume.seeds.attribute);
    let name = &volume.attribute;
    let effects = &*volume.effects;
    let identity = exchange_attribute(effects, fd, request.expected, name, None, &value).ok()??;
    if (identity.size, identity.mtime_ns) != (request.expected.size, request.expected.mtime_ns) {
        // A writer changed it: setting the attribute moves the ctime only. Where this fails, the
        // caller finds a stub in the middle of a commit: no harm, its blocks are all there.
        let _ = effects.remove_attribute(fd, name);
        return None;
    }
    Some(Begun { file, identity, binding })
}

/// How the second call ends for a file.
#[derive(PartialEq)]
enum End {
    /// It has given up so many bytes of blocks.
    Done(i64),
    /// As `begin` made it: the caller may take it back.
    Left,
    /// Its blocks may be gone. It is a stub from here on, which is settled when it is opened; taken
    /// back, it would be a plain file of zeros.
    HalfWay,
}

fn finish(volume: &Volume, request: &Request, begun: &Begun) -> End {
    let fd = begun.file.as_raw_fd();
    if volume.is_shared && !lease_exclusively(fd) {
        // The sync took longer than a lease keeps others waiting.
        return End::Left;
    }
    match status_of(fd) {
        Ok(status) if Identity::of(&status) == begun.identity => {
            punch(volume, request, begun, &status).map_or(End::HalfWay, End::Done)
        }
        _ => End::Left,
    }
}

fn punch(volume: &Volume, request: &Request, begun: &Begun, status: &libc::stat64) -> Result<i64> {
    let fd = begun.file.as_raw_fd();
    let length =
        (status.st_size + volume.block_bytes - 1) / volume.block_bytes * volume.block_bytes;
    let value = attribute(request, 0, begun.binding, volume.seeds.attribute);
    let atime_ns =
        i128::from(status.st_atime) * i128::from(SECOND_NS) + i128::from(status.st_atime_nsec);
    let (mtime_ns, name) = (request.expected.mtime_ns, &volume.attribute);
    punch_and_settle(&*volume.effects, fd, length, atime_ns, mtime_ns, name, &value)
}

/// The attribute of the stub that the file becomes.
fn attribute(request: &Request, state: u8, binding: u64, seed: u64) -> [u8; STUB_BYTES] {
    let stub = StubHead {
        flags: state | if request.direct { DIRECT } else { 0 },
        recipe: request.recipe,
        digest: request.digest,
        covered: request.expected.size as u64,
        mtime_ns: request.expected.mtime_ns,
        binding,
        local: 0,
    };
    stub.to_bytes(seed)
}
