//! Blocks that the file system below reserves for root, kept from the other users of the mount.
//!
//! ext4 checks the user of the thread that allocates (`ext4_has_free_clusters`), and threads of
//! this process belong to root. So each change of a user is made as a user without a right to these
//! blocks, with the capabilities of the process: only the space differs. The caller matters only if
//! no other space is free. Then the change is made again, if the caller may use the reserved
//! blocks.

use crate::mount::callers::is_user_or_member;
use crate::mount::protocol::message::{Answer, Failure};
use crate::system::file_user::become_user;

/// The users of the reserved blocks of a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReservedBlocks {
    /// The user who may use them, besides root.
    pub user: u32,
    /// The group that may use them; 0 means no group.
    pub group: u32,
    /// A user who may not use them.
    pub other: u32,
}

/// The caller of a change.
#[derive(Clone, Copy, Debug)]
pub enum Caller {
    /// The number of a thread, and its user according to the kernel. The number is 0 if the kernel
    /// does not know the thread.
    Thread(u32, u32),
    /// Unknown: the kernel writes the changes of a mapping. The file has this owner and mode.
    Mapping(u32, u32),
}

impl ReservedBlocks {
    /// Makes a change for `caller`. A `step` that fails for lack of space must change nothing.
    pub fn change<T>(
        &self,
        mut step: impl FnMut() -> Answer<T>,
        caller: impl FnOnce() -> Caller,
    ) -> Answer<T> {
        become_user(self.other);
        match step() {
            Err(Failure(libc::ENOSPC)) if self.are_for(caller()) => {
                become_user(self.user);
                step()
            }
            result => result,
        }
    }

    /// Returns whether a caller may use the blocks.
    pub fn are_for(&self, caller: Caller) -> bool {
        match caller {
            Caller::Thread(0, uid) => self.are_of(uid),
            // The user of the request does not count: an idmapped mount may have replaced it.
            Caller::Thread(number, _) => {
                is_user_or_member(number, |uid| self.are_of(uid), self.group)
            }
            // If other users may write to the file, the change may be theirs.
            Caller::Mapping(owner, mode) => {
                self.are_of(owner) && mode & (libc::S_IWGRP | libc::S_IWOTH) == 0
            }
        }
    }

    fn are_of(&self, uid: u32) -> bool {
        uid == 0 || uid == self.user
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCKS: ReservedBlocks = ReservedBlocks { user: 7, group: 0, other: 65_533 };

    #[test]
    fn root_and_the_user_of_the_file_system_may_have_them() {
        let own = rustix::process::getpid().as_raw_nonzero().get() as u32;
        let uid = rustix::process::getuid().as_raw();
        for uid in [0, 7] {
            assert!(BLOCKS.are_for(Caller::Thread(0, uid)));
        }
        assert!(!BLOCKS.are_for(Caller::Thread(0, 8)));
        assert!(!BLOCKS.are_for(Caller::Thread(0, u32::MAX)));
        // The user that an idmapped mount reports does not count.
        assert_eq!(BLOCKS.are_for(Caller::Thread(own, 1000)), uid == 0);
        let group = rustix::process::getgid().as_raw();
        let of_group = ReservedBlocks { user: 7, group, other: 65_533 };
        assert!(uid == 0 || of_group.are_for(Caller::Thread(own, 1000)));
    }

    #[test]
    fn mappings_of_files_that_others_may_write_to_may_not() {
        for (owner, mode, may) in [
            (0, 0o644, true),
            (7, 0o600, true),
            (8, 0o600, false),
            (0, 0o664, false),
            (0, 0o646, false),
        ] {
            assert_eq!(BLOCKS.are_for(Caller::Mapping(owner, 0o100_000 | mode)), may);
        }
    }

    #[test]
    fn a_change_is_made_again_for_those_who_may_only() {
        let full = Err(Failure(libc::ENOSPC));
        for (uid, times) in [(0, 2), (8, 1)] {
            let mut made = 0;
            let step = || {
                made += 1;
                full
            };
            let result: Answer<()> = BLOCKS.change(step, || Caller::Thread(0, uid));
            assert_eq!((result, made), (full, times));
        }
        let mut made = 0;
        let step = || {
            made += 1;
            Err(Failure(libc::EDQUOT))
        };
        let result: Answer<()> = BLOCKS.change(step, || panic!("nobody asks"));
        assert_eq!((result, made), (Err(Failure(libc::EDQUOT)), 1));
    }
}
