//! Which code answers which request.

use std::sync::atomic::{AtomicU64, Ordering};

use zerocopy::FromBytes;

use crate::mount::protocol::abi::{BatchForgetIn, ForgetIn, ForgetOne};
use crate::mount::protocol::message::{Answer, Failure, Outcome, Request};
use crate::mount::protocol::opcode::{self as op, COUNT};
use crate::mount::requests::tree::Tree;

/// How many requests of each kind have come since the mount began.
pub struct Counts([AtomicU64; COUNT]);

impl Default for Counts {
    fn default() -> Counts {
        Counts([const { AtomicU64::new(0) }; COUNT])
    }
}

impl Counts {
    pub fn add(&self, opcode: u32) {
        let place =
            usize::try_from(opcode).ok().and_then(|at| self.0.get(at)).unwrap_or(&self.0[0]);
        place.fetch_add(1, Ordering::Relaxed);
    }

    /// By number of the kind; the first is of those with no number here.
    pub fn all(&self) -> [u64; COUNT] {
        std::array::from_fn(|at| self.0[at].load(Ordering::Relaxed))
    }
}

impl Tree {
    /// Answers a request into `out`, which has room for the longest answer, or hands it over: for one
    /// that is about the bytes of a file, or about its flags.
    pub fn answer_but_data(&self, request: &Request, out: &mut [u8]) -> Answer<Outcome> {
        match request.header.opcode {
            op::SETATTR => self.set_attributes(request, out),
            op::SYMLINK => self.make_link(request, out),
            op::MKNOD => self.make_node(request, out),
            op::MKDIR => self.make_directory(request, out),
            op::CREATE => self.create(request, out),
            op::TMPFILE => self.create_nameless(request, out),
            op::LINK => self.add_name(request, out),
            op::UNLINK => self.remove_name(request),
            op::RMDIR => self.remove_directory(request),
            op::RENAME => self.rename(request),
            op::RENAME2 => self.rename_with(request),
            op::SETXATTR => self.set_attribute(request),
            op::REMOVEXATTR => self.remove_attribute(request),
            _ => self.answer_beside(request, out),
        }
    }

    /// Answers a request in any thread, or hands it over: for one that needs more than the table of
    /// inodes, or changes anything below.
    pub fn answer_beside(&self, request: &Request, out: &mut [u8]) -> Answer<Outcome> {
        match request.header.opcode {
            op::LOOKUP => self.look_up(request, out),
            op::FORGET => self.forget(request),
            op::BATCH_FORGET => self.forget_many(request),
            op::GETATTR => self.get_attributes(request, out),
            op::STATX => self.get_extended(request, out),
            op::READLINK => self.read_link(request, out),
            op::READDIR => self.list(request, out, false),
            op::READDIRPLUS => self.list(request, out, true),
            op::GETXATTR => self.get_attribute(request, out),
            op::LISTXATTR => self.list_attributes(request, out),
            op::STATFS => self.get_free_space(out),
            // The kernel sends no more of them. It has opened the file by itself, keeps what it reads
            // there, and tells nobody.
            op::OPEN | op::OPENDIR | op::FLUSH | op::ACCESS => Err(Failure(libc::ENOSYS)),
            // Nor these: no request is given up half way.
            op::INTERRUPT => Err(Failure(libc::ENOSYS)),
            // Of files that were open before the first open was answered so.
            op::RELEASE | op::RELEASEDIR => Ok(Outcome::Answered(0)),
            _ => Ok(Outcome::HandedOver),
        }
    }

    fn forget(&self, request: &Request) -> Answer<Outcome> {
        let given: ForgetIn = request.part()?;
        self.inodes.forget(request.header.node, given.lookups);
        Ok(Outcome::Silent)
    }

    fn forget_many(&self, request: &Request) -> Answer<Outcome> {
        let _: BatchForgetIn = request.part()?;
        for one in request.rest.chunks_exact(size_of::<ForgetOne>()) {
            if let Ok(one) = ForgetOne::read_from_bytes(one) {
                self.inodes.forget(one.node, one.lookups);
            }
        }
        Ok(Outcome::Silent)
    }
}
