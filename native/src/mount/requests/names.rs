//! Requests that look names up, make them, and remove them.

use std::ffi::CStr;
use std::os::fd::AsFd;

use rustix::fs::{Mode, OFlags, RenameFlags, openat, readlinkat_raw};

use crate::mount::inodes::data_file::DataFile;
use crate::mount::inodes::table::PATH_FLAGS;
use crate::mount::protocol::abi::{
    CreateIn, EntryOut, LinkIn, MkdirIn, MknodIn, OPEN_KEEP_CACHE, OpenOut, Rename2In, RenameIn,
};
use crate::mount::protocol::message::{Answer, Failure, Outcome, Request, put};
use crate::mount::requests::caller::Caller;
use crate::mount::requests::entries::{absent, status_at};
use crate::mount::requests::{effects, tree::Tree};

const PERMISSIONS: u32 = 0o7777;

fn answered(out: &mut [u8], entry: &EntryOut) -> Answer<Outcome> {
    Ok(Outcome::Answered(put(out, entry)?))
}

impl Tree {
    pub fn look_up(&self, request: &Request, out: &mut [u8]) -> Answer<Outcome> {
        let name = request.name()?;
        if name == c"." || name == c".." {
            // The kernel asks so for NFS, about inodes that it has forgotten.
            return Ok(Outcome::HandedOver);
        }
        let parent = self.inodes.path(request.header.node)?;
        let found = self.find(&*parent, name)?;
        answered(out, &found.map_or_else(absent, |found| self.remembered(found)))
    }

    pub fn read_link(&self, request: &Request, out: &mut [u8]) -> Answer<Outcome> {
        let inode = self.inodes.path(request.header.node)?;
        let length = readlinkat_raw(&*inode, c"", out)?;
        Ok(Outcome::Answered(length))
    }

    pub fn make_node(
        &self,
        request: &Request,
        out: &mut [u8],
        caller: &mut Caller,
    ) -> Answer<Outcome> {
        let (given, name): (MknodIn, _) = (request.part()?, request.name()?);
        let parent = self.inodes.path(request.header.node)?;
        caller.become_caller(&request.header, given.umask)?;
        effects::make_node(&*parent, name, given.mode, given.device)?;
        self.made(&*parent, name, out)
    }

    pub fn make_directory(
        &self,
        request: &Request,
        out: &mut [u8],
        caller: &mut Caller,
    ) -> Answer<Outcome> {
        let (given, name): (MkdirIn, _) = (request.part()?, request.name()?);
        let parent = self.inodes.path(request.header.node)?;
        caller.become_caller(&request.header, given.umask)?;
        effects::make_directory(&*parent, name, given.mode & PERMISSIONS)?;
        self.made(&*parent, name, out)
    }

    pub fn make_link(
        &self,
        request: &Request,
        out: &mut [u8],
        caller: &mut Caller,
    ) -> Answer<Outcome> {
        let (name, target) = request.names()?;
        let parent = self.inodes.path(request.header.node)?;
        caller.become_caller(&request.header, 0)?;
        effects::make_link(&*parent, name, target)?;
        self.made(&*parent, name, out)
    }

    fn made(&self, parent: impl AsFd, name: &CStr, out: &mut [u8]) -> Answer<Outcome> {
        let found = self.find(parent, name)?.ok_or(Failure(libc::ENOENT))?;
        answered(out, &self.remembered(found))
    }

    pub fn create(
        &self,
        request: &Request,
        out: &mut [u8],
        caller: &mut Caller,
    ) -> Answer<Outcome> {
        let (given, name): (CreateIn, _) = (request.part()?, request.name()?);
        let parent = self.inodes.path(request.header.node)?;
        caller.become_caller(&request.header, given.umask)?;
        let mode = Mode::from_raw_mode(given.mode & PERMISSIONS);
        let fd = match effects::create(&*parent, name, mode) {
            // Created after the kernel's lookup, so its permission check did not cover it. ESTALE
            // makes the kernel look again.
            Err(Failure(libc::EEXIST)) if given.flags & libc::O_EXCL as u32 == 0 => {
                return Err(Failure(libc::ESTALE));
            }
            result => result?,
        };
        let entry = self.remembered(self.found(&fd)?);
        self.inodes.keep_data(entry.node, DataFile { fd, is_writable: true });
        opened(out, &entry)
    }

    pub fn create_nameless(
        &self,
        request: &Request,
        out: &mut [u8],
        caller: &mut Caller,
    ) -> Answer<Outcome> {
        let given: CreateIn = request.part()?;
        let parent = self.inodes.path(request.header.node)?;
        caller.become_caller(&request.header, given.umask)?;
        let mode = Mode::from_raw_mode(given.mode & PERMISSIONS);
        let fd = effects::create_nameless(&*parent, mode)?;
        let entry = self.remembered(self.found(&fd)?);
        // A descriptor for reading would do as well: what counts is that the inode stays.
        self.inodes.pin(entry.node, fd.try_clone()?);
        self.inodes.keep_data(entry.node, DataFile { fd, is_writable: true });
        opened(out, &entry)
    }

    pub fn add_name(&self, request: &Request, out: &mut [u8]) -> Answer<Outcome> {
        let (given, name): (LinkIn, _) = (request.part()?, request.name()?);
        let inode = self.inodes.path(given.node)?;
        let parent = self.inodes.path(request.header.node)?;
        effects::add_name(&*inode, &*parent, name)?;
        self.made(&*parent, name, out)
    }

    pub fn remove_name(&self, request: &Request) -> Answer<Outcome> {
        let parent = self.inodes.path(request.header.node)?;
        let name = request.name()?;
        self.keeping(&*parent, name, || effects::remove_name(&*parent, name))
    }

    pub fn remove_directory(&self, request: &Request) -> Answer<Outcome> {
        let parent = self.inodes.path(request.header.node)?;
        let name = request.name()?;
        self.keeping(&*parent, name, || effects::remove_directory(&*parent, name))
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
        self.keeping(&*new_parent, new, rename)
    }

    /// Takes a name away: the inode lives on as long as the kernel knows it.
    fn keeping(
        &self,
        parent: impl AsFd,
        name: &CStr,
        remove: impl FnOnce() -> Answer<()>,
    ) -> Answer<Outcome> {
        let pinned = self.pin_last(parent, name)?;
        if let Err(error) = remove() {
            if let Some(inode) = pinned {
                self.inodes.unpin(inode);
            }
            return Err(error);
        }
        Ok(Outcome::Answered(0))
    }

    /// Pins an inode by its last name, if the kernel knows the inode.
    fn pin_last(&self, parent: impl AsFd, name: &CStr) -> Answer<Option<u64>> {
        let Ok(status) = status_at(&parent, name) else { return Ok(None) };
        let is_directory = u32::from(status.stx_mode) & libc::S_IFMT == libc::S_IFDIR;
        let is_last = status.stx_nlink == 1 || is_directory;
        if !is_last || !self.inodes.knows(status.stx_ino) {
            return Ok(None);
        }
        let path = openat(parent, name, PATH_FLAGS, Mode::empty())?;
        self.inodes.pin(status.stx_ino, path);
        Ok(Some(status.stx_ino))
    }
}

fn opened(out: &mut [u8], entry: &EntryOut) -> Answer<Outcome> {
    let length = put(out, entry)?;
    let open = OpenOut { flags: OPEN_KEEP_CACHE, ..OpenOut::default() };
    Ok(Outcome::Answered(length + put(&mut out[length..], &open)?))
}

/// Flags that open a directory for its names.
pub const DIRECTORY_FLAGS: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY);
