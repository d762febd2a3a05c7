//! Requests that Python has not answered yet.

use std::collections::HashMap;

use crate::mount::inodes::table::Inodes;
use crate::mount::protocol::message::Request;
use crate::mount::requests::dispatch::Counts;
use crate::mount::requests::touched::Touched;
use crate::mount::session::refused_writes::Write;

/// The requests of a mount that Python answers.
#[derive(Default)]
pub struct HandedOverRequests {
    /// Numbers of all requests that were handed over.
    pub counts: Counts,
    /// The inodes that the unanswered requests change.
    touched: HashMap<u64, Touched>,
    /// Unanswered writes whose answers go to the device.
    writes: HashMap<u64, Write>,
}

impl HandedOverRequests {
    /// `by_ring`: another thread gives the kernel the answer.
    pub fn add(&mut self, request: &Request, by_ring: bool) {
        self.counts.add(request.header.opcode);
        if let Some(write) = Write::of(request).filter(|_| !by_ring) {
            self.writes.insert(request.header.unique, write);
        }
        if let Some(touched) = Touched::of(request) {
            self.touched.insert(request.header.unique, touched);
        }
    }

    /// Records the changes of an answered request. Returns it if it is a write from the device.
    pub fn answered(&mut self, unique: u64, inodes: &Inodes) -> Option<Write> {
        if let Some(touched) = self.touched.remove(&unique) {
            touched.note(&inodes.changes, &inodes.change_times);
        }
        self.writes.remove(&unique)
    }
}
