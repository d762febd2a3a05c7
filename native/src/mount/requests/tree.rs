//! The tree that a mount shows.

use std::ffi::{CStr, CString};
use std::path::Path;

use crate::mount::inodes::table::Inodes;

/// The tree, and what its requests share.
pub struct Tree {
    pub inodes: Inodes,
    /// An extended attribute that does not exist to users.
    pub reserved: Option<CString>,
    /// Whether the kernel gives `security.*` attributes to inodes by itself.
    pub has_labels: bool,
}

impl Tree {
    pub fn new(inodes: Inodes, reserved: Option<CString>) -> Tree {
        Tree { inodes, reserved, has_labels: Path::new("/sys/fs/selinux/enforce").exists() }
    }

    pub fn is_reserved(&self, name: &CStr) -> bool {
        self.reserved.as_deref() == Some(name)
    }
}
