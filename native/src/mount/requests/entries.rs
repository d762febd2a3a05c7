//! Inodes as the kernel gets to know them: attributes, number and generation.

use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;

use rustix::fs::{AtFlags, Mode, Statx, StatxFlags, makedev, openat, statx};
use rustix::io::Errno;

use crate::mount::inodes::handle::Handle;
use crate::mount::inodes::table::PATH_FLAGS;
use crate::mount::protocol::abi::{Attributes, EntryOut, ROOT};
use crate::mount::protocol::message::{Answer, Failure};
use crate::mount::requests::tree::Tree;
use crate::system::calls::name_to_handle_at;

/// How long the kernel may keep names and attributes. All changes come through the mount, or are
/// reported to the kernel (commits and restores), so it could keep them for ever.
pub const TIMEOUT_S: u64 = 3600;

const BASIC: StatxFlags = StatxFlags::BASIC_STATS;

/// An inode that a name leads to.
pub struct FoundInode {
    pub status: Statx,
    handle: Handle,
    path: Option<OwnedFd>,
}

/// The status of what `fd` is open on.
pub fn status_of(fd: impl AsFd) -> Answer<Statx> {
    Ok(statx(fd, c"", AtFlags::EMPTY_PATH, BASIC)?)
}

pub fn status_at(parent: impl AsFd, name: &CStr) -> Result<Statx, Errno> {
    statx(parent, name, AtFlags::SYMLINK_NOFOLLOW, BASIC)
}

impl Tree {
    /// Looks a name up. None where there is none. Fails with EXDEV on a file system that is mounted
    /// inside of the tree.
    ///
    /// The kernel lets no name of the directory change meanwhile, so that status and handle are
    /// those of one inode.
    pub fn find(&self, parent: impl AsFd, name: &CStr) -> Answer<Option<FoundInode>> {
        let parent = parent.as_fd();
        if !self.inodes.by_handle {
            return self.find_open(parent, name);
        }
        let status = match status_at(parent, name) {
            Err(Errno::NOENT) => return Ok(None),
            result => result?,
        };
        self.within(&status)?;
        let handle = match name_to_handle_at(parent.as_raw_fd(), name, Handle::new) {
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(None),
            result => result?,
        };
        Ok(Some(FoundInode { status, handle, path: None }))
    }

    /// As [`Tree::find`], where names may change meanwhile, for the kernel: it looks names up again
    /// that it knows without a lock of the directory. The inode stays open until it is counted, so
    /// that no other one gets its number before, and longer while there is room: it is asked for soon.
    pub fn find_known(&self, parent: impl AsFd, name: &CStr) -> Answer<Option<EntryOut>> {
        let parent = parent.as_fd();
        Ok(self.find_open(parent, name)?.map(|found| self.remembered(found)))
    }

    fn find_open(&self, parent: BorrowedFd, name: &CStr) -> Answer<Option<FoundInode>> {
        match openat(parent, name, PATH_FLAGS, Mode::empty()) {
            Err(Errno::NOENT) => Ok(None),
            result => Ok(Some(self.found_open(result?)?)),
        }
    }

    /// The inode that `path` names.
    pub fn found_open(&self, path: OwnedFd) -> Answer<FoundInode> {
        let status = status_of(&path)?;
        self.within(&status)?;
        let handle = match self.inodes.by_handle {
            true => name_to_handle_at(path.as_raw_fd(), c"", Handle::new)?,
            false => Handle::new(&[]),
        };
        Ok(FoundInode { status, handle, path: Some(path) })
    }

    /// The inode that `fd` is open on.
    pub fn found(&self, fd: impl AsFd) -> Answer<FoundInode> {
        let fd = fd.as_fd();
        let status = status_of(fd)?;
        self.within(&status)?;
        if !self.inodes.by_handle {
            let path = fd.try_clone_to_owned()?;
            return Ok(FoundInode { status, handle: Handle::new(&[]), path: Some(path) });
        }
        let handle = name_to_handle_at(fd.as_raw_fd(), c"", Handle::new)?;
        Ok(FoundInode { status, handle, path: None })
    }

    fn within(&self, status: &Statx) -> Answer<()> {
        let device = makedev(status.stx_dev_major, status.stx_dev_minor);
        if device == self.inodes.device { Ok(()) } else { Err(Failure(libc::EXDEV)) }
    }

    /// Counts a lookup of an inode, which the kernel must hear of.
    pub fn remembered(&self, found: FoundInode) -> EntryOut {
        let node = self.inodes.number(found.status.stx_ino);
        let generation = match node {
            ROOT => 0,
            _ => self.inodes.remember(node, found.handle, found.path),
        };
        let mut status = found.status;
        status.stx_ctime = self.inodes.change_times.shown(node, status.stx_ctime);
        EntryOut {
            node,
            generation,
            entry_valid_s: self.names_valid_s(),
            attributes_valid_s: TIMEOUT_S,
            attributes: attributes(&status),
            ..EntryOut::default()
        }
    }
}

impl Tree {
    /// How long the kernel may keep a name. The kernel does not know which names are the same to a
    /// file system that ignores case: a name that it kept would outlive the removal of its file.
    fn names_valid_s(&self) -> u64 {
        if self.ignores_case.load(Ordering::Relaxed) { 0 } else { TIMEOUT_S }
    }

    /// The answer "no such name", which the kernel may keep.
    pub fn absent(&self) -> EntryOut {
        EntryOut { entry_valid_s: self.names_valid_s(), ..EntryOut::default() }
    }

    /// How long the kernel may keep attributes of an inode that were taken after an instant: not at
    /// all where the inode has changed since.
    pub fn attributes_valid_s(&self, node: u64, since: u64) -> u64 {
        if self.inodes.changes.has(node, since) { 0 } else { TIMEOUT_S }
    }

    /// Has the kernel keep the attributes of an entry no longer than they are right.
    pub fn keep_while_same(&self, entry: &mut EntryOut, since: u64) {
        if self.inodes.changes.has_moves(since) {
            entry.attributes_valid_s = 0;
        } else if entry.node != 0 {
            entry.attributes_valid_s = self.attributes_valid_s(entry.node, since);
        }
    }
}

/// The kernel's form of `status`.
pub fn attributes(status: &Statx) -> Attributes {
    Attributes {
        inode: status.stx_ino,
        size: status.stx_size,
        blocks: shown_blocks(status),
        atime: status.stx_atime.tv_sec,
        mtime: status.stx_mtime.tv_sec,
        ctime: status.stx_ctime.tv_sec,
        atime_ns: status.stx_atime.tv_nsec,
        mtime_ns: status.stx_mtime.tv_nsec,
        ctime_ns: status.stx_ctime.tv_nsec,
        mode: u32::from(status.stx_mode),
        links: status.stx_nlink,
        uid: status.stx_uid,
        gid: status.stx_gid,
        device: device(status),
        block_bytes: status.stx_blksize,
        flags: 0,
    }
}

/// The number of blocks that users see: at least one where the file has a length.
///
/// Programs take a file without blocks for one hole, and do not read it: `tar --sparse` would archive
/// zeros in place of a stub. ext4 reports files that lie within their inode in the same way.
pub fn shown_blocks(status: &Statx) -> u64 {
    let is_file = u32::from(status.stx_mode) & libc::S_IFMT == libc::S_IFREG;
    if is_file && status.stx_size > 0 { status.stx_blocks.max(1) } else { status.stx_blocks }
}

/// The device that a special file stands for, in the kernel's 32 bits.
fn device(status: &Statx) -> u32 {
    let (major, minor) = (status.stx_rdev_major, status.stx_rdev_minor);
    (minor & 0xff) | (major << 8) | ((minor & !0xff) << 12)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use rustix::fs::{CWD, OFlags, RenameFlags, renameat_with};

    use super::*;
    use crate::mount::inodes::generations::{Generations, SECRET_BYTES};
    use crate::mount::inodes::table::Inodes;

    /// The kernel looks some names up again without a lock of their directory.
    #[test]
    fn a_name_that_is_given_to_another_inode_meanwhile_leads_to_one_of_them() {
        let directory = std::env::temp_dir().join(format!("dedupd-entries-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let root =
            openat(CWD, &directory, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
        let inodes = Inodes::new(root, 16, 16, Generations::new([0; SECRET_BYTES])).unwrap();
        let tree = Tree::new(inodes, c"trusted.reserved".into(), c".base".into());
        for name in ["a", "b"] {
            std::fs::write(directory.join(name), name).unwrap();
        }
        let has_ended = AtomicBool::new(false);
        let looks = || {
            let entry = tree.find_known(tree.inodes.root(), c"a").unwrap().unwrap();
            let opened = status_of(tree.inodes.path(entry.node).unwrap()).unwrap();
            tree.inodes.forget(entry.node, 1);
            opened.stx_ino == entry.node && opened.stx_ino == entry.attributes.inode
        };
        let are_right = std::thread::scope(|scope| {
            scope.spawn(|| {
                let root = tree.inodes.root();
                while !has_ended.load(Ordering::Relaxed) {
                    renameat_with(root, "a", root, "b", RenameFlags::EXCHANGE).unwrap();
                }
            });
            let are_right = (0..20_000).all(|_| looks());
            has_ended.store(true, Ordering::Relaxed);
            are_right
        });
        assert!(are_right, "number, attributes and handle are of different inodes");
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
