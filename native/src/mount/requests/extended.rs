//! Requests for extended attributes.

use std::ffi::CStr;
use std::os::fd::AsRawFd;

use rustix::fs::{Mode, fgetxattr, flistxattr, getxattr, listxattr};
use rustix::io::Errno;

use crate::mount::callers::user_of;
use crate::mount::inodes::pins::SUPERUSER;
use crate::mount::inodes::table::proc_path;
use crate::mount::protocol::abi::{GetxattrIn, GetxattrOut, SETXATTR_KILL_SET_GROUP, SetxattrIn};
use crate::mount::protocol::message::{Answer, Failure, Outcome, Request, put};
use crate::mount::protocol::opcode::SHORT_SETXATTR_BYTES;
use crate::mount::requests::attributes::{Inode, change_mode};
use crate::mount::requests::entries::status_of;
use crate::mount::requests::{effects, tree::Tree};
use crate::system::files::CAPABILITY;

/// The longest value or list of names that Linux has.
const VALUE_BYTES_MAX: usize = 64 << 10;
/// What is longer is asked for twice: the kernel clears as much memory as there is room for.
const USUAL_BYTES: usize = 1 << 10;

/// Attributes that Python makes when it is asked for them: a file's digest, what was deleted.
const MADE: &[u8] = b"user.dedupd.";
/// A digest of a file that the store vouches for. It is in no list of attributes.
const CONTENT: &CStr = c"user.dedupd.content";
/// Who may use a file beside owner, group and others.
const ACCESS_ACL: &CStr = c"system.posix_acl_access";
const SECURITY: &[u8] = b"security.";
const TRUSTED: &[u8] = b"trusted.";

fn is_made(name: &CStr) -> bool {
    name.to_bytes().starts_with(MADE)
}

impl Tree {
    pub fn get_attribute(&self, request: &Request, out: &mut [u8]) -> Answer<Outcome> {
        let (given, name): (GetxattrIn, _) = (request.part()?, request.name()?);
        if self.is_reserved(name) {
            return Err(Failure(libc::ENODATA));
        }
        if is_made(name) {
            return Ok(Outcome::HandedOver);
        }
        // Never with less room than that: of a capability the length alone is another one.
        let inode = self.inode(request.header.node)?;
        let value = match value_of(&inode, name, &mut out[..USUAL_BYTES]) {
            Err(Errno::RANGE) => value_of(&inode, name, &mut out[..VALUE_BYTES_MAX]),
            result => result,
        };
        match value {
            Ok(length) => sized(given.size, length, out),
            // Programs stop asking a file system that has no labels, and go on asking one that has
            // none for this file.
            Err(Errno::NODATA) if self.has_none(name) => Err(Failure(libc::EOPNOTSUPP)),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether no file has an attribute of this name unless somebody has put it there by hand.
    fn has_none(&self, name: &CStr) -> bool {
        !self.has_labels && name.to_bytes().starts_with(SECURITY) && name != CAPABILITY
    }

    pub fn list_attributes(&self, request: &Request, out: &mut [u8]) -> Answer<Outcome> {
        let given: GetxattrIn = request.part()?;
        let inode = self.inode(request.header.node)?;
        let list = |names: &mut [u8]| match &inode {
            Inode::Open(file) => flistxattr(&**file, names),
            Inode::Named(path) => listxattr(proc_path(path.as_raw_fd()).as_str(), names),
        };
        let (mut usual, mut longest) = ([0; USUAL_BYTES], Vec::new());
        let mut names = &mut usual[..];
        let length = match list(names) {
            Err(Errno::RANGE) => {
                longest.resize(VALUE_BYTES_MAX, 0);
                names = &mut longest[..];
                list(names)?
            }
            result => result?,
        };
        let mut end = 0;
        for name in names[..length].split_inclusive(|byte| *byte == 0) {
            let is_hidden = CStr::from_bytes_with_nul(name)
                .is_ok_and(|name| self.is_reserved(name) || name == CONTENT)
                || name.starts_with(TRUSTED) && user_of(&request.header) != SUPERUSER;
            if !is_hidden {
                out[end..end + name.len()].copy_from_slice(name);
                end += name.len();
            }
        }
        sized(given.size, end, out)
    }

    pub fn set_attribute(&self, request: &Request) -> Answer<Outcome> {
        let NewAttribute { name, value, flags, takes_set_group } = NewAttribute::of(request)?;
        if self.is_reserved(name) {
            return Err(Failure(libc::EPERM));
        }
        if is_made(name) {
            return Ok(Outcome::HandedOver);
        }
        let inode = self.inode(request.header.node)?;
        match &inode {
            Inode::Open(file) => effects::set_attribute_of_open(&**file, name, value, flags)?,
            Inode::Named(path) => effects::set_attribute(&**path, name, value, flags)?,
        }
        if takes_set_group {
            let mode = u32::from(status_of(&inode)?.stx_mode);
            if mode & libc::S_ISGID != 0 {
                change_mode(&inode, Mode::from_raw_mode(mode & 0o7777 & !libc::S_ISGID))?;
            }
        }
        Ok(Outcome::Answered(0))
    }

    pub fn remove_attribute(&self, request: &Request) -> Answer<Outcome> {
        let name = request.name()?;
        if self.is_reserved(name) {
            return Err(Failure(libc::EPERM));
        }
        if is_made(name) {
            return Ok(Outcome::HandedOver);
        }
        let inode = self.inodes.path(request.header.node)?;
        effects::remove_attribute(&*inode, name)?;
        Ok(Outcome::Answered(0))
    }
}

/// What a request gives an inode.
pub struct NewAttribute<'a> {
    pub name: &'a CStr,
    pub value: &'a [u8],
    pub flags: u32,
    /// It is an ACL that takes the set-group-id bit: set by somebody who is not in the group. An older
    /// kernel does not say so; then the bit stays for root only.
    pub takes_set_group: bool,
}

impl<'a> NewAttribute<'a> {
    pub fn of(request: &Request<'a>) -> Answer<NewAttribute<'a>> {
        let (given, name): (SetxattrIn, _) = (request.part_or_older(), request.name()?);
        let value = request.rest.get(name.count_bytes() + 1..);
        let value = value.and_then(|rest| rest.get(..given.size as usize));
        let says_so = request.fixed.len() > SHORT_SETXATTR_BYTES;
        let takes_it = || match says_so {
            true => given.setxattr_flags & SETXATTR_KILL_SET_GROUP != 0,
            false => user_of(&request.header) != SUPERUSER,
        };
        Ok(NewAttribute {
            name,
            value: value.ok_or(Failure(libc::EINVAL))?,
            flags: given.flags,
            takes_set_group: name == ACCESS_ACL && takes_it(),
        })
    }
}

fn value_of(inode: &Inode, name: &CStr, room: &mut [u8]) -> Result<usize, Errno> {
    match inode {
        Inode::Open(file) => fgetxattr(&**file, name, room),
        Inode::Named(path) => getxattr(proc_path(path.as_raw_fd()).as_str(), name, room),
    }
}

/// The first `length` bytes of `out`, or only their number where the kernel asks for that.
fn sized(room: u32, length: usize, out: &mut [u8]) -> Answer<Outcome> {
    if room == 0 {
        let answer = GetxattrOut { size: length as u32, unused: 0 };
        return Ok(Outcome::Answered(put(out, &answer)?));
    }
    if length > room as usize {
        return Err(Failure(libc::ERANGE));
    }
    Ok(Outcome::Answered(length))
}
