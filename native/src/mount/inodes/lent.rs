//! Lent stubs: opened and checked by Python, and used by native code until Python takes them back.
//!
//! A stub with local blocks is settled when it is opened, and compared with its attribute
//! (`fuse_stub/files/open_files.py`). From then on, all its changes come through the mount.

use std::collections::HashMap;
use std::sync::Mutex;

use crate::threads::lock::locked;

#[derive(Clone, Copy)]
struct Loan {
    is_used: bool,
    is_torn: bool,
}

#[derive(Default)]
pub struct LentDescriptors(Mutex<HashMap<u64, Loan>>);

impl LentDescriptors {
    pub fn lend(&self, inode: u64) {
        locked(&self.0).insert(inode, Loan { is_used: false, is_torn: false });
    }

    /// Ends the loan. Returns false if native code has noted it as torn.
    pub fn take_back(&self, inode: u64) -> bool {
        locked(&self.0).remove(&inode).is_none_or(|loan| !loan.is_torn)
    }

    /// Returns whether an inode is lent, and notes its use.
    pub fn uses(&self, inode: u64) -> bool {
        let mut lent = locked(&self.0);
        let loan = lent.get_mut(&inode).filter(|loan| !loan.is_torn);
        loan.map(|loan| loan.is_used = true).is_some()
    }

    /// Ends further use: a write has left allocated blocks that were never written.
    pub fn note_torn(&self, inode: u64) {
        if let Some(loan) = locked(&self.0).get_mut(&inode) {
            loan.is_torn = true;
        }
    }

    /// Returns whether it was used since the last call.
    pub fn was_used(&self, inode: u64) -> bool {
        locked(&self.0).get_mut(&inode).is_some_and(|loan| std::mem::take(&mut loan.is_used))
    }
}
