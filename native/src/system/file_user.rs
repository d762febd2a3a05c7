//! The user that a thread has for file systems (`setfsuid`).
//!
//! A new thread has the user of the thread that starts it. The thread keeps the rights of the
//! process if its capabilities do not depend on its user (`SECBIT_NO_SETUID_FIXUP`).

use std::cell::Cell;

/// The user of a process that root has started.
const ROOT: u32 = 0;

/// Not known yet; the kernel has no such user.
const UNKNOWN: u32 = u32::MAX;

thread_local! {
    static USER: Cell<u32> = const { Cell::new(UNKNOWN) };
}

/// Makes this thread use file systems as `uid`. Without `CAP_SETUID`, nothing changes.
pub fn become_user(uid: u32) {
    USER.with(|user| {
        if user.replace(uid) != uid {
            set(uid);
        }
    });
}

/// Returns whether threads of this process can become `uid`, and root again.
pub fn can_become(uid: u32) -> bool {
    let before = set(uid);
    before == ROOT && set(before) == uid && set(UNKNOWN) == before
}

/// Returns the previous user. UNKNOWN changes nothing.
fn set(uid: u32) -> u32 {
    // SAFETY: takes no pointers.
    unsafe { libc::setfsuid(uid) as u32 }
}

/// Makes this thread root again at the end of a block.
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
