//! Descriptors that Python uses by their numbers.

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex};

use crate::threads::lock::locked;

/// Maximum of descriptors that Python has between its waits. An operation uses a few at a time.
const GIVEN_MAX: usize = 16;

/// Keeps them open after the table closes its references, so that no other file gets the numbers.
#[derive(Default)]
pub struct RecentDescriptors(Mutex<VecDeque<Arc<OwnedFd>>>);

impl RecentDescriptors {
    /// The number of a descriptor, valid until a few others were given, or [`RecentDescriptors::clear`].
    pub fn number(&self, path: Arc<OwnedFd>) -> RawFd {
        let fd = path.as_raw_fd();
        let mut given = locked(&self.0);
        given.push_back(path);
        if given.len() > GIVEN_MAX {
            given.pop_front();
        }
        fd
    }

    /// Releases all of them, because Python no longer uses them.
    pub fn clear(&self) {
        locked(&self.0).clear();
    }
}
