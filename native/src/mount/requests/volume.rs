//! Which requests of a volume's mount native code answers, and which Python has to see.
//!
//! Python says of which inodes it has state (`Inodes::watch`): files that it has open, commits that
//! have begun, files that are filled up. It sees all requests for the content and the attributes of
//! these, and for their last names; native code has nothing of such an inode open. All others are
//! plain files, directories, links, or stubs without a user in Python. Requests for these need no
//! state of Python.
//!
//! The thread that asks here has the turn, even with io_uring. So no inode becomes watched between
//! the question and the answer.

use std::sync::atomic::Ordering;

use crate::mount::inodes::table::{FREED_BYTES_MAX, STATUS_BLOCK_BYTES};
use crate::mount::protocol::abi::{
    IoctlIn, Rename2In, SetattrIn, WRITE_CACHE, WriteIn, control, init, setattr,
};
use crate::mount::protocol::message::{Answer, Failure, Outcome, Request};
use crate::mount::protocol::opcode as op;
use crate::mount::requests::entries::status_of;
use crate::mount::requests::tree::Tree;
use crate::mount::reserved_blocks::Caller;

/// What a rename may be asked for; the kernel tells the caller that there is nothing else.
const RENAMES: u32 = libc::RENAME_NOREPLACE | libc::RENAME_EXCHANGE;

impl Tree {
    /// Answers a request into `out`, or hands it over. `agreed`: the flags of the session.
    pub fn answer_of_volume(
        &self,
        request: &Request,
        agreed: u64,
        out: &mut [u8],
    ) -> Answer<Outcome> {
        self.refuse_base_name(request)?;
        if self.is_pythons(request, agreed)? {
            return Ok(Outcome::HandedOver);
        }
        self.change(request, || self.answer_own(request, agreed, out))
    }

    /// Makes the change that a request asks for without blocks that are not the caller's to have.
    pub fn change(
        &self,
        request: &Request,
        mut step: impl FnMut() -> Answer<Outcome>,
    ) -> Answer<Outcome> {
        match self.reserved_blocks.get().filter(|_| op::route(request.header.opcode).takes_blocks) {
            Some(blocks) => blocks.change(step, || self.caller_of(request)),
            None => step(),
        }
    }

    fn caller_of(&self, request: &Request) -> Caller {
        let header = &request.header;
        let is_mapping = header.opcode == op::WRITE
            && request.part::<WriteIn>().is_ok_and(|given| given.write_flags & WRITE_CACHE != 0);
        if is_mapping {
            self.mapping_of(header.node)
        } else {
            Caller::Thread(header.pid, header.uid)
        }
    }

    /// The caller where the kernel writes what a mapping of an inode has changed.
    pub fn mapping_of(&self, node: u64) -> Caller {
        let status = self.inode(node).and_then(status_of);
        status.map_or(Caller::Thread(0, u32::MAX), |status| {
            Caller::Mapping(status.stx_uid, status.stx_mode.into())
        })
    }

    fn answer_own(&self, request: &Request, agreed: u64, out: &mut [u8]) -> Answer<Outcome> {
        match request.header.opcode {
            op::WRITE => self.write_at_once(request, agreed, out),
            op::COPY_FILE_RANGE => self.copy_at_once(request, out, false),
            op::COPY_FILE_RANGE_64 => self.copy_at_once(request, out, true),
            // Programs ask whether a file is a terminal.
            op::IOCTL => Err(Failure(libc::ENOTTY)),
            _ => self.answer_but_data(request, out),
        }
    }

    /// Whether a request needs state that is Python's.
    fn is_pythons(&self, request: &Request, agreed: u64) -> Answer<bool> {
        let node = request.header.node;
        Ok(match request.header.opcode {
            op::CREATE | op::TMPFILE => self.files_are_delayed.load(Ordering::Relaxed),
            op::LINK | op::UNLINK | op::RENAME => self.names_are_noted.load(Ordering::Relaxed),
            op::RENAME2 => {
                let given: Rename2In = request.part()?;
                self.names_are_noted.load(Ordering::Relaxed) || given.flags & !RENAMES != 0
            }
            op::SETATTR => {
                let given: SetattrIn = request.part()?;
                self.inodes.watched.has(node)
                    || given.valid & setattr::SIZE != 0
                        && !self.cuts_at_once(node, &given, agreed)?
            }
            op::SETXATTR | op::REMOVEXATTR | op::WRITE => self.inodes.watched.has(node),
            op::IOCTL => control::FLAGS.contains(&request.part::<IoctlIn>()?.command),
            // `session/shared.rs` has taken the reads, searches and syncs that need no Python.
            op::READ | op::LSEEK | op::FSYNC | op::FSYNCDIR | op::FALLOCATE => true,
            _ => false,
        })
    }

    /// Whether a file gets its new length without the store, and without a wait for the disk.
    fn cuts_at_once(&self, node: u64, given: &SetattrIn, agreed: u64) -> Answer<bool> {
        // An older kernel does not say whether set-user-id and set-group-id are to go.
        if agreed & init::HANDLE_KILLPRIV_V2 == 0 {
            return Ok(false);
        }
        let Some(file) = self.plain(node, true) else { return Ok(false) };
        let status = status_of(&*file)?;
        let cut_bytes = status.stx_size.saturating_sub(given.size);
        Ok(cut_bytes.min(status.stx_blocks * STATUS_BLOCK_BYTES) <= FREED_BYTES_MAX)
    }
}
