//! The table of the inodes that the kernel knows.
//!
//! Inodes have the numbers of the file system below. Names are not kept. An inode costs its handle,
//! a count and room for two descriptors, which are open while it is in use: one that only names it
//! (`O_PATH`), one for its content. Their number is bounded; the longest unused are closed.
//!
//! No opening comes as a message, so nobody tells when the last user of a file closes it. An inode
//! that loses its last name is therefore *pinned*: its descriptor stays open until the kernel forgets
//! the inode, which it does when the last user has gone.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex};

use rustix::fs::{Mode, OFlags, fstat, fstatfs, openat};

use crate::mount::inodes::change_times::ChangeTimes;
use crate::mount::inodes::changes::Changes;
use crate::mount::inodes::data_file::DataFile;
use crate::mount::inodes::generations::Generations;
use crate::mount::inodes::given::Given;
use crate::mount::inodes::handle::Handle;
use crate::mount::inodes::lent::Lent;
use crate::mount::inodes::pins::Pins;
use crate::mount::inodes::shard::{Node, Shard};
use crate::mount::inodes::watched::Watched;
use crate::mount::protocol::abi::ROOT;
use crate::mount::protocol::message::{Answer, Failure};
use crate::system::calls::name_to_handle;
use crate::threads::lock::locked;

/// Parts of the table at most, each with a lock of its own: a few times the threads that use it.
const SHARDS_MAX: usize = 32;
/// A part keeps at least so many descriptors: an operation uses a few at a time.
const DESCRIPTORS_MIN: usize = 16;

/// What is freed at once when a file without a name is closed; more takes a thread of its own, so
/// that nobody has to wait: 4 MiB are 1,024 extents of one block at most, in 4 ms.
pub const FREED_BYTES_MAX: u64 = 4 << 20;

/// The unit of `stx_blocks` and `st_blocks`.
pub const STATUS_BLOCK_BYTES: u64 = 512;

/// The number by which ext4 says what it is (`EXT4_SUPER_MAGIC`).
const EXT4: u64 = 0xef53;

pub const PATH_FLAGS: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// The inodes that the kernel may ask for by number.
pub struct Inodes {
    root: Arc<OwnedFd>,
    root_inode: u64,
    pub device: u64,
    /// Whether inodes can be opened by their handles, so that none has to stay open.
    pub by_handle: bool,
    /// Whether a copy of a file may share its extents.
    pub shares_extents: bool,
    /// Most descriptors of a shard, those that are pinned apart.
    descriptors_max: usize,
    generations: Generations,
    shards: Vec<Mutex<Shard>>,
    pins: Mutex<Pins>,
    /// Nodes with `data` that is open for writing, and others.
    written: Mutex<Vec<u64>>,
    pub watched: Arc<Watched>,
    pub lent: Lent,
    pub changes: Arc<Changes>,
    pub change_times: ChangeTimes,
    /// Of which of them the kernel was told to forget the attributes.
    pub forgotten: Changes,
    pub given: Given,
}

impl Inodes {
    /// `descriptors_max`: most descriptors at a time, those of inodes without a name apart, of which
    /// `pins_max` may be held.
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
            lent: Lent::default(),
            changes: Arc::default(),
            change_times: ChangeTimes::default(),
            forgotten: Changes::default(),
            given: Given::default(),
            shards: (0..parts).map(|_| Mutex::default()).collect(),
        })
    }

    pub fn root(&self) -> &OwnedFd {
        &self.root
    }

    /// How many inodes are known.
    pub fn count(&self) -> usize {
        self.shards.iter().map(|shard| locked(shard).nodes().len()).sum()
    }

    /// The number by which the kernel knows an inode.
    pub fn number(&self, inode: u64) -> u64 {
        if inode == self.root_inode { ROOT } else { inode }
    }

    fn shard(&self, inode: u64) -> &Mutex<Shard> {
        // Neighbours in a table of inodes are used together, by several threads.
        &self.shards[inode as usize % self.shards.len()]
    }

    /// Counts one more lookup of an inode that opens again by `handle`. Returns its generation,
    /// which tells it from an earlier inode of the same number. `path` names it, and is kept as long
    /// as there is room; where inodes cannot be opened by their handles, as long as it is known.
    pub fn remember(&self, inode: u64, handle: Handle, path: Option<OwnedFd>) -> u64 {
        let generation = self.generations.of(&handle);
        let has_path = path.is_some();
        let mut shard = locked(self.shard(inode));
        shard.add(inode, || Node::new(handle.clone()));
        shard.change(inode, |node| {
            node.lookups += 1;
            if node.handle != handle {
                // The number was given to a new file before the kernel forgot the old one.
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

    /// The kernel takes lookups back.
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

    /// Inodes that are held by a descriptor: among them all known ones without a name.
    pub fn pinned(&self) -> Vec<u64> {
        let shards = self.shards.iter().map(locked);
        shards
            .flat_map(|shard| {
                let pinned = shard.nodes().iter().filter(|(_, node)| node.is_pinned);
                pinned.map(|(inode, _)| *inode).collect::<Vec<_>>()
            })
            .collect()
    }

    /// How many inodes have a descriptor that names them.
    pub fn descriptors(&self) -> usize {
        let open =
            |shard: &Shard| shard.nodes().values().filter(|node| node.path.is_some()).count();
        self.shards.iter().map(|shard| open(&locked(shard))).sum()
    }

    /// The generation that the kernel was told. None where the inode is not known.
    pub fn generation(&self, inode: u64) -> Option<u64> {
        let shard = locked(self.shard(inode));
        shard.nodes().get(&inode).map(|node| self.generations.of(&node.handle))
    }

    /// Whether the kernel may still refer to an inode.
    pub fn knows(&self, inode: u64) -> bool {
        locked(self.shard(inode)).nodes().contains_key(&inode)
    }

    /// Whether a user may remove one more last name of an inode that the kernel knows: those who hold
    /// such inodes open share the descriptors.
    pub fn may_pin(&self, uid: u32) -> bool {
        locked(&self.pins).may_have(uid)
    }

    /// Holds `path`, open on an inode, until the inode is forgotten: `uid` removes its last name.
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

    /// Takes [`Inodes::pin`] back: the name has stayed.
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

    /// A descriptor that only names an inode. Fails with ESTALE where it is not known or gone.
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
            // Its last name has gone meanwhile: it was pinned before.
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

    /// From now on Python sees all requests for an inode: nothing of it is kept open here. As often
    /// as [`Inodes::unwatch`] is to come.
    pub fn watch(&self, inode: u64) {
        self.watched.add(inode);
        self.close_data(inode);
    }

    pub fn unwatch(&self, inode: u64) {
        self.watched.remove(inode);
    }

    /// Closes what is open for writing, and was not written to since the last call: jobs take such
    /// files for files in use.
    pub fn close_idle(&self) {
        self.close_written(false);
    }

    /// Closes all that is open for writing.
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

    /// Closes the content of an inode, once no thread uses it.
    pub fn close_data(&self, inode: u64) {
        let data = locked(self.shard(inode)).change(inode, |node| node.data.take());
        drop(data);
    }

    /// The content of an inode, if it is open anyway.
    pub fn opened(&self, inode: u64) -> Option<Arc<DataFile>> {
        locked(self.shard(inode)).change(inode, |node| {
            node.is_used |= node.data.is_some();
            node.data.clone()
        })?
    }

    /// The content of an inode, open for reading, and for writing where `write` is set.
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

    /// Opens an inode for its content, the caller's.
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

/// Closes what an inode has open, in a thread where the end of the file takes long.
fn close(node: Node) {
    let is_slow = node.is_pinned
        && node.path.as_ref().is_some_and(|path| {
            fstat(path).is_ok_and(|status| {
                status.st_nlink == 0
                    && status.st_blocks as u64 * STATUS_BLOCK_BYTES > FREED_BYTES_MAX
            })
        });
    if is_slow {
        // Without a thread it is closed here, when the closure is dropped.
        let _ = std::thread::Builder::new().name("closes".into()).spawn(move || drop(node));
    }
}

/// A path to the inode itself, for calls that take no descriptor.
pub fn proc_path(fd: i32) -> String {
    format!("/proc/self/fd/{fd}")
}
