//! The table of the inodes that the kernel knows.
//!
//! Inodes have the numbers of the file system below. Names are not kept. An inode costs its handle,
//! a count and room for two descriptors, which are open while it is in use: one that only names it
//! (`O_PATH`), one for its content. Their number is bounded; the longest unused are closed.
//!
//! No opening comes as a message, so nobody tells when the last user of a file closes it. An inode
//! that loses its last name is therefore *pinned*: its descriptor stays open until the kernel forgets
//! the inode, which it does when the last user has gone.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex};

use rustix::fs::{Mode, OFlags, fstat, openat};

use crate::mount::inodes::changes::Changes;
use crate::mount::inodes::data_file::DataFile;
use crate::mount::inodes::generations::Generations;
use crate::mount::inodes::given::Given;
use crate::mount::inodes::handle::Handle;
use crate::mount::inodes::lent::Lent;
use crate::mount::inodes::pins::Pins;
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

pub const PATH_FLAGS: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

struct Node {
    handle: Handle,
    lookups: u64,
    path: Option<Arc<OwnedFd>>,
    data: Option<Arc<DataFile>>,
    /// `path` stays: the inode has no name any more, or cannot be opened by its handle.
    is_pinned: bool,
    /// The user who has removed the last name.
    pinned_by: Option<u32>,
    /// Whether the node is in `recent`.
    is_recent: bool,
    /// Whether a descriptor was used since the node was last considered for closing.
    is_used: bool,
    /// Whether `data` was written to since [`Inodes::close_idle`] has looked.
    is_written: bool,
}

#[derive(Default)]
struct Shard {
    nodes: HashMap<u64, Node>,
    /// Nodes with open descriptors, the longest unused first.
    recent: VecDeque<u64>,
}

impl Shard {
    /// Notes that a node has a descriptor, and closes those of others where there are too many.
    fn opened(&mut self, inode: u64, descriptors_max: usize) {
        if let Some(node) = self.nodes.get_mut(&inode) {
            node.is_used = true;
            if !node.is_recent {
                node.is_recent = true;
                self.recent.push_back(inode);
            }
        }
        while self.recent.len() > descriptors_max {
            let Some(oldest) = self.recent.pop_front() else { return };
            let Some(node) = self.nodes.get_mut(&oldest) else { continue };
            if node.is_used {
                node.is_used = false;
                self.recent.push_back(oldest);
                continue;
            }
            node.is_recent = false;
            node.data = None;
            if !node.is_pinned {
                node.path = None;
            }
        }
    }
}

/// The inodes that the kernel may ask for by number.
pub struct Inodes {
    root: Arc<OwnedFd>,
    root_inode: u64,
    pub device: u64,
    /// Whether inodes can be opened by their handles, so that none has to stay open.
    pub by_handle: bool,
    /// Most nodes of a shard that have descriptors.
    descriptors_max: usize,
    generations: Generations,
    shards: Vec<Mutex<Shard>>,
    pins: Mutex<Pins>,
    /// Nodes with `data` that is open for writing, and others.
    written: Mutex<Vec<u64>>,
    pub watched: Arc<Watched>,
    pub lent: Lent,
    pub changes: Arc<Changes>,
    pub given: Given,
}

impl Inodes {
    /// `descriptors_max`: most inodes at a time that have descriptors, those without a name apart,
    /// of which `pins_max` may be held.
    pub fn new(
        root: OwnedFd,
        descriptors_max: usize,
        pins_max: usize,
        generations: Generations,
    ) -> Answer<Inodes> {
        let parts = (descriptors_max / DESCRIPTORS_MIN).clamp(1, SHARDS_MAX);
        let status = fstat(&root)?;
        let handle = name_to_handle(root.as_raw_fd()).unwrap_or_default();
        let by_handle = Handle::new(&handle).open(&root, PATH_FLAGS).is_ok();
        Ok(Inodes {
            root: Arc::new(root),
            root_inode: status.st_ino,
            device: status.st_dev,
            by_handle,
            descriptors_max: (descriptors_max / parts).max(1),
            generations,
            written: Mutex::default(),
            pins: Mutex::new(Pins::new(pins_max)),
            watched: Arc::default(),
            lent: Lent::default(),
            changes: Arc::default(),
            given: Given::default(),
            shards: (0..parts).map(|_| Mutex::default()).collect(),
        })
    }

    pub fn root(&self) -> &OwnedFd {
        &self.root
    }

    /// How many inodes are known.
    pub fn count(&self) -> usize {
        self.shards.iter().map(|shard| locked(shard).nodes.len()).sum()
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
    /// which tells it from an earlier inode of the same number.
    pub fn remember(&self, inode: u64, handle: Handle, path: Option<OwnedFd>) -> u64 {
        let generation = self.generations.of(&handle);
        let mut shard = locked(self.shard(inode));
        match shard.nodes.entry(inode) {
            Entry::Vacant(place) => {
                place.insert(Node {
                    handle,
                    lookups: 1,
                    is_pinned: path.is_some(),
                    pinned_by: None,
                    path: path.map(Arc::new),
                    data: None,
                    is_recent: false,
                    is_used: false,
                    is_written: false,
                });
            }
            Entry::Occupied(mut place) => {
                let node = place.get_mut();
                node.lookups += 1;
                if node.handle != handle {
                    // The number was given to a new file before the kernel forgot the old one.
                    node.handle = handle;
                    self.give_back(node);
                    (node.data, node.is_pinned) = (None, path.is_some());
                    node.path = path.map(Arc::new);
                }
            }
        }
        generation
    }

    /// The kernel takes lookups back.
    pub fn forget(&self, inode: u64, lookups: u64) {
        let mut shard = locked(self.shard(inode));
        let Entry::Occupied(mut place) = shard.nodes.entry(inode) else { return };
        let node = place.get_mut();
        node.lookups = node.lookups.saturating_sub(lookups);
        if node.lookups > 0 {
            return;
        }
        let mut node = place.remove();
        self.give_back(&mut node);
        if node.is_recent {
            // A file that was just made and removed is at the end, mostly.
            if let Some(at) = shard.recent.iter().rposition(|one| *one == inode) {
                shard.recent.remove(at);
            }
        }
        drop(shard);
        close(node);
    }

    /// Inodes that are held by a descriptor: among them all known ones without a name.
    pub fn pinned(&self) -> Vec<u64> {
        let shards = self.shards.iter().map(locked);
        shards
            .flat_map(|shard| {
                let pinned = shard.nodes.iter().filter(|(_, node)| node.is_pinned);
                pinned.map(|(inode, _)| *inode).collect::<Vec<_>>()
            })
            .collect()
    }

    /// How many inodes have a descriptor that names them.
    pub fn descriptors(&self) -> usize {
        let open = |shard: &Shard| shard.nodes.values().filter(|node| node.path.is_some()).count();
        self.shards.iter().map(|shard| open(&locked(shard))).sum()
    }

    /// Whether the kernel may still refer to an inode.
    pub fn knows(&self, inode: u64) -> bool {
        locked(self.shard(inode)).nodes.contains_key(&inode)
    }

    /// Whether a user may remove one more last name of an inode that the kernel knows: those who hold
    /// such inodes open share the descriptors.
    pub fn may_pin(&self, uid: u32) -> bool {
        locked(&self.pins).may_have(uid)
    }

    /// Holds `path`, open on an inode, until the inode is forgotten: `uid` removes its last name.
    pub fn pin(&self, inode: u64, path: OwnedFd, uid: u32) {
        if let Some(node) = locked(self.shard(inode)).nodes.get_mut(&inode) {
            if !node.is_pinned {
                node.is_pinned = true;
                node.pinned_by = Some(uid);
                node.path = Some(Arc::new(path));
                locked(&self.pins).take(uid);
            }
        }
    }

    /// Takes [`Inodes::pin`] back: the name has stayed.
    pub fn unpin(&self, inode: u64) {
        if !self.by_handle {
            return;
        }
        let mut shard = locked(self.shard(inode));
        if let Some(node) = shard.nodes.get_mut(&inode) {
            node.is_pinned = false;
            self.give_back(node);
            shard.opened(inode, self.descriptors_max);
        }
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
        let handle = match locked(self.shard(inode)).nodes.get_mut(&inode) {
            None => return Err(Failure(libc::ESTALE)),
            Some(node) => {
                if let Some(path) = &node.path {
                    node.is_used = true;
                    return Ok(Arc::clone(path));
                }
                node.handle.clone()
            }
        };
        let opened = match handle.open(&self.root, PATH_FLAGS) {
            Ok(opened) => Arc::new(opened),
            // Its last name has gone meanwhile: it was pinned before.
            Err(gone) => {
                let shard = locked(self.shard(inode));
                return shard.nodes.get(&inode).and_then(|node| node.path.clone()).ok_or(gone);
            }
        };
        let mut shard = locked(self.shard(inode));
        if let Some(node) = shard.nodes.get_mut(&inode) {
            if node.handle == handle && node.path.is_none() {
                node.path = Some(Arc::clone(&opened));
                shard.opened(inode, self.descriptors_max);
            }
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
            let mut shard = locked(self.shard(inode));
            let Some(node) = shard.nodes.get_mut(&inode) else { continue };
            if !node.data.as_ref().is_some_and(|data| data.is_writable) {
                continue;
            }
            if std::mem::take(&mut node.is_written) && !all {
                locked(&self.written).push(inode);
            } else {
                node.data = None;
            }
        }
    }

    /// Closes the content of an inode, once no thread uses it.
    pub fn close_data(&self, inode: u64) {
        let data =
            locked(self.shard(inode)).nodes.get_mut(&inode).and_then(|node| node.data.take());
        drop(data);
    }

    /// The content of an inode, if it is open anyway.
    pub fn opened(&self, inode: u64) -> Option<Arc<DataFile>> {
        let mut shard = locked(self.shard(inode));
        let node = shard.nodes.get_mut(&inode)?;
        node.is_used |= node.data.is_some();
        node.data.clone()
    }

    /// The content of an inode, open for reading, and for writing where `write` is set.
    pub fn data(&self, inode: u64, write: bool) -> Answer<Arc<DataFile>> {
        if inode == ROOT {
            return Ok(Arc::new(DataFile {
                fd: self.open(ROOT, OFlags::RDONLY)?,
                is_writable: false,
            }));
        }
        if let Some(node) = locked(self.shard(inode)).nodes.get_mut(&inode) {
            if let Some(data) = node.data.as_ref().filter(|data| data.is_writable || !write) {
                node.is_used = true;
                node.is_written |= write;
                return Ok(Arc::clone(data));
            }
        }
        let flags = if write { OFlags::RDWR } else { OFlags::RDONLY };
        let data = DataFile { fd: self.open(inode, flags)?, is_writable: write };
        Ok(self.keep_data(inode, data))
    }

    /// Keeps an open file for later requests.
    pub fn keep_data(&self, inode: u64, data: DataFile) -> Arc<DataFile> {
        let data = Arc::new(data);
        let mut shard = locked(self.shard(inode));
        if let Some(node) = shard.nodes.get_mut(&inode) {
            if node.data.as_ref().is_none_or(|old| !old.is_writable) {
                node.data = Some(Arc::clone(&data));
                if data.is_writable {
                    node.is_written = true;
                    locked(&self.written).push(inode);
                }
                shard.opened(inode, self.descriptors_max);
            }
        }
        data
    }

    /// Opens an inode for its content, the caller's.
    pub fn open(&self, inode: u64, flags: OFlags) -> Answer<OwnedFd> {
        let flags = flags | OFlags::CLOEXEC | OFlags::NOCTTY;
        let handle = match locked(self.shard(inode)).nodes.get(&inode) {
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Known inodes cost little: a million must stay below 400 MB with all that belongs to them.
    #[test]
    fn an_inode_takes_little_memory() {
        assert!(size_of::<(u64, Node)>() <= 80);
    }
}
