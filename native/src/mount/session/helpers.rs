//! The threads that take requests in addition to the event-loop thread: ring threads if requests
//! arrive through io_uring, and overflow readers.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use crate::mount::protocol::handshake::{BY_RING, Offer};
use crate::mount::protocol::message::Failure;
use crate::mount::session::overflow_readers::{OverflowLimits, OverflowReaders};
use crate::mount::session::rings::crew::Rings;
use crate::mount::session::rings::entry::Entry;
use crate::mount::session::shared::Shared;
use crate::mount::session::turn::Turn;

/// The additional threads, which start when the kernel has the answer to the first request.
pub struct Helpers {
    rings: Option<Rings>,
    overflow_readers: Option<OverflowReaders>,
    limits: OverflowLimits,
    ring_at: Option<PathBuf>,
    /// A ring that was created as a test, until the first request is answered.
    trial: Option<Entry>,
    ring_failure: Option<Failure>,
}

impl Helpers {
    /// `ring_at`: the mount point, if requests may arrive through io_uring.
    pub fn new(limits: OverflowLimits, ring_at: Option<PathBuf>) -> Helpers {
        let (rings, overflow_readers, trial) = (None, None, None);
        Helpers { rings, overflow_readers, limits, ring_at, trial, ring_failure: None }
    }

    /// Returns whether requests arrive through io_uring.
    pub fn are_by_ring(&self) -> bool {
        self.rings.is_some()
    }

    /// Returns, after the first answer, why requests do not use the io_uring that the kernel
    /// offers.
    pub fn ring_failure(&self) -> Option<Failure> {
        self.ring_failure
    }

    /// Returns whether the event-loop thread may poll the device before it sleeps, because a
    /// program can run on another processor.
    pub fn leave_the_device(&self) -> bool {
        self.limits.threads > 0
    }

    /// Creates a ring if the kernel's `offer` includes it.
    pub fn try_ring(&mut self, offer: &Offer, device: &Arc<OwnedFd>) {
        if self.ring_at.is_some() && offer.has(BY_RING) {
            match Entry::trial(Arc::clone(device)) {
                Ok(trial) => self.trial = Some(trial),
                Err(failure) => self.ring_failure = Some(failure),
            }
        }
    }

    /// Returns whether a ring was created.
    pub fn have_ring(&self) -> bool {
        self.trial.is_some()
    }

    /// Starts the threads when the kernel has the answer to the first request. `agreed`: the flags
    /// that kernel and mount have agreed on.
    pub fn start(&mut self, shared: &Arc<Shared>, turn: &Arc<Turn>, agreed: u64) {
        let trial = self.trial.take();
        if agreed == 0 {
            return;
        }
        if let (Some(mut trial), Some(mountpoint)) = (trial, &self.ring_at) {
            match Rings::start(shared, turn, agreed, mountpoint) {
                Ok(rings) => {
                    self.rings = Some(rings);
                    // For forgets, which arrive through the device.
                    self.limits = OverflowLimits { threads: 1, always: true };
                }
                Err(failure) => {
                    trial.refuse();
                    self.ring_failure = Some(failure);
                }
            }
        }
        // If no descriptor is left for them, the event-loop thread serves the mount alone.
        self.overflow_readers = OverflowReaders::start(shared, agreed, self.limits).ok();
    }
}
