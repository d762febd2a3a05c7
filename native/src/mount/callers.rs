//! The users who send requests.
//!
//! If the mount allows idmapped mounts, the kernel names the user only for a new inode, as the
//! idmapped mount maps the user. All other requests have an "invalid" id, and the number of the
//! thread. `/proc` has the user of that thread.

use std::fs::File;
use std::io::Read;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use zerocopy::FromBytes;

use crate::mount::protocol::abi::InHeader;
use crate::mount::protocol::opcode as op;
use crate::threads::lock::locked;

/// Replaces the number of the user if the kernel does not name the user.
const UNTOLD: u32 = u32::MAX;

/// How long the user of a thread is cached, for the shares of users. A look-up takes about 10 µs.
/// If a thread of a server acts for many users (setfsuid), a request may count for an earlier user
/// of that thread.
const KNOWN_FOR: Duration = Duration::from_secs(1);
/// Number of cached threads, by the last bits of their numbers.
const PLACES: usize = 64;

/// The user whose rights apply to a request: UNTOLD if neither the kernel nor `/proc` names one.
pub fn user_of(header: &InHeader) -> u32 {
    if header.uid != UNTOLD {
        return header.uid;
    }
    user_of_thread(header.pid).unwrap_or(UNTOLD)
}

fn user_of_thread(number: u32) -> Option<u32> {
    // The user is in the first 512 bytes, because the name of a thread has at most 64 bytes.
    let mut status = Vec::with_capacity(512);
    let file = File::open(format!("/proc/{number}/status")).ok()?;
    file.take(512).read_to_end(&mut status).ok()?;
    user_in(&String::from_utf8_lossy(&status))
}

/// Returns whether a thread uses files as a user who `passes`, or as a member of `group`, except
/// group 0. Returns false if the thread has ended, or if `/proc` does not show it.
pub fn is_user_or_member(number: u32, passes: impl Fn(u32) -> bool, group: u32) -> bool {
    let Ok(status) = std::fs::read(format!("/proc/{number}/status")) else { return false };
    let status = String::from_utf8_lossy(&status);
    user_in(&status).is_some_and(passes) || group != 0 && groups_in(&status).any(|id| id == group)
}

/// The group of a thread for file systems, and its supplementary groups.
fn groups_in(status: &str) -> impl Iterator<Item = u32> {
    let ids = |name| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap_or_default().split_whitespace().filter_map(|id| id.parse().ok())
    };
    ids("Gid:").skip(3).chain(ids("Groups:"))
}

/// Reads the text of `/proc/PID/status`: the last of four numbers is the user for file systems.
fn user_in(status: &str) -> Option<u32> {
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    line.split_whitespace().nth(3)?.parse().ok()
}

struct KnownCaller {
    thread: u32,
    uid: u32,
    end: Instant,
}

/// The threads that recently sent requests.
pub struct Callers([Mutex<Option<KnownCaller>>; PLACES]);

impl Default for Callers {
    fn default() -> Callers {
        Callers([const { Mutex::new(None) }; PLACES])
    }
}

impl Callers {
    /// The user whose share a request uses. Not suitable for rights.
    pub fn share_of(&self, header: &InHeader) -> u32 {
        if header.uid != UNTOLD {
            return header.uid;
        }
        let mut place = locked(&self.0[header.pid as usize % PLACES]);
        let now = Instant::now();
        match &*place {
            Some(known) if known.thread == header.pid && now < known.end => known.uid,
            _ => {
                let uid = user_of(header);
                *place = Some(KnownCaller { thread: header.pid, uid, end: now + KNOWN_FOR });
                uid
            }
        }
    }

    /// Stores the user in a message for Python if the kernel has not named one.
    pub fn tell(&self, message: &mut [u8]) {
        let Ok((header, _)) = InHeader::mut_from_prefix(message) else { return };
        let by_rights = op::route(header.opcode).is_by_rights;
        header.uid = if by_rights { user_of(header) } else { self.share_of(header) };
    }
}

#[cfg(test)]
mod tests {
    use zerocopy::IntoBytes;

    use super::*;

    fn header(uid: u32, pid: u32) -> InHeader {
        InHeader { uid, gid: uid, pid, ..InHeader::default() }
    }

    #[test]
    fn a_thread_uses_files_as_one_user() {
        let status = "Name:\tUid:\\n1\nPid:\t7\nUid:\t1\t2\t3\t4\nGid:\t5\t6\t7\t8\n";
        assert_eq!(user_in(status), Some(4));
        for cut in ["", "Uid:\t1\t2\t3", "Gid:\t1\t2\t3\t4\n"] {
            assert_eq!(user_in(cut), None);
        }
    }

    #[test]
    fn groups_are_those_for_files() {
        let status = "Name:\t1\nGid:\t5\t6\t7\t8\nFDSize:\t64\nGroups:\t20 30 \nNStgid:\t9\n";
        assert_eq!(groups_in(status).collect::<Vec<_>>(), [8, 20, 30]);
        assert_eq!(groups_in("Gid:\t5\t6\t7\nGroups:\t\n").count(), 0);
        let own = rustix::process::getpid().as_raw_nonzero().get() as u32;
        assert!(is_user_or_member(own, |_| true, 0));
        assert!(!is_user_or_member(own, |_| false, 0));
        assert!(!is_user_or_member(u32::MAX, |_| true, 0));
    }

    #[test]
    fn who_is_not_told_is_looked_up() {
        assert_eq!(user_of(&header(1000, 1)), 1000);
        let own = rustix::process::getpid().as_raw_nonzero().get() as u32;
        let uid = rustix::process::getuid().as_raw();
        assert_eq!(user_of(&header(UNTOLD, own)), uid);
        assert_eq!(user_of(&header(UNTOLD, 0)), UNTOLD);
        let callers = Callers::default();
        for opcode in [op::SETATTR, op::WRITE] {
            let mut message = InHeader { opcode, ..header(UNTOLD, own) }.as_bytes().to_vec();
            callers.tell(&mut message);
            assert_eq!(InHeader::read_from_bytes(&message).unwrap().uid, uid);
        }
        // The thread may have changed its user, which immediately counts for rights.
        let end = Instant::now() + KNOWN_FOR;
        *locked(&callers.0[own as usize % PLACES]) =
            Some(KnownCaller { thread: own, uid: uid + 1, end });
        for (opcode, told) in
            [(op::WRITE, uid + 1), (op::FALLOCATE, uid), (op::COPY_FILE_RANGE, uid)]
        {
            let mut message = InHeader { opcode, ..header(UNTOLD, own) }.as_bytes().to_vec();
            callers.tell(&mut message);
            assert_eq!(InHeader::read_from_bytes(&message).unwrap().uid, told);
        }
        *locked(&callers.0[own as usize % PLACES]) = None;
        assert_eq!(callers.share_of(&header(1000, own)), 1000);
        for _ in 0..2 {
            assert_eq!(callers.share_of(&header(UNTOLD, own)), uid);
            assert_eq!(callers.share_of(&header(UNTOLD, 0)), UNTOLD);
        }
    }
}
