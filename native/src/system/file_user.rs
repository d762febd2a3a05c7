//! The user as whom a thread uses file systems (`setfsuid`).
//!
//! A new thread begins as the one that starts it. Rights stay those of the process where it keeps its
//! capabilities whatever its user (`SECBIT_NO_SETUID_FIXUP`).

use std::cell::Cell;

/// The user of a process that root has started.
const ROOT: u32 = 0;

/// Not known yet. The kernel has no such user.
const UNKNOWN: u32 = u32::MAX;

thread_local! {
    static USER: Cell<u32> = const { Cell::new(UNKNOWN) };
}

/// Has this thread use file systems as `uid` from here on. Without `CAP_SETUID` it stays as it was.
pub fn become_user(uid: u32) {
    USER.with(|user| {
        if user.replace(uid) != uid {
            set(uid);
        }
    });
}

/// Whether threads of this process can become `uid`, and root again.
pub fn can_become(uid: u32) -> bool {
    let before = set(uid);
    before == ROOT && set(before) == uid && set(UNKNOWN) == before
}

/// Returns the user until now. UNKNOWN changes nothing.
fn set(uid: u32) -> u32 {
    // SAFETY: takes no pointers.
    unsafe { libc::setfsuid(uid) as u32 }
}

/// For a block at the end of which this thread is root again.
pub struct RootAgain;

impl Drop for RootAgain {
    fn drop(&mut self) {
        if USER.with(Cell::get) != UNKNOWN {
            become_user(ROOT);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread::spawn;

    use super::*;

    #[test]
    fn a_thread_is_another_user_and_so_are_those_that_it_starts() {
        if !can_become(65_533) {
            return; // not root
        }
        let of_started = spawn(|| {
            become_user(65_533);
            let started = spawn(|| {
                let before = set(UNKNOWN);
                become_user(ROOT);
                (before, set(UNKNOWN))
            });
            let seen = started.join().unwrap();
            assert_eq!(set(UNKNOWN), 65_533);
            {
                let _root = RootAgain;
                become_user(65_532);
                assert_eq!(set(UNKNOWN), 65_532);
            }
            assert_eq!(set(UNKNOWN), ROOT);
            seen
        });
        assert_eq!(of_started.join().unwrap(), (65_533, ROOT));
        assert_eq!(set(UNKNOWN), ROOT);
    }
}
