//! Descriptors that Python uses by their numbers.

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex};

use crate::threads::lock::locked;

/// Descriptors that Python has between two of its waits: an operation uses a few at a time.
const GIVEN_MAX: usize = 16;

/// They stay open although the table may have closed its own meanwhile: else another file would have
/// their numbers.
#[derive(Default)]
pub struct Given(Mutex<VecDeque<Arc<OwnedFd>>>);

impl Given {
    /// The number of a descriptor, which is good until a few others were given, or until
    /// [`Given::clear`].
    pub fn number(&self, path: Arc<OwnedFd>) -> RawFd {
        let fd = path.as_raw_fd();
        let mut given = locked(&self.0);
        given.push_back(path);
        if given.len() > GIVEN_MAX {
            given.pop_front();
        }
        fd
    }

    /// Python uses none of them any more.
    pub fn clear(&self) {
        locked(&self.0).clear();
    }
}
