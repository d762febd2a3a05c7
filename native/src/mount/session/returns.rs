//! Requests that other threads return to the event-loop thread.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{read, write};

use crate::mount::protocol::message::{Answer, REQUEST_BYTES_MAX};
use crate::store::why::Unreadable;
use crate::threads::lock::locked;

/// Limit for the bytes of returned requests that no thread has examined. The kernel keeps further
/// requests in the pages of programs, which costs less.
const UNTAKEN_BYTES_MAX: usize = 32 << 20;
/// A message up to this length is copied, because a buffer for the longest message costs more.
const SHORT_BYTES_MAX: usize = 16 << 10;
const SPARES_MAX: usize = 8;

/// A returned request.
pub enum ReturnedRequest {
    /// Native code cannot answer it: Python has a state of its file, or parts cannot be read.
    HandedOver(Vec<u8>, Vec<Unreadable>),
    /// The page cache now has the missing part.
    Again(Vec<u8>),
    /// The thread that has read it does not answer such requests.
    Untaken(Message),
    /// A thread with the turn has examined it: Python has to answer it.
    Decided(Message),
}

impl ReturnedRequest {
    /// The message, in its length.
    pub fn message(&self) -> &[u8] {
        match self {
            ReturnedRequest::HandedOver(message, _) | ReturnedRequest::Again(message) => message,
            ReturnedRequest::Untaken(message) | ReturnedRequest::Decided(message) => {
                &message.bytes[..message.length]
            }
        }
    }

    /// Bytes that count towards the limit.
    fn untaken_bytes(&self) -> usize {
        match self {
            ReturnedRequest::HandedOver(..) | ReturnedRequest::Again(_) => 0,
            ReturnedRequest::Untaken(message) | ReturnedRequest::Decided(message) => {
                message.bytes.len()
            }
        }
    }
}

/// A message of the kernel: the start of `bytes`.
pub struct Message {
    pub bytes: Vec<u8>,
    pub length: usize,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<ReturnedRequest>,
    untaken_bytes: usize,
    /// Buffers for the longest message.
    spares: Vec<Vec<u8>>,
}

/// The queue of returned requests.
pub struct Returns {
    state: Mutex<State>,
    has_room: Condvar,
    /// Readable while a request waits in the queue.
    wake: OwnedFd,
}

impl Returns {
    pub fn new() -> Answer<Returns> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Returns { state: Mutex::default(), has_room: Condvar::new(), wake })
    }

    pub fn wake(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    pub fn put(&self, back: ReturnedRequest) {
        let mut state = locked(&self.state);
        state.untaken_bytes += back.untaken_bytes();
        state.waiting.push_back(back);
        if state.waiting.len() == 1 {
            let _ = write(&self.wake, &1_u64.to_ne_bytes());
        }
    }

    /// Returns the message at the start of `buffer`. A long message keeps it; the caller gets
    /// another.
    pub fn put_untaken(&self, buffer: &mut Vec<u8>, length: usize) {
        let bytes = if length <= SHORT_BYTES_MAX {
            buffer[..length].to_vec()
        } else {
            std::mem::replace(buffer, self.buffer())
        };
        self.put(ReturnedRequest::Untaken(Message { bytes, length }));
    }

    /// Returns an entire message for Python.
    pub fn put_decided(&self, bytes: Vec<u8>) {
        let length = bytes.len();
        self.put(ReturnedRequest::Decided(Message { bytes, length }));
    }

    pub fn take(&self) -> Option<ReturnedRequest> {
        let mut state = locked(&self.state);
        let back = state.waiting.pop_front()?;
        if state.waiting.is_empty() {
            let _ = read(&self.wake, &mut [0; 8]);
        }
        if back.untaken_bytes() > 0 {
            state.untaken_bytes -= back.untaken_bytes();
            self.has_room.notify_all();
        }
        Some(back)
    }

    pub fn is_empty(&self) -> bool {
        locked(&self.state).waiting.is_empty()
    }

    /// Waits up to `limit` for room in the queue. Returns whether there is room.
    pub fn wait_for_room(&self, limit: Duration) -> bool {
        let state = locked(&self.state);
        let is_full = |state: &mut State| state.untaken_bytes > UNTAKEN_BYTES_MAX;
        let waited = self.has_room.wait_timeout_while(state, limit, is_full);
        let (_state, result) = waited.unwrap_or_else(PoisonError::into_inner);
        !result.timed_out()
    }

    /// A buffer for the longest message.
    pub fn buffer(&self) -> Vec<u8> {
        let spare = locked(&self.state).spares.pop();
        spare.unwrap_or_else(|| vec![0; REQUEST_BYTES_MAX])
    }

    /// Keeps a buffer for later use.
    pub fn keep_buffer(&self, buffer: Vec<u8>) {
        let mut state = locked(&self.state);
        if buffer.len() == REQUEST_BYTES_MAX && state.spares.len() < SPARES_MAX {
            state.spares.push(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn untaken(returns: &Returns) -> Message {
        match returns.take() {
            Some(ReturnedRequest::Untaken(message)) => message,
            _ => panic!("another one was given back"),
        }
    }

    #[test]
    fn a_long_message_is_given_back_with_its_buffer() {
        let returns = Returns::new().unwrap();
        let mut buffer = returns.buffer();
        for (length, first) in [(REQUEST_BYTES_MAX, 1), (100, 2)] {
            buffer[0] = first;
            let place = buffer.as_ptr();
            returns.put_untaken(&mut buffer, length);
            let message = untaken(&returns);
            assert_eq!((message.bytes[0], message.length), (first, length));
            assert_eq!(message.bytes.as_ptr() == place, length == REQUEST_BYTES_MAX);
            assert_eq!(buffer.len(), REQUEST_BYTES_MAX);
            returns.keep_buffer(message.bytes);
        }
        assert_eq!(locked(&returns.state).spares.len(), 1);
    }

    #[test]
    fn what_waits_is_bounded() {
        let returns = Returns::new().unwrap();
        let mut buffer = returns.buffer();
        for _ in 0..=UNTAKEN_BYTES_MAX / REQUEST_BYTES_MAX {
            returns.put_untaken(&mut buffer, REQUEST_BYTES_MAX);
        }
        let began = std::time::Instant::now();
        let limit = Duration::from_millis(20);
        returns.wait_for_room(limit);
        assert!(began.elapsed() >= limit);
        returns.take();
        returns.wait_for_room(Duration::from_secs(1000));
    }
}
