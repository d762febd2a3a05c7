//! Requests that Python answers, until it has.

use std::collections::HashMap;

use crate::mount::inodes::table::Inodes;
use crate::mount::protocol::message::Request;
use crate::mount::requests::dispatch::Counts;
use crate::mount::requests::touched::Touched;
use crate::mount::session::refused_writes::Write;

/// The requests of a mount that were handed over.
#[derive(Default)]
pub struct HandedOver {
    /// Of all of them.
    pub counts: Counts,
    /// What those change that are not answered yet.
    touched: HashMap<u64, Touched>,
    /// Writes among them whose answers go to the device.
    writes: HashMap<u64, Write>,
}

impl HandedOver {
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

    /// What a request changes is changed by now: it is answered. Returns the write that it was, if
    /// the answer goes to the device.
    pub fn answered(&mut self, unique: u64, inodes: &Inodes) -> Option<Write> {
        if let Some(touched) = self.touched.remove(&unique) {
            touched.note(&inodes.changes, &inodes.change_times);
        }
        self.writes.remove(&unique)
    }
}
