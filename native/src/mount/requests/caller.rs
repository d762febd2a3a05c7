//! Making files as their callers.
//!
//! A file that is made belongs to the user that the thread counts as, and its mode loses the bits of
//! the thread's umask, unless the directory has a default ACL: the file system below sees to both, in
//! the one step that makes the file. So a thread takes on the caller's user, group and umask before
//! it makes something. It keeps its rights (`SECBIT_NO_SETUID_FIXUP`): whether the caller may is
//! decided by the kernel before the request. A thread stays what it has become until the next file
//! is made; nothing else asks for it.

use rustix::fs::Mode;
use rustix::thread::{
    CapabilitiesSecureBits, UnshareFlags, capabilities_secure_bits, set_capabilities_secure_bits,
    unshare_unsafe,
};

use crate::mount::protocol::abi::InHeader;
use crate::mount::protocol::message::Answer;

/// What the thread counts as when it makes files. Belongs to one thread.
pub struct Caller {
    /// None of a process without the right to be others: all that it makes is its own.
    owner: Option<(u32, u32)>,
    umask: u32,
}

impl Caller {
    /// Prepares the calling thread, for the rest of its life.
    pub fn of_this_thread() -> Answer<Caller> {
        // SAFETY: only this thread's working directory, root and umask become its own.
        unsafe { unshare_unsafe(UnshareFlags::FS)? };
        let owner = if rustix::process::geteuid().is_root() {
            let bits = capabilities_secure_bits()? | CapabilitiesSecureBits::NO_SETUID_FIXUP;
            set_capabilities_secure_bits(bits)?;
            Some((0, 0))
        } else {
            None
        };
        rustix::process::umask(Mode::empty());
        Ok(Caller { owner, umask: 0 })
    }

    /// Becomes the caller of a request, with its umask.
    pub fn become_caller(&mut self, header: &InHeader, umask: u32) {
        if self.umask != umask {
            rustix::process::umask(Mode::from_raw_mode(umask));
            self.umask = umask;
        }
        let Some((uid, gid)) = &mut self.owner else { return };
        // -1 of an id that has no number here: then the file is root's.
        let known = |id: u32| if id == u32::MAX { 0 } else { id };
        if *gid != known(header.gid) {
            *gid = known(header.gid);
            // SAFETY: takes no pointers; of this thread only.
            unsafe { libc::syscall(libc::SYS_setfsgid, *gid) };
        }
        if *uid != known(header.uid) {
            *uid = known(header.uid);
            // SAFETY: as above.
            unsafe { libc::syscall(libc::SYS_setfsuid, *uid) };
        }
    }
}
