//! The tree that a mount shows.

use std::ffi::{CStr, CString};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use crate::mount::callers::Callers;
use crate::mount::inodes::table::Inodes;
use crate::mount::pages::client::Pages;
use crate::mount::requests::readers::Readers;
use crate::mount::requests::stubs::Store;
use crate::mount::reserved_blocks::ReservedBlocks;
use crate::mount::write_times::Notes;
use crate::threads::lock::locked;

/// The tree, and what its requests share.
pub struct Tree {
    pub inodes: Inodes,
    /// An extended attribute that does not exist to users.
    pub reserved: CString,
    /// A name that users cannot give to an entry at the top of the tree.
    pub base_name: CString,
    /// Whether the kernel gives `security.*` attributes to inodes by itself.
    pub has_labels: bool,
    /// Whether what this process makes is root's at first.
    pub is_root: bool,
    pub callers: Callers,
    /// Blocks that users may not have, where the file system below has such.
    pub reserved_blocks: OnceLock<ReservedBlocks>,
    /// Where the content of stubs is, once it is known.
    pub store: OnceLock<Arc<Store>>,
    /// What tells of newer pages, once the mount shows.
    pub pages: OnceLock<Arc<Pages>>,
    /// Those who read stubs in sequence.
    pub readers: Readers,
    /// While writes to the page cache wait for the disk.
    pub writes_wait: SlowTime,
    /// Where writes are noted, once that is known.
    pub write_times: OnceLock<Arc<Notes>>,
    /// Whether new files may have to wait, which Python sees to.
    pub files_are_delayed: AtomicBool,
    /// How much may be written before Python has to see to it that there is room.
    pub allowed_bytes: AtomicI64,
    /// Whether Python takes notes of all names that come and go: a tree is being walked.
    pub names_are_noted: AtomicBool,
    /// Whether directories of the file system below may ignore the case of names.
    pub ignores_case: AtomicBool,
}

impl Tree {
    pub fn new(inodes: Inodes, reserved: CString, base_name: CString) -> Tree {
        Tree {
            inodes,
            reserved,
            base_name,
            has_labels: Path::new("/sys/fs/selinux/enforce").exists(),
            is_root: rustix::process::geteuid().is_root(),
            callers: Callers::default(),
            reserved_blocks: OnceLock::new(),
            store: OnceLock::new(),
            pages: OnceLock::new(),
            readers: Readers::default(),
            writes_wait: SlowTime::default(),
            write_times: OnceLock::new(),
            files_are_delayed: AtomicBool::new(false),
            allowed_bytes: AtomicI64::new(i64::MAX),
            names_are_noted: AtomicBool::new(false),
            ignores_case: AtomicBool::new(false),
        }
    }

    /// Whether so much may be written now.
    pub fn may_write(&self, length: u64) -> bool {
        let length = i64::try_from(length).unwrap_or(i64::MAX);
        self.allowed_bytes.load(Ordering::Relaxed) >= length
    }

    /// A write of data to a file: of so many bytes from `start` on.
    pub fn note_write(&self, inode: u64, start: u64, length: u64) {
        self.allowed_bytes.fetch_sub(length.min(i64::MAX as u64) as i64, Ordering::Relaxed);
        if let Some(notes) = self.write_times.get() {
            notes.note(inode, start, start.saturating_add(length));
        }
    }

    pub fn is_reserved(&self, name: &CStr) -> bool {
        self.reserved.as_c_str() == name
    }
}

/// A time that has an end.
#[derive(Default)]
pub struct SlowTime(Mutex<Option<Instant>>);

impl SlowTime {
    pub fn begin(&self, length: Duration) {
        *locked(&self.0) = Some(Instant::now() + length);
    }

    pub fn is_now(&self) -> bool {
        locked(&self.0).is_some_and(|end| Instant::now() < end)
    }
}
