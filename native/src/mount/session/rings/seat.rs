//! Requests of rings that other threads answer, while the entry's thread waits for the answer.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex};

use crate::mount::protocol::abi::OutHeader;
use crate::mount::session::rings::entry::Memory;
use crate::threads::lock::{locked, woken};

/// The memory of an entry, and the state of the answer that its thread waits for.
#[derive(Default)]
pub struct Desk {
    pub memory: Memory,
    state: State,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum State {
    #[default]
    Waiting,
    Answered,
    /// No thread will answer the request.
    Left,
}

/// An entry, shared by its thread and the threads that answer its request.
#[derive(Default)]
pub struct Seat {
    pub desk: Mutex<Desk>,
    changed: Condvar,
}

impl Seat {
    /// Waits for an answer. Returns false if there will be none.
    pub fn wait(&self) -> bool {
        let mut desk = locked(&self.desk);
        while desk.state == State::Waiting {
            desk = woken(&self.changed, desk);
        }
        std::mem::take(&mut desk.state) == State::Answered
    }

    fn end(&self, step: impl FnOnce(&mut Memory), state: State) {
        let mut desk = locked(&self.desk);
        step(&mut desk.memory);
        desk.state = state;
        self.changed.notify_one();
    }
}

struct ClaimedSeat {
    seat: Arc<Seat>,
    /// True if the event-loop thread has the request, and no thread answers it after that ends.
    is_with_loop: bool,
}

/// The waiting requests, by number.
#[derive(Default)]
pub struct Seats(Mutex<HashMap<u64, ClaimedSeat>>);

impl Seats {
    /// Directs the answer to a request to an entry.
    pub fn seat(&self, unique: u64, seat: &Arc<Seat>) {
        let taken = ClaimedSeat { seat: Arc::clone(seat), is_with_loop: false };
        locked(&self.0).insert(unique, taken);
    }

    /// Returns false if no entry's thread waits for the answer.
    pub fn note_with_loop(&self, unique: u64) -> bool {
        let mut all = locked(&self.0);
        let Some(taken) = all.get_mut(&unique) else { return false };
        taken.is_with_loop = true;
        true
    }

    /// Gives an answer to the entry whose thread waits for it. Returns false if there is none.
    pub fn give(&self, header: &OutHeader, body: &[&[u8]]) -> bool {
        let taken = locked(&self.0).remove(&header.unique);
        let Some(taken) = taken else { return false };
        taken.seat.end(|memory| memory.put(header, body), State::Answered);
        true
    }

    /// Ends the wait for a request that no thread will answer.
    pub fn leave(&self, unique: u64) {
        let taken = locked(&self.0).remove(&unique);
        if let Some(taken) = taken {
            taken.seat.end(|_| {}, State::Left);
        }
    }

    /// Ends the wait for all requests that the event-loop thread has.
    pub fn leave_with_loop(&self) {
        let all = locked(&self.0);
        let left: Vec<u64> =
            all.iter().filter(|(_, taken)| taken.is_with_loop).map(|(unique, _)| *unique).collect();
        drop(all);
        for unique in left {
            self.leave(unique);
        }
    }
}
