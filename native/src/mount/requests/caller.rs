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
use crate::mount::protocol::message::{Answer, Failure};

/// What the thread counts as when it makes files. Belongs to one thread.
#[derive(Default)]
pub struct Caller(Option<Role>);

struct Role {
    /// None of a process without the right to be others: all that it makes is its own.
    owner: Option<(u32, u32)>,
    umask: u32,
}

impl Caller {
    /// Becomes the caller of a request, with its umask. Fails with EPERM where root lacks the rights
    /// to become others: nothing must be made that would be root's.
    pub fn become_caller(&mut self, header: &InHeader, umask: u32) -> Answer<()> {
        let role = match &mut self.0 {
            Some(role) => role,
            // A thread that makes nothing needs no rights for it.
            none => none.insert(Role::of_this_thread()?),
        };
        if role.umask != umask {
            rustix::process::umask(Mode::from_raw_mode(umask));
            role.umask = umask;
        }
        let Some((uid, gid)) = &mut role.owner else { return Ok(()) };
        // An id that has no number here: then the file is root's.
        let known = |id: u32| if id == u32::MAX { 0 } else { id };
        change(libc::SYS_setfsgid, gid, known(header.gid))?;
        change(libc::SYS_setfsuid, uid, known(header.uid))
    }
}

impl Role {
    /// Prepares the calling thread, for the rest of its life.
    fn of_this_thread() -> Answer<Role> {
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
        Ok(Role { owner, umask: 0 })
    }
}

/// Changes the user or the group that the thread counts as.
fn change(call: libc::c_long, current: &mut u32, id: u32) -> Answer<()> {
    if *current == id {
        return Ok(());
    }
    // SAFETY: takes no pointers, and concerns this thread only.
    let set = |id: u32| unsafe { libc::syscall(call, id) };
    set(id);
    // The call does not fail. It tells what was before, also if there is no such id.
    *current = set(u32::MAX) as u32;
    if *current == id { Ok(()) } else { Err(Failure(libc::EPERM)) }
}
