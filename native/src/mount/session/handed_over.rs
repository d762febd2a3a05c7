//! Requests that Python answers, until it has.

use std::collections::HashMap;

use crate::mount::inodes::table::Inodes;
use crate::mount::protocol::message::Request;
use crate::mount::requests::dispatch::Counts;
use crate::mount::requests::touched::Touched;

/// The requests of a mount that were handed over.
#[derive(Default)]
pub struct HandedOver {
    /// Of all of them.
    pub counts: Counts,
    /// What those change that are not answered yet.
    touched: HashMap<u64, Touched>,
}

impl HandedOver {
    pub fn add(&mut self, request: &Request) {
        self.counts.add(request.header.opcode);
        if let Some(touched) = Touched::of(request) {
            self.touched.insert(request.header.unique, touched);
        }
    }

    /// What a request changes is changed by now: it is answered.
    pub fn answered(&mut self, unique: u64, inodes: &Inodes) {
        if let Some(touched) = self.touched.remove(&unique) {
            touched.note(&inodes.changes, &inodes.change_times);
        }
    }
}
