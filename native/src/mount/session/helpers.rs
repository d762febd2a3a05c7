//! The threads that take requests beside that of the loop: those of rings, where requests come by
//! io_uring, and stand-ins.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use crate::mount::protocol::handshake::{BY_RING, Offer};
use crate::mount::protocol::message::Failure;
use crate::mount::session::rings::crew::Rings;
use crate::mount::session::rings::entry::Entry;
use crate::mount::session::shared::Shared;
use crate::mount::session::stand_ins::{Beside, StandIns};
use crate::mount::session::turn::Turn;

/// The threads beside that of the loop, which begin once the kernel has the answer to the first
/// request.
pub struct Helpers {
    rings: Option<Rings>,
    stand_ins: Option<StandIns>,
    beside: Beside,
    ring_at: Option<PathBuf>,
    /// A ring that can be made, until the first request is answered.
    trial: Option<Entry>,
    ring_failure: Option<Failure>,
}

impl Helpers {
    /// `ring_at`: where the mount shows, if requests may come by io_uring.
    pub fn new(beside: Beside, ring_at: Option<PathBuf>) -> Helpers {
        let (rings, stand_ins, trial) = (None, None, None);
        Helpers { rings, stand_ins, beside, ring_at, trial, ring_failure: None }
    }

    /// Whether requests come by io_uring.
    pub fn are_by_ring(&self) -> bool {
        self.rings.is_some()
    }

    /// Why requests come by the device although the kernel offers io_uring, once the first is
    /// answered.
    pub fn ring_failure(&self) -> Option<Failure> {
        self.ring_failure
    }

    /// Whether the loop's thread has the next request from the device, and a program runs while it
    /// looks for it.
    pub fn leave_the_device(&self) -> bool {
        self.beside.threads > 0
    }

    /// Makes a ring, if the kernel `offer`s it.
    pub fn try_ring(&mut self, offer: &Offer, device: &Arc<OwnedFd>) {
        if self.ring_at.is_some() && offer.has(BY_RING) {
            match Entry::trial(Arc::clone(device)) {
                Ok(trial) => self.trial = Some(trial),
                Err(failure) => self.ring_failure = Some(failure),
            }
        }
    }

    /// Whether a ring could be made.
    pub fn have_ring(&self) -> bool {
        self.trial.is_some()
    }

    /// Starts the threads, once the kernel has the answer to the first request. `agreed`: the flags
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
                    // For forgets, which come by the device.
                    self.beside = Beside { threads: 1, always: true };
                }
                Err(failure) => {
                    trial.refuse();
                    self.ring_failure = Some(failure);
                }
            }
        }
        // The loop's thread serves the mount alone where there is no descriptor left for them.
        self.stand_ins = StandIns::start(shared, agreed, self.beside).ok();
    }
}
