//! Listings of directories.
//!
//! A directory is opened for each part of its listing: no message says when a listing begins or
//! ends. The offsets are those of the file system below, so that any request can go on where
//! another has stopped, as an NFS server does.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::fs::{Mode, SeekFrom, openat};
use zerocopy::{FromBytes, IntoBytes};

use crate::mount::protocol::abi::{Dirent, EntryOut, ReadIn};
use crate::mount::protocol::message::{Answer, Failure, Outcome, Request};
use crate::mount::requests::names::DIRECTORY_FLAGS;
use crate::mount::requests::tree::Tree;
use crate::system::files::{Dirent as Named, next_entries};

const ALIGNMENT: usize = 8;
/// Bytes of names that are read for each byte of room: an entry with its attributes takes at least
/// six times as much.
const ROOM_PER_NAME_BYTE: usize = 6;
const NAMES_BYTES_MIN: usize = 1024;

impl Tree {
    pub fn list(&self, request: &Request, out: &mut [u8], plus: bool) -> Answer<Outcome> {
        let given: ReadIn = request.part()?;
        let room = out.get_mut(..given.size as usize).ok_or(Failure(libc::EINVAL))?;
        let since = self.inodes.changes.now();
        let parent = self.inodes.path(request.header.node)?;
        let directory: OwnedFd = openat(&*parent, c".", DIRECTORY_FLAGS, Mode::empty())?;
        if given.offset != 0 {
            rustix::fs::seek(&directory, SeekFrom::Start(given.offset))?;
        }
        let names_bytes = if plus { room.len() / ROOM_PER_NAME_BYTE } else { room.len() };
        let mut names = vec![0; names_bytes.max(NAMES_BYTES_MIN)];
        let mut part = Part { room, end: 0 };
        loop {
            let entries = match next_entries(directory.as_raw_fd(), &mut names) {
                // With an error the kernel would not get the entries that are in the answer
                // already, and never forget them. It gets these first, and then the error.
                Err(_) if part.end > 0 => break,
                result => result?,
            };
            if entries.is_empty() {
                break;
            }
            for entry in &entries {
                if !self.put_entry(&directory, entry, plus, &mut part)? {
                    return Ok(self.listed(part, plus, since));
                }
            }
        }
        Ok(self.listed(part, plus, since))
    }

    /// The answer with a part of a listing. Attributes that were taken after `since` have the kernel
    /// keep them only where the inode has not changed.
    fn listed(&self, part: Part, plus: bool, since: u64) -> Outcome {
        let mut at = 0;
        while plus && at < part.end && self.inodes.changes.now() != since {
            let bytes = &part.room[at..part.end];
            let Ok((mut entry, rest)) = EntryOut::read_from_prefix(bytes) else { break };
            let Ok((dirent, _)) = Dirent::read_from_prefix(rest) else { break };
            if entry.node != 0 && self.inodes.changes.has(entry.node, since) {
                entry.attributes_valid_s = 0;
                let _ = entry.write_to_prefix(&mut part.room[at..]); // its own place
            }
            let bytes = size_of::<EntryOut>() + size_of::<Dirent>() + dirent.name_bytes as usize;
            at += bytes.next_multiple_of(ALIGNMENT);
        }
        Outcome::Answered(part.end)
    }
}

impl Tree {
    /// Puts one entry into a part of a listing; false where the part is full.
    fn put_entry(
        &self,
        directory: impl AsFd,
        entry: &Named,
        plus: bool,
        part: &mut Part,
    ) -> Answer<bool> {
        let head = if plus { size_of::<EntryOut>() } else { 0 };
        if !part.has_room(head + size_of::<Dirent>() + entry.name.count_bytes()) {
            return Ok(false);
        }
        let mut known = EntryOut::default();
        // Without a number the kernel takes the name alone.
        if plus && entry.name.as_c_str() != c"." && entry.name.as_c_str() != c".." {
            known = match self.find(directory, &entry.name) {
                Ok(Some(found)) => self.remembered(found),
                // A mounted file system, or a subvolume: not part of the volume.
                Ok(None) | Err(Failure(libc::EXDEV)) => return Ok(true),
                Err(_) => known,
            };
        }
        let name = entry.name.as_bytes();
        let dirent = Dirent {
            inode: if known.node == 0 { entry.inode } else { known.attributes.inode },
            offset: entry.next as u64,
            name_bytes: name.len() as u32,
            kind: entry.kind.into(),
        };
        part.append(&known.as_bytes()[..head]);
        part.append(dirent.as_bytes());
        part.append(name);
        part.align();
        Ok(true)
    }
}

/// A part of a listing, in the kernel's form.
struct Part<'a> {
    room: &'a mut [u8],
    end: usize,
}

impl Part<'_> {
    /// Whether an entry of so many bytes fits.
    fn has_room(&self, bytes: usize) -> bool {
        self.end + bytes.next_multiple_of(ALIGNMENT) <= self.room.len()
    }

    fn append(&mut self, bytes: &[u8]) {
        self.room[self.end..self.end + bytes.len()].copy_from_slice(bytes);
        self.end += bytes.len();
    }

    fn align(&mut self) {
        let end = self.end.next_multiple_of(ALIGNMENT);
        self.room[self.end..end].fill(0);
        self.end = end;
    }
}
