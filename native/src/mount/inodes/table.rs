//! The table of the inodes that the kernel knows.
//!
//! Inodes have the numbers of the file system below. The table keeps no names. An inode takes its
//! handle, a count and room for two descriptors: the first only names the inode (`O_PATH`), the
//! second is for its content. They are open while the inode is in use, and the longest unused are
//! closed if too many are open.
//!
//! The kernel sends no request for an open, so the mount does not learn when the last user of a
//! file closes it. Therefore an inode that loses its last name is *pinned*. Its descriptor stays
//! open until the kernel forgets the inode, which happens after the last user has closed it.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex};

use rustix::fs::{Mode, OFlags, fstat, fstatfs, openat};

use crate::mount::inodes::change_times::ChangeTimes;
use crate::mount::inodes::changes::Changes;
use crate::mount::inodes::data_file::DataFile;
use crate::mount::inodes::generations::Generations;
use crate::mount::inodes::given::RecentDescriptors;
use crate::mount::inodes::handle::Handle;
use crate::mount::inodes::lent::LentDescriptors;
use crate::mount::inodes::pins::Pins;
use crate::mount::inodes::shard::{Node, Shard};
use crate::mount::inodes::watched::Watched;
use crate::mount::protocol::abi::ROOT;
use crate::mount::protocol::message::{Answer, Failure};
use crate::system::calls::name_to_handle;
use crate::threads::lock::locked;

/// Maximum of parts of the table, each with its lock: several times the threads that use it.
const SHARDS_MAX: usize = 32;
/// Minimum of descriptors that a part keeps. An operation uses a few at a time.
const DESCRIPTORS_MIN: usize = 16;

/// Maximum that is freed immediately when a file without a name is closed. A separate thread frees
/// more, so that no request waits. 4 MiB are at most 1,024 extents of one block, and take 4 ms.
pub const FREED_BYTES_MAX: u64 = 4 << 20;

/// The unit of `stx_blocks` and `st_blocks`.
pub const STATUS_BLOCK_BYTES: u64 = 512;

/// The number that ext4 reports as its type (`EXT4_SUPER_MAGIC`).
const EXT4: u64 = 0xef53;

pub const PATH_FLAGS: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// The inodes that the kernel may name by number.
pub struct Inodes {
    root: Arc<OwnedFd>,
    root_inode: u64,
    pub device: u64,
    /// True if inodes can be opened by their handles, so that none has to stay open.
    pub by_handle: bool,
    /// True if a copy of a file may share its extents.
    pub shares_extents: bool,
    /// Maximum of descriptors of a shard, without pinned ones.
    descriptors_max: usize,
    generations: Generations,
    shards: Vec<Mutex<Shard>>,
    pins: Mutex<Pins>,
    /// Nodes whose `data` is open for writing, and others.
    written: Mutex<Vec<u64>>,
    pub watched: Arc<Watched>,
    pub lent: LentDescriptors,
    pub changes: Arc<Changes>,
    pub change_times: ChangeTimes,
    /// The inodes whose attributes the kernel had to forget.
    pub forgotten: Changes,
    pub given: RecentDescriptors,
}

impl Inodes {
    /// `descriptors_max`: maximum of descriptors at a time. `pins_max`: maximum of additional
    /// descriptors for inodes without a name.
    pub fn new(
        root: OwnedFd,
        descriptors_max: usize,
        pins_max: usize,
        generations: Generations,
    ) -> Answer<Inodes> {
        let parts = (descriptors_max / DESCRIPTORS_MIN).clamp(1, SHARDS_MAX);
        let status = fstat(&root)?;
        let handle = name_to_handle(root.as_raw_fd()).unwrap_or_default();
        let shares_extents = fstatfs(&root)?.f_type as u64 != EXT4;
        let by_handle = Handle::new(&handle).open(&root, PATH_FLAGS).is_ok();
        Ok(Inodes {
            root: Arc::new(root),
            root_inode: status.st_ino,
            device: status.st_dev,
            by_handle,
            shares_extents,
            descriptors_max: (descriptors_max / parts).max(1),
            generations,
            written: Mutex::default(),
            pins: Mutex::new(Pins::new(pins_max)),
            watched: Arc::default(),
            lent: LentDescriptors::default(),
            changes: Arc::default(),
            change_times: ChangeTimes::default(),
            forgotten: Changes::default(),
            given: RecentDescriptors::default(),
            shards: (0..parts).map(|_| Mutex::default()).collect(),
        })
    }

    pub fn root(&self) -> &OwnedFd {
        &self.root
    }

    /// Number of known inodes.
    pub fn count(&self) -> usize {
        self.shards.iter().map(|shard| locked(shard).nodes().len()).sum()
    }

    /// The number that the kernel uses for an inode.
    pub fn number(&self, inode: u64) -> u64 {
        if inode == self.root_inode { ROOT } else { inode }
    }

    fn shard(&self, inode: u64) -> &Mutex<Shard> {
        // Adjacent inodes are used together, by several threads.
        &self.shards[inode as usize % self.shards.len()]
    }

    /// Counts one more lookup of an inode that `handle` opens again. Returns its generation, which
    /// distinguishes it from an earlier inode of the same number. `path` names it. It is kept while
    /// there is room, or while the inode is known if handles cannot open inodes.
    pub fn remember(&self, inode: u64, handle: Handle, path: Option<OwnedFd>) -> u64 {
        let generation = self.generations.of(&handle);
        let has_path = path.is_some();
        let mut shard = locked(self.shard(inode));
        shard.add(inode, || Node::new(handle.clone()));
        shard.change(inode, |node| {
            node.lookups += 1;
            if node.handle != handle {
                // The number belongs to a new file, and the kernel has not forgotten the old one.
                node.handle = handle;
                self.give_back(node);
                self.change_times.drop(inode);
                (node.data, node.path, node.is_pinned) = (None, None, false);
            }
            if has_path && node.path.is_none() {
                (node.path, node.is_pinned) = (path.map(Arc::new), !self.by_handle);
            }
        });
        if has_path && self.by_handle {
            shard.opened(inode, self.descriptors_max);
        }
        generation
    }

    /// Subtracts lookups that the kernel forgets.
    pub fn forget(&self, inode: u64, lookups: u64) {
        let mut shard = locked(self.shard(inode));
        let left = shard.change(inode, |node| {
            node.lookups = node.lookups.saturating_sub(lookups);
            node.lookups
        });
        if left != Some(0) {
            return;
        }
        let Some(mut node) = shard.remove(inode) else { return };
        self.give_back(&mut node);
        self.change_times.drop(inode);
        drop(shard);
        close(node);
    }

    /// Inodes that a descriptor keeps, including all known ones without a name.
    pub fn pinned(&self) -> Vec<u64> {
        let shards = self.shards.iter().map(locked);
        shards
            .flat_map(|shard| {
                let pinned = shard.nodes().iter().filter(|(_, node)| node.is_pinned);
                pinned.map(|(inode, _)| *inode).collect::<Vec<_>>()
            })
            .collect()
    }

    /// Number of inodes with a descriptor that names them.
    pub fn descriptors(&self) -> usize {
        let open =
            |shard: &Shard| shard.nodes().values().filter(|node| node.path.is_some()).count();
        self.shards.iter().map(|shard| open(&locked(shard))).sum()
    }

    /// The generation that the kernel got. Returns None if the inode is unknown.
    pub fn generation(&self, inode: u64) -> Option<u64> {
        let shard = locked(self.shard(inode));
        shard.nodes().get(&inode).map(|node| self.generations.of(&node.handle))
    }

    /// Returns whether the kernel may still refer to an inode.
    pub fn knows(&self, inode: u64) -> bool {
        locked(self.shard(inode)).nodes().contains_key(&inode)
    }

    /// Returns whether a user may remove another last name of an inode that the kernel knows. Users
    /// who keep such inodes open share the descriptors.
    pub fn may_pin(&self, uid: u32) -> bool {
        locked(&self.pins).may_have(uid)
    }

    /// Keeps `path`, open on an inode, until the inode is forgotten: `uid` removes its last name.
    pub fn pin(&self, inode: u64, path: OwnedFd, uid: u32) {
        locked(self.shard(inode)).change(inode, |node| {
            if !node.is_pinned {
                node.is_pinned = true;
                node.pinned_by = Some(uid);
                node.path = Some(Arc::new(path));
                locked(&self.pins).take(uid);
            }
        });
    }

    /// Reverses [`Inodes::pin`], because the name was not removed.
    pub fn unpin(&self, inode: u64) {
        if !self.by_handle {
            return;
        }
        let mut shard = locked(self.shard(inode));
        shard.change(inode, |node| {
            node.is_pinned = false;
            self.give_back(node);
        });
        shard.opened(inode, self.descriptors_max);
    }

    fn give_back(&self, node: &mut Node) {
        if let Some(uid) = node.pinned_by.take() {
            locked(&self.pins).give_back(uid);
        }
    }

    /// A descriptor that only names an inode. Fails with ESTALE if the inode is unknown or deleted.
    pub fn path(&self, inode: u64) -> Answer<Arc<OwnedFd>> {
        if inode == ROOT {
            return Ok(Arc::clone(&self.root));
        }
        let known = locked(self.shard(inode)).change(inode, |node| {
            node.is_used |= node.path.is_some();
            node.path.clone().ok_or_else(|| node.handle.clone())
        });
        let handle = match known.ok_or(Failure(libc::ESTALE))? {
            Ok(path) => return Ok(path),
            Err(handle) => handle,
        };
        let opened = match handle.open(&self.root, PATH_FLAGS) {
            Ok(opened) => Arc::new(opened),
            // Its last name was removed after the check; it was pinned before that.
            Err(gone) => {
                let shard = locked(self.shard(inode));
                return shard.nodes().get(&inode).and_then(|node| node.path.clone()).ok_or(gone);
            }
        };
        let mut shard = locked(self.shard(inode));
        let is_kept = shard.change(inode, |node| {
            let is_kept = node.handle == handle && node.path.is_none();
            if is_kept {
                node.path = Some(Arc::clone(&opened));
            }
            is_kept
        });
        if is_kept == Some(true) {
            shard.opened(inode, self.descriptors_max);
        }
        Ok(opened)
    }

    /// Makes Python receive all requests for an inode until [`Inodes::unwatch`] is called as often.
    pub fn watch(&self, inode: u64) {
        self.watched.add(inode);
        self.close_data(inode);
    }

    pub fn unwatch(&self, inode: u64) {
        self.watched.remove(inode);
    }

    /// Closes files that are open for writing and were not written to since the last call, because
    /// jobs treat such files as in use.
    pub fn close_idle(&self) {
        self.close_written(false);
    }

    /// Closes all files that are open for writing.
    pub fn let_go(&self) {
        self.close_written(true);
    }

    fn close_written(&self, all: bool) {
        let inodes = std::mem::take(&mut *locked(&self.written));
        for inode in inodes {
            let closed = locked(self.shard(inode)).change(inode, |node| {
                if !node.data.as_ref().is_some_and(|data| data.is_writable) {
                    return None;
                }
                if std::mem::take(&mut node.is_written) && !all {
                    locked(&self.written).push(inode);
                    return None;
                }
                node.data.take()
            });
            drop(closed);
        }
    }

    /// Closes the content of an inode when no thread uses it.
    pub fn close_data(&self, inode: u64) {
        let data = locked(self.shard(inode)).change(inode, |node| node.data.take());
        drop(data);
    }

    /// The content of an inode, if it is open.
    pub fn opened(&self, inode: u64) -> Option<Arc<DataFile>> {
        locked(self.shard(inode)).change(inode, |node| {
            node.is_used |= node.data.is_some();
            node.data.clone()
        })?
    }

    /// The content of an inode, open for reading, and for writing if `write` is set.
    pub fn data(&self, inode: u64, write: bool) -> Answer<Arc<DataFile>> {
        if inode == ROOT {
            return Ok(Arc::new(DataFile {
                fd: self.open(ROOT, OFlags::RDONLY)?,
                is_writable: false,
            }));
        }
        let open = locked(self.shard(inode)).change(inode, |node| {
            let data = node.data.as_ref().filter(|data| data.is_writable || !write)?;
            node.is_used = true;
            node.is_written |= write;
            Some(Arc::clone(data))
        });
        if let Some(data) = open.flatten() {
            return Ok(data);
        }
        let flags = if write { OFlags::RDWR } else { OFlags::RDONLY };
        let data = DataFile { fd: self.open(inode, flags)?, is_writable: write };
        Ok(self.keep_data(inode, data))
    }

    /// Keeps an open file for later requests.
    pub fn keep_data(&self, inode: u64, data: DataFile) -> Arc<DataFile> {
        let data = Arc::new(data);
        let mut shard = locked(self.shard(inode));
        let is_kept = shard.change(inode, |node| {
            let is_kept = node.data.as_ref().is_none_or(|old| !old.is_writable);
            if is_kept {
                node.data = Some(Arc::clone(&data));
            }
            if is_kept && data.is_writable {
                node.is_written = true;
                locked(&self.written).push(inode);
            }
            is_kept
        });
        if is_kept == Some(true) {
            shard.opened(inode, self.descriptors_max);
        }
        data
    }

    /// Opens the content of an inode for the caller alone.
    pub fn open(&self, inode: u64, flags: OFlags) -> Answer<OwnedFd> {
        let flags = flags | OFlags::CLOEXEC | OFlags::NOCTTY;
        let handle = match locked(self.shard(inode)).nodes().get(&inode) {
            Some(node) if !node.is_pinned => Some(node.handle.clone()),
            _ => None,
        };
        match handle {
            Some(handle) => handle.open(&self.root, flags),
            None => {
                let path = self.path(inode)?;
                let link = proc_path(path.as_raw_fd());
                Ok(openat(rustix::fs::CWD, link.as_str(), flags, Mode::empty())?)
            }
        }
    }
}

/// Closes the descriptors of an inode, in a thread if the end of the file takes long.
fn close(node: Node) {
    let is_slow = node.is_pinned
        && node.path.as_ref().is_some_and(|path| {
            fstat(path).is_ok_and(|status| {
                status.st_nlink == 0
                    && status.st_blocks as u64 * STATUS_BLOCK_BYTES > FREED_BYTES_MAX
            })
        });
    if is_slow {
        // If no thread starts, the dropped closure closes it here.
        let _ = std::thread::Builder::new().name("closes".into()).spawn(move || drop(node));
    }
}

/// A path to the inode itself, for calls that accept no descriptor.
pub fn proc_path(fd: i32) -> String {
    format!("/proc/self/fd/{fd}")
}
