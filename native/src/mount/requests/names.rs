//! Requests that look names up, make them, and remove them.

use std::ffi::CStr;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Mode, OFlags, RenameFlags, openat, readlinkat_raw};
use rustix::io::Errno;

use crate::mount::inodes::data_file::DataFile;
use crate::mount::inodes::pins::SUPERUSER;
use crate::mount::inodes::table::PATH_FLAGS;
use crate::mount::protocol::abi::{
    CreateIn, EntryOut, LinkIn, MkdirIn, MknodIn, OPEN_KEEP_CACHE, OpenOut, ROOT, Rename2In,
    RenameIn,
};
use crate::mount::protocol::message::{Answer, Failure, Outcome, Request, put};
use crate::mount::protocol::opcode as op;
use crate::mount::requests::attributes::SET_IDS;
use crate::mount::requests::entries::{status_at, status_of};
use crate::mount::requests::{effects, tree::Tree};
use crate::system::attributes::getxattr_at;

const PERMISSIONS: u32 = 0o7777;
/// Renames that give a new entry to the old name, too.
const FILLING: u32 = libc::RENAME_EXCHANGE | libc::RENAME_WHITEOUT;
const DEFAULT_ACL: &CStr = c"system.posix_acl_default";

fn answered(out: &mut [u8], entry: &EntryOut) -> Answer<Outcome> {
    Ok(Outcome::Answered(put(out, entry)?))
}

impl Tree {
    /// Refuses, with EPERM, a request that would make an entry at the top of the tree with the name of
    /// the volume's own directory. `dedupd disable` needs that name. An entry that an older version
    /// has made can be renamed and removed.
    pub fn refuse_base_name(&self, request: &Request) -> Answer<()> {
        let node = request.header.node;
        let is_refused = match request.header.opcode {
            op::SYMLINK | op::MKNOD | op::MKDIR | op::CREATE | op::LINK => {
                self.is_base(node, request.name()?)
            }
            op::RENAME => {
                let given: RenameIn = request.part()?;
                self.is_base(given.new_parent, request.names()?.1)
            }
            op::RENAME2 => {
                let given: Rename2In = request.part()?;
                let (old, new) = request.names()?;
                self.is_base(given.new_parent, new)
                    || given.flags & FILLING != 0 && self.is_base(node, old)
            }
            _ => false,
        };
        if is_refused { Err(Failure(libc::EPERM)) } else { Ok(()) }
    }

    fn is_base(&self, parent: u64, name: &CStr) -> bool {
        parent == ROOT && name == self.base_name.as_c_str()
    }

    pub fn look_up(&self, request: &Request, out: &mut [u8]) -> Answer<Outcome> {
        let name = request.name()?;
        if name == c"." || name == c".." {
            // The kernel asks so for NFS, about inodes that it has forgotten.
            return Ok(Outcome::HandedOver);
        }
        let parent = self.inodes.path(request.header.node)?;
        let since = self.inodes.changes.now();
        let mut entry = self.find_known(&*parent, name)?.unwrap_or_else(|| self.absent());
        self.keep_while_same(&mut entry, since);
        answered(out, &entry)
    }

    pub fn read_link(&self, request: &Request, out: &mut [u8]) -> Answer<Outcome> {
        let inode = self.inodes.path(request.header.node)?;
        let length = readlinkat_raw(&*inode, c"", out)?;
        Ok(Outcome::Answered(length))
    }

    pub fn make_node(&self, request: &Request, out: &mut [u8]) -> Answer<Outcome> {
        let (given, name): (MknodIn, _) = (request.part()?, request.name()?);
        let parent = self.inodes.path(request.header.node)?;
        let mode = inherited_mode(&parent, given.mode, given.umask);
        effects::make_node(&*parent, name, mode, given.device)?;
        self.made(request, &parent, name, given.mode, out)
    }

    pub fn make_directory(&self, request: &Request, out: &mut [u8]) -> Answer<Outcome> {
        let (given, name): (MkdirIn, _) = (request.part()?, request.name()?);
        let parent = self.inodes.path(request.header.node)?;
        let mode = inherited_mode(&parent, given.mode & PERMISSIONS, given.umask);
        effects::make_directory(&*parent, name, mode)?;
        self.made(request, &parent, name, libc::S_IFDIR, out)
    }

    pub fn make_link(&self, request: &Request, out: &mut [u8]) -> Answer<Outcome> {
        let (name, target) = request.names()?;
        let parent = self.inodes.path(request.header.node)?;
        effects::make_link(&*parent, name, target)?;
        self.made(request, &parent, name, libc::S_IFLNK, out)
    }

    /// Completes a new inode, and tells the kernel of it. `mode`: as was asked for.
    fn made(
        &self,
        request: &Request,
        parent: &OwnedFd,
        name: &CStr,
        mode: u32,
        out: &mut [u8],
    ) -> Answer<Outcome> {
        let owned = || {
            let inode = openat(parent, name, PATH_FLAGS, Mode::empty())?;
            self.give_owner(request, parent, &inode, mode)?;
            self.found_open(inode)
        };
        match owned() {
            Ok(found) => answered(out, &self.remembered(found)),
            Err(failure) => {
                // The kernel has the directory locked until the answer: nobody has seen the name.
                let _ = match mode & libc::S_IFMT {
                    libc::S_IFDIR => effects::remove_directory(parent, name),
                    _ => effects::remove_name(parent, name),
                };
                Err(failure)
            }
        }
    }

    /// Gives an inode that was just made its owner.
    fn give_owner(
        &self,
        request: &Request,
        parent: &OwnedFd,
        inode: impl AsFd,
        mode: u32,
    ) -> Answer<()> {
        if let Some(owner) = self.owner(request, parent)? {
            give(&inode, owner, mode)?;
        }
        Ok(())
    }

    /// Tells the kernel of a name that there is by now.
    fn named(&self, parent: impl AsFd, name: &CStr, out: &mut [u8]) -> Answer<Outcome> {
        let found = self.find(parent, name)?.ok_or(Failure(libc::ENOENT))?;
        answered(out, &self.remembered(found))
    }

    /// The owner that an inode gets which this process makes; None where it has it already.
    ///
    /// Where the directory has the set-group-id bit, the file system below has set the group.
    fn owner(&self, request: &Request, parent: &OwnedFd) -> Answer<Option<Owner>> {
        let (uid, gid) = (request.header.uid, request.header.gid);
        let is_roots = self.reserved_blocks.get().is_none();
        if !self.is_root || is_roots && uid == SUPERUSER && gid == SUPERUSER {
            return Ok(None);
        }
        let inherits_group = u32::from(status_of(parent)?.stx_mode) & libc::S_ISGID != 0;
        // An id that has no number here: then the file is root's.
        let known = |id: u32| if id == u32::MAX { SUPERUSER } else { id };
        let gid = if inherits_group { None } else { Some(known(gid)) };
        Ok(Some(Owner { uid: known(uid), gid }))
    }

    pub fn create(&self, request: &Request, out: &mut [u8]) -> Answer<Outcome> {
        let (given, name): (CreateIn, _) = (request.part()?, request.name()?);
        let parent = self.inodes.path(request.header.node)?;
        let mode = inherited_mode(&parent, given.mode & PERMISSIONS, given.umask);
        let fd = match effects::create(&*parent, name, Mode::from_raw_mode(mode)) {
            // Created after the kernel's lookup, so its permission check did not cover it. ESTALE
            // makes the kernel look again.
            Err(Failure(libc::EEXIST)) if given.flags & libc::O_EXCL as u32 == 0 => {
                return Err(Failure(libc::ESTALE));
            }
            result => result?,
        };
        if let Err(failure) = self.give_owner(request, &parent, &fd, given.mode) {
            let _ = effects::remove_name(&*parent, name);
            return Err(failure);
        }
        let entry = self.remembered(self.found(&fd)?);
        self.inodes.keep_data(entry.node, DataFile { fd, is_writable: true });
        opened(out, &entry)
    }

    pub fn create_nameless(&self, request: &Request, out: &mut [u8]) -> Answer<Outcome> {
        let given: CreateIn = request.part()?;
        let user = self.callers.share_of(&request.header);
        if !self.inodes.may_pin(user) {
            return Err(Failure(libc::EMFILE));
        }
        let parent = self.inodes.path(request.header.node)?;
        let mode = inherited_mode(&parent, given.mode & PERMISSIONS, given.umask);
        let fd = effects::create_nameless(&*parent, Mode::from_raw_mode(mode))?;
        self.give_owner(request, &parent, &fd, given.mode)?;
        let entry = self.remembered(self.found(&fd)?);
        // A descriptor for reading would do as well: what counts is that the inode stays.
        self.inodes.pin(entry.node, fd.try_clone()?, user);
        self.inodes.keep_data(entry.node, DataFile { fd, is_writable: true });
        opened(out, &entry)
    }

    pub fn add_name(&self, request: &Request, out: &mut [u8]) -> Answer<Outcome> {
        let (given, name): (LinkIn, _) = (request.part()?, request.name()?);
        let inode = self.inodes.path(given.node)?;
        let parent = self.inodes.path(request.header.node)?;
        effects::add_name(&*inode, &*parent, name)?;
        self.inodes.change_times.drop(given.node);
        self.named(&*parent, name, out)
    }

    pub fn remove_name(&self, request: &Request) -> Answer<Outcome> {
        let parent = self.inodes.path(request.header.node)?;
        let name = request.name()?;
        self.keeping(request, &*parent, name, || effects::remove_name(&*parent, name))
    }

    pub fn remove_directory(&self, request: &Request) -> Answer<Outcome> {
        let parent = self.inodes.path(request.header.node)?;
        let name = request.name()?;
        self.keeping(request, &*parent, name, || effects::remove_directory(&*parent, name))
    }

    pub fn rename(&self, request: &Request) -> Answer<Outcome> {
        let given: RenameIn = request.part()?;
        self.rename_to(request, given.new_parent, RenameFlags::empty())
    }

    pub fn rename_with(&self, request: &Request) -> Answer<Outcome> {
        let given: Rename2In = request.part()?;
        self.rename_to(request, given.new_parent, RenameFlags::from_bits_retain(given.flags))
    }

    fn rename_to(&self, request: &Request, new_parent: u64, flags: RenameFlags) -> Answer<Outcome> {
        let (old, new) = request.names()?;
        let old_parent = self.inodes.path(request.header.node)?;
        let new_parent = self.inodes.path(new_parent)?;
        let rename = || effects::rename(&*old_parent, old, &*new_parent, new, flags);
        if flags.intersects(RenameFlags::NOREPLACE | RenameFlags::EXCHANGE) {
            rename()?;
            return Ok(Outcome::Answered(0));
        }
        self.keeping(request, &*new_parent, new, rename)
    }

    /// Takes a name away: the inode lives on as long as the kernel knows it.
    fn keeping(
        &self,
        request: &Request,
        parent: impl AsFd,
        name: &CStr,
        remove: impl FnOnce() -> Answer<()>,
    ) -> Answer<Outcome> {
        let mut pinned = None;
        if let Some(inode) = self.last_named(&parent, name) {
            // Of what goes with the last name of a stub notes are taken.
            if self.inodes.watched.has(inode) || self.is_stub(&parent, name) {
                return Ok(Outcome::HandedOver);
            }
            pinned = self.pin_last(request, parent, name, inode)?;
        }
        if let Err(error) = remove() {
            if let Some(inode) = pinned {
                self.inodes.unpin(inode);
            }
            return Err(error);
        }
        Ok(Outcome::Answered(0))
    }

    /// The inode that `name` leads to, if it is its last name.
    fn last_named(&self, parent: impl AsFd, name: &CStr) -> Option<u64> {
        let status = status_at(parent, name).ok()?;
        let is_directory = u32::from(status.stx_mode) & libc::S_IFMT == libc::S_IFDIR;
        (status.stx_nlink == 1 || is_directory).then_some(status.stx_ino)
    }

    /// Whether a name leads to a stub, as far as that can be told.
    fn is_stub(&self, parent: impl AsFd, name: &CStr) -> bool {
        let found = getxattr_at(parent.as_fd(), name, &self.reserved, &mut []);
        !matches!(found, Err(Errno::NODATA | Errno::NOENT | Errno::OPNOTSUPP))
    }

    /// Pins an inode by its last name, if the kernel knows the inode.
    fn pin_last(
        &self,
        request: &Request,
        parent: impl AsFd,
        name: &CStr,
        inode: u64,
    ) -> Answer<Option<u64>> {
        if !self.inodes.knows(inode) {
            return Ok(None);
        }
        let user = self.callers.share_of(&request.header);
        if !self.inodes.may_pin(user) {
            return Err(Failure(libc::EMFILE));
        }
        let path = openat(parent, name, PATH_FLAGS, Mode::empty())?;
        self.inodes.pin(inode, path, user);
        Ok(Some(inode))
    }
}

/// The owner that an inode gets; a group that is None stays as it is.
#[derive(Clone, Copy)]
struct Owner {
    uid: u32,
    gid: Option<u32>,
}

/// Makes the caller the owner of an inode that this process has made as another user. That clears special
/// bits of a file; those of `mode`, which was asked for, are put back.
fn give(inode: impl AsFd, owner: Owner, mode: u32) -> Answer<()> {
    effects::change_owner(&inode, Some(owner.uid), owner.gid)?;
    if mode & SET_IDS != 0 && mode & libc::S_IFMT != libc::S_IFDIR {
        let kept = u32::from(status_of(&inode)?.stx_mode) & PERMISSIONS;
        effects::change_mode(&inode, Mode::from_raw_mode(kept | mode & SET_IDS))?;
    }
    Ok(())
}

/// The mode of a new inode: the umask applies unless the directory has a default ACL, which the file
/// system below applies. (The umask of this process is empty.)
///
/// The kernel leaves both to the mount (`protocol/handshake.rs`). An older kernel has applied the
/// umask already; then this changes nothing.
fn inherited_mode(parent: &OwnedFd, mode: u32, umask: u32) -> u32 {
    let masked = mode & !(umask & 0o777);
    let has_default = || getxattr_at(parent.as_fd(), c".", DEFAULT_ACL, &mut []).is_ok();
    if masked == mode || has_default() { mode } else { masked }
}

fn opened(out: &mut [u8], entry: &EntryOut) -> Answer<Outcome> {
    let length = put(out, entry)?;
    let open = OpenOut { flags: OPEN_KEEP_CACHE, ..OpenOut::default() };
    Ok(Outcome::Answered(length + put(&mut out[length..], &open)?))
}

/// Flags that open a directory for its names.
pub const DIRECTORY_FLAGS: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY);
