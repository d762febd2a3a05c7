//! What users ask to be done to their own files: all calls of requests that change the file system.
//!
//! Steps of a file on its way to a stub and back are not among them; those go through
//! `system::effects`.

use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, OFlags, RenameFlags, Timestamps, Uid, XattrFlags,
};

use crate::mount::inodes::table::proc_path;
use crate::mount::protocol::message::{Answer, Failure};

/// Makes a file and opens it for reading and writing.
pub fn create(parent: impl AsFd, name: &CStr, mode: Mode) -> Answer<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(parent, name, flags, mode)?)
}

/// Makes a file without a name in a directory and opens it for reading and writing.
pub fn create_nameless(parent: impl AsFd, mode: Mode) -> Answer<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(parent, c".", flags, mode)?)
}

/// `mode`: with the kind of the file.
pub fn make_node(parent: impl AsFd, name: &CStr, mode: u32, device: u32) -> Answer<()> {
    // The kernel's 32 bits: 12 of the major number between 8 and 12 of the minor one.
    let (major, minor) = ((device & 0xf_ff00) >> 8, (device & 0xff) | ((device >> 12) & 0xf_ff00));
    let (kind, mode) = (FileType::from_raw_mode(mode), Mode::from_raw_mode(mode));
    Ok(rustix::fs::mknodat(parent, name, kind, mode, rustix::fs::makedev(major, minor))?)
}

pub fn make_directory(parent: impl AsFd, name: &CStr, mode: u32) -> Answer<()> {
    Ok(rustix::fs::mkdirat(parent, name, Mode::from_raw_mode(mode))?)
}

pub fn make_link(parent: impl AsFd, name: &CStr, target: &CStr) -> Answer<()> {
    Ok(rustix::fs::symlinkat(target, parent, name)?)
}

/// Gives an inode one more name.
pub fn add_name(inode: impl AsFd, parent: impl AsFd, name: &CStr) -> Answer<()> {
    let link = proc_path(inode.as_fd().as_raw_fd());
    Ok(rustix::fs::linkat(CWD, link.as_str(), parent, name, AtFlags::SYMLINK_FOLLOW)?)
}

pub fn remove_name(parent: impl AsFd, name: &CStr) -> Answer<()> {
    Ok(rustix::fs::unlinkat(parent, name, AtFlags::empty())?)
}

pub fn remove_directory(parent: impl AsFd, name: &CStr) -> Answer<()> {
    Ok(rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR)?)
}

pub fn rename(
    old_parent: impl AsFd,
    old: &CStr,
    new_parent: impl AsFd,
    new: &CStr,
    flags: RenameFlags,
) -> Answer<()> {
    Ok(rustix::fs::renameat_with(old_parent, old, new_parent, new, flags)?)
}

/// Changes the owner or the group, or both. Fails with EINVAL for the number that no user and no group
/// has: the file system below would take it for "unchanged".
pub fn change_owner(inode: impl AsFd, uid: Option<u32>, gid: Option<u32>) -> Answer<()> {
    if [uid, gid].contains(&Some(u32::MAX)) {
        return Err(Failure(libc::EINVAL));
    }
    let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
    Ok(rustix::fs::chownat(inode, c"", uid, gid, AtFlags::EMPTY_PATH)?)
}

pub fn change_mode(inode: impl AsFd, mode: Mode) -> Answer<()> {
    let link = proc_path(inode.as_fd().as_raw_fd());
    Ok(rustix::fs::chmodat(CWD, link.as_str(), mode, AtFlags::empty())?)
}

pub fn change_mode_of_open(file: impl AsFd, mode: Mode) -> Answer<()> {
    Ok(rustix::fs::fchmod(file, mode)?)
}

pub fn change_times(inode: impl AsFd, times: &Timestamps) -> Answer<()> {
    Ok(rustix::fs::utimensat(inode, c"", times, AtFlags::EMPTY_PATH)?)
}

pub fn set_length(file: impl AsFd, bytes: u64) -> Answer<()> {
    Ok(rustix::fs::ftruncate(file, bytes)?)
}

/// Writes all of `data`, or as much as fits.
pub fn write(file: impl AsFd, data: &[u8], offset: u64) -> Answer<usize> {
    let mut done = 0;
    while done < data.len() {
        match rustix::io::pwrite(&file, &data[done..], offset + done as u64) {
            Ok(count) => done += count,
            Err(rustix::io::Errno::INTR) => {}
            Err(_) if done > 0 => break,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(done)
}

pub fn sync(file: impl AsFd, data_only: bool) -> Answer<()> {
    let done = if data_only { rustix::fs::fdatasync(file) } else { rustix::fs::fsync(file) };
    Ok(done?)
}

pub fn copy_range(
    from: impl AsFd,
    mut from_offset: u64,
    to: impl AsFd,
    mut to_offset: u64,
    length: usize,
) -> Answer<usize> {
    let (start, end) = (Some(&mut from_offset), Some(&mut to_offset));
    Ok(rustix::fs::copy_file_range(from, start, to, end, length)?)
}

pub fn set_attribute(inode: impl AsFd, name: &CStr, value: &[u8], flags: u32) -> Answer<()> {
    let link = proc_path(inode.as_fd().as_raw_fd());
    let flags = XattrFlags::from_bits_retain(flags);
    Ok(rustix::fs::setxattr(link.as_str(), name, value, flags)?)
}

pub fn set_attribute_of_open(file: impl AsFd, name: &CStr, value: &[u8], flags: u32) -> Answer<()> {
    let flags = XattrFlags::from_bits_retain(flags);
    Ok(rustix::fs::fsetxattr(file, name, value, flags)?)
}

pub fn remove_attribute(inode: impl AsFd, name: &CStr) -> Answer<()> {
    let link = proc_path(inode.as_fd().as_raw_fd());
    Ok(rustix::fs::removexattr(link.as_str(), name)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_that_no_user_is_is_refused() {
        let file = std::fs::File::open("/dev/null").unwrap();
        for (uid, gid) in
            [(Some(u32::MAX), None), (None, Some(u32::MAX)), (Some(0), Some(u32::MAX))]
        {
            assert_eq!(change_owner(&file, uid, gid), Err(Failure(libc::EINVAL)));
        }
    }
}
