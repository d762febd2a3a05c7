//! Requests for attributes, and changes of them.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{
    AtFlags, Mode, Statx as Status, StatxFlags, Timespec, Timestamps, fstatvfs, statx,
};

use crate::mount::inodes::data_file::DataFile;
use crate::mount::protocol::abi::{
    AttributesOut, SetattrIn, StatfsOut, Statx, StatxIn, StatxOut, StatxTime, setattr,
};
use crate::mount::protocol::message::{Answer, Outcome, Request, put};
use crate::mount::requests::entries::{TIMEOUT_S, attributes, shown_blocks, status_of};
use crate::mount::requests::{effects, tree::Tree};

pub const SET_IDS: u32 = libc::S_ISUID | libc::S_ISGID;

/// An inode by one of its descriptors.
pub enum Inode {
    /// Its content is open.
    Open(Arc<DataFile>),
    /// It is only named (`O_PATH`).
    Named(Arc<OwnedFd>),
}

impl AsFd for Inode {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Inode::Open(file) => file.as_fd(),
            Inode::Named(path) => path.as_fd(),
        }
    }
}

impl Tree {
    pub fn get_attributes(&self, request: &Request, out: &mut [u8]) -> Answer<Outcome> {
        let node = request.header.node;
        let since = self.inodes.changes.now();
        let mut status = status_of(self.inode(node)?)?;
        status.stx_ctime = self.inodes.change_times.shown(node, status.stx_ctime);
        shown(&status, self.unmoved_valid_s(node, since), out)
    }

    /// As [`Tree::attributes_valid_s`], of an inode that may have been moved.
    fn unmoved_valid_s(&self, node: u64, since: u64) -> u64 {
        if self.inodes.changes.has_moves(since) {
            return 0;
        }
        self.attributes_valid_s(node, since)
    }

    /// As [`Tree::get_attributes`], with the time of birth.
    pub fn get_extended(&self, request: &Request, out: &mut [u8]) -> Answer<Outcome> {
        let given: StatxIn = request.part()?;
        let node = request.header.node;
        let since = self.inodes.changes.now();
        let inode = self.inodes.path(node)?;
        let mask =
            StatxFlags::from_bits_retain(given.mask) & StatxFlags::ALL | StatxFlags::BASIC_STATS;
        let flags = AtFlags::from_bits_retain(given.statx_flags) | AtFlags::EMPTY_PATH;
        let mut status = statx(&*inode, c"", flags, mask)?;
        status.stx_ctime = self.inodes.change_times.shown(node, status.stx_ctime);
        let valid_s = self.unmoved_valid_s(node, since);
        let answer = StatxOut { valid_s, statx: extended(&status), ..StatxOut::default() };
        Ok(Outcome::Answered(put(out, &answer)?))
    }

    pub fn set_attributes(&self, request: &Request, out: &mut [u8]) -> Answer<Outcome> {
        let given: SetattrIn = request.part()?;
        let has = |field| given.valid & field != 0;
        let node = request.header.node;
        if has(setattr::SIZE) {
            let file = self.inodes.data(node, true)?;
            if has(setattr::KILL_SUIDGID) {
                drop_set_ids(&*file)?;
            }
            effects::set_length(&*file, given.size)?;
        }
        let inode = self.inode(node)?;
        if has(setattr::UID | setattr::GID) {
            let uid = has(setattr::UID).then_some(given.uid);
            effects::change_owner(&inode, uid, has(setattr::GID).then_some(given.gid))?;
        }
        if has(setattr::MODE) {
            let mode = Mode::from_raw_mode(given.mode & 0o7777);
            change_mode(&inode, mode)?;
        }
        if has(setattr::ATIME | setattr::MTIME) {
            let atime =
                time(has(setattr::ATIME), has(setattr::ATIME_NOW), given.atime, given.atime_ns);
            let mtime =
                time(has(setattr::MTIME), has(setattr::MTIME_NOW), given.mtime, given.mtime_ns);
            effects::change_times(
                &inode,
                &Timestamps { last_access: atime, last_modification: mtime },
            )?;
        }
        shown(&status_of(&inode)?, TIMEOUT_S, out)
    }

    /// A descriptor of an inode: the one of its content, where that is open anyway.
    pub fn inode(&self, node: u64) -> Answer<Inode> {
        match self.inodes.opened(node) {
            Some(file) => Ok(Inode::Open(file)),
            None => Ok(Inode::Named(self.inodes.path(node)?)),
        }
    }

    pub fn get_free_space(&self, out: &mut [u8]) -> Answer<Outcome> {
        let below = fstatvfs(self.inodes.root())?;
        let answer = StatfsOut {
            blocks: below.f_blocks,
            blocks_free: below.f_bfree,
            blocks_available: below.f_bavail,
            files: below.f_files,
            files_free: below.f_ffree,
            block_bytes: below.f_bsize as u32,
            name_bytes_max: below.f_namemax as u32,
            fragment_bytes: below.f_frsize as u32,
            ..StatfsOut::default()
        };
        Ok(Outcome::Answered(put(out, &answer)?))
    }
}

pub fn change_mode(inode: &Inode, mode: Mode) -> Answer<()> {
    match inode {
        Inode::Open(file) => effects::change_mode_of_open(&**file, mode),
        Inode::Named(path) => effects::change_mode(&**path, mode),
    }
}

fn shown(status: &Status, valid_s: u64, out: &mut [u8]) -> Answer<Outcome> {
    let answer =
        AttributesOut { valid_s, attributes: attributes(status), ..AttributesOut::default() };
    Ok(Outcome::Answered(put(out, &answer)?))
}

/// A write by a user without the right to keep them clears set-user-id, and set-group-id where the
/// group may execute.
fn drop_set_ids(file: impl AsFd) -> Answer<()> {
    let mode = u32::from(status_of(&file)?.stx_mode);
    let group = if mode & libc::S_IXGRP != 0 { libc::S_ISGID } else { 0 };
    let kept = mode & !(libc::S_ISUID | group);
    if mode & SET_IDS != 0 && kept != mode {
        effects::change_mode_of_open(file, Mode::from_raw_mode(kept & 0o7777))?;
    }
    Ok(())
}

pub fn has_set_ids(file: impl AsFd) -> Answer<bool> {
    Ok(u32::from(status_of(file)?.stx_mode) & SET_IDS != 0)
}

fn time(is_set: bool, is_now: bool, seconds: i64, nanoseconds: u32) -> Timespec {
    let special = |tv_nsec| Timespec { tv_sec: 0, tv_nsec };
    match (is_set, is_now) {
        (false, _) => special(rustix::fs::UTIME_OMIT),
        (true, true) => special(rustix::fs::UTIME_NOW),
        (true, false) => Timespec { tv_sec: seconds, tv_nsec: nanoseconds.into() },
    }
}

fn extended(status: &Status) -> Statx {
    let time = |of: &rustix::fs::StatxTimestamp| StatxTime {
        seconds: of.tv_sec,
        nanoseconds: of.tv_nsec,
        unused: 0,
    };
    Statx {
        mask: status.stx_mask,
        block_bytes: status.stx_blksize,
        flags: status.stx_attributes.bits(),
        links: status.stx_nlink,
        uid: status.stx_uid,
        gid: status.stx_gid,
        mode: status.stx_mode,
        inode: status.stx_ino,
        size: status.stx_size,
        blocks: shown_blocks(status),
        flags_mask: status.stx_attributes_mask.bits(),
        atime: time(&status.stx_atime),
        btime: time(&status.stx_btime),
        ctime: time(&status.stx_ctime),
        mtime: time(&status.stx_mtime),
        device_major: status.stx_rdev_major,
        device_minor: status.stx_rdev_minor,
        volume_major: status.stx_dev_major,
        volume_minor: status.stx_dev_minor,
        ..Statx::default()
    }
}
