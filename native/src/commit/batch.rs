//! Commits of many files in two calls, one before and one after the sync between them.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::AtomicI64;
use std::sync::atomic::Ordering::Relaxed;

use crate::commit::requests::Request;
use crate::commit::steps::{Space, Why};
use crate::system::calls::number_of;
use crate::system::files::{Identity, open_beneath};
use crate::system::leases::lease_exclusively;
use crate::threads::scoped;

/// The tree of a volume.
pub struct Tree {
    pub data: RawFd,
    pub space: Space,
    /// Whether other processes may open the files: then each is leased. With a mount, only its
    /// process opens files, and it knows the open files of its users.
    pub is_shared: bool,
}

/// A file between the two calls: open, leased, with its attribute set. `identity` is as of then.
pub struct OpenCommit {
    pub file: OwnedFd,
    pub identity: Identity,
}

/// Files that a thread takes at once: the small files of a directory mostly lie together.
const GROUP: usize = 32;

/// A file and its commit; None before the commit starts, and after it ends in any way.
pub type Commit = (Request, Option<OpenCommit>);

/// The positions of the files that do not become stubs.
pub type Refusals = Vec<(usize, Why)>;

/// Starts the commits of all `files`, on up to `threads` threads.
pub fn begin_all(tree: &Tree, files: &mut [Commit], threads: usize) -> Refusals {
    each(tree, files, threads, |(request, begun)| {
        *begun = Some(begin(tree, request)?);
        Ok(())
    })
}

/// Finishes the started commits of `files`, on up to `threads` threads. Also returns the total
/// bytes of blocks that these files have freed.
pub fn finish_all(tree: &Tree, files: &mut [Commit], threads: usize) -> (Refusals, i64) {
    let freed_bytes = AtomicI64::new(0);
    let refusals = each(tree, files, threads, |(request, begun)| {
        if let Some(open) = begun.take() {
            freed_bytes.fetch_add(finish(tree, request, &open)?, Relaxed);
        }
        Ok(())
    });
    (refusals, freed_bytes.into_inner())
}

/// Rolls back the started commits of `files`. Returns the number of failures: these files are stubs
/// that have all their blocks, and must not be written to as plain files.
pub fn revert_all(tree: &Tree, files: &mut [Commit]) -> usize {
    let has_failed = |(request, begun): &mut Commit| {
        let open = begun.take();
        open.is_some_and(|open| tree.space.revert(open.file.as_raw_fd(), request).is_err())
    };
    files.iter_mut().map(has_failed).filter(|&failed| failed).count()
}

fn each(
    tree: &Tree,
    files: &mut [Commit],
    threads: usize,
    step: impl Fn(&mut Commit) -> Result<(), Why> + Sync,
) -> Refusals {
    let threads = tree.space.effects.threads(threads);
    let mut all = vec![Ok(()); files.len()];
    let groups = files.chunks_mut(GROUP).zip(all.chunks_mut(GROUP));
    scoped::for_each(groups, threads, |(group, results)| {
        for (file, result) in group.iter_mut().zip(results) {
            *result = step(file);
        }
    });
    let failed = all.into_iter().enumerate();
    failed.filter_map(|(at, result)| result.err().map(|why| (at, why))).collect()
}

fn begin(tree: &Tree, request: &Request) -> Result<OpenCommit, Why> {
    if request.in_parts {
        return Err(Why::Unoffered);
    }
    let file = open_beneath(tree.data, &request.path, libc::O_RDWR)
        .map_err(|error| Why::Unopened(number_of(&error)))?;
    let fd = file.as_raw_fd();
    if tree.is_shared && !lease_exclusively(fd) {
        return Err(Why::InUse);
    }
    let identity = tree.space.begin(fd, request)?;
    Ok(OpenCommit { file, identity })
}

fn finish(tree: &Tree, request: &Request, begun: &OpenCommit) -> Result<i64, Why> {
    let fd = begun.file.as_raw_fd();
    if tree.is_shared && !lease_exclusively(fd) {
        // The sync took longer than a lease can delay other processes.
        tree.space.revert(fd, request)?;
        return Err(Why::Opened);
    }
    tree.space.finish(fd, request, begun.identity)
}
