//! Stubs that Python has open, and looked at, and that native code may use until it is taken back.
//!
//! A stub with blocks of its own is settled when it is opened, and held against its attribute
//! (`fuse_stub/files/open_files.py`). From then on all changes of it come through the mount.

use std::collections::HashMap;
use std::sync::Mutex;

use crate::threads::lock::locked;

#[derive(Clone, Copy)]
struct Loan {
    takes_writes: bool,
    is_used: bool,
    is_torn: bool,
}

#[derive(Default)]
pub struct Lent(Mutex<HashMap<u64, Loan>>);

impl Lent {
    /// `takes_writes`: native code may write to the stub as well.
    pub fn lend(&self, inode: u64, takes_writes: bool) {
        locked(&self.0).insert(inode, Loan { takes_writes, is_used: false, is_torn: false });
    }

    /// Whether all is as it was said to be.
    pub fn take_back(&self, inode: u64) -> bool {
        locked(&self.0).remove(&inode).is_none_or(|loan| !loan.is_torn)
    }

    /// Whether an inode is lent; notes that it is used.
    pub fn uses(&self, inode: u64) -> bool {
        self.is_fit(inode, |_| true)
    }

    /// Whether an inode is lent for writing, too; notes that it is used.
    pub fn uses_to_write(&self, inode: u64) -> bool {
        self.is_fit(inode, |loan| loan.takes_writes)
    }

    fn is_fit(&self, inode: u64, may: impl Fn(&Loan) -> bool) -> bool {
        let mut lent = locked(&self.0);
        let loan = lent.get_mut(&inode).filter(|loan| !loan.is_torn && may(loan));
        loan.map(|loan| loan.is_used = true).is_some()
    }

    /// A write has left blocks that are allocated and were never written: it is not used any more.
    pub fn note_torn(&self, inode: u64) {
        if let Some(loan) = locked(&self.0).get_mut(&inode) {
            loan.is_torn = true;
        }
    }

    /// Whether it was used since the last call.
    pub fn was_used(&self, inode: u64) -> bool {
        locked(&self.0).get_mut(&inode).is_some_and(|loan| std::mem::take(&mut loan.is_used))
    }
}
