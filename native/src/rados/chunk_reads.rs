//! Trains of chunks: many reads in flight, taken in their order by the thread that asked.
//!
//! A reader in a thread of its own for each chunk is woken for each of them, and so are the threads
//! that hand the answers over. Here the answers that came meanwhile are taken without a switch.

use std::cell::Cell;
use std::collections::VecDeque;
use std::ffi::CString;
use std::ptr;

use super::connection::Connection;
use super::library::Handle;
use crate::codec::encode as codec;
use crate::fingerprint::Algorithm;
use crate::format::chunk_frame::{ChunkFrame, FRAME_BYTES};
use crate::format::ids::Fingerprint;
use crate::format::record_header::CODEC_RAW;

/// A chunk that is read: the object that it lies in, and where its raw bytes go, which are as long
/// as `out`.
pub struct Wanted<'a> {
    pub object: CString,
    pub fingerprint: Fingerprint,
    pub out: &'a mut [u8],
}

/// What became of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// The bytes are there, and have the fingerprint.
    Good,
    /// The object is missing, or not what it should be.
    Other,
    /// The cluster says this errno.
    Failed(i32),
}

/// Reads chunks, up to `at_once` at a time, each proved by its fingerprint. Gives every frame that is
/// good to `keep`, by the chunk's place in `wanted`. Begins none after one that has failed, so it takes
/// one time-out at most.
pub fn read_all(
    connection: &Connection,
    wanted: Vec<Wanted<'_>>,
    algorithm: Algorithm,
    at_once: usize,
    mut keep: impl FnMut(usize, &[u8]),
) -> Vec<Found> {
    let mut found = Vec::with_capacity(wanted.len());
    let failure = Cell::new(None);
    let mut begun: VecDeque<(Wanted<'_>, Result<Flight<'_>, i32>)> = VecDeque::new();
    let mut take = |(chunk, flight): (Wanted<'_>, Result<Flight<'_>, i32>)| {
        let outcome = match flight.and_then(Flight::land) {
            Ok((object, length)) => {
                let outcome = decode(&object[..length], chunk.fingerprint, algorithm, chunk.out);
                if let Found::Good = outcome {
                    keep(found.len(), &object[..length]);
                }
                connection.idle.give_back(object);
                outcome
            }
            Err(libc::ENOENT) => Found::Other,
            Err(errno) => {
                failure.set(Some(errno));
                Found::Failed(errno)
            }
        };
        found.push(outcome);
    };
    for chunk in wanted {
        if begun.len() >= at_once.max(1) {
            if let Some(first) = begun.pop_front() {
                take(first);
            }
        }
        let flight = match failure.get() {
            None => Flight::begin(connection, &chunk),
            Some(errno) => Err(errno),
        };
        begun.push_back((chunk, flight));
    }
    for one in begun {
        take(one);
    }
    found
}

/// The fingerprint proves the payload, so its checksum is not asked.
fn decode(object: &[u8], fingerprint: Fingerprint, algorithm: Algorithm, out: &mut [u8]) -> Found {
    let is_good = ChunkFrame::of(object, &fingerprint).is_some_and(|frame| {
        frame.raw_length as usize == out.len()
            && (frame.codec != CODEC_RAW || frame.payload.len() == out.len())
            && codec::decode(frame.payload, frame.codec, out).is_ok()
            && algorithm.digest(out) == fingerprint
    });
    if is_good { Found::Good } else { Found::Other }
}

/// A read that the cluster was asked for. Its memory stays until it has landed.
struct Flight<'a> {
    connection: &'a Connection,
    completion: Handle,
    buffer: Vec<u8>,
}

impl Flight<'_> {
    /// Asks for one byte more than the frame of a chunk can have: a longer object is not read to its
    /// end, and is found to be another one.
    fn begin<'a>(connection: &'a Connection, chunk: &Wanted<'_>) -> Result<Flight<'a>, i32> {
        let library = connection.library;
        let length = FRAME_BYTES + chunk.out.len() + 1;
        let mut buffer = connection.idle.of(length);
        let mut completion = ptr::null_mut();
        // SAFETY: no call back, and a handle that is written to.
        let result = unsafe {
            (library.aio_create_completion2)(ptr::null_mut(), ptr::null(), &raw mut completion)
        };
        check(result)?;
        // The memory of a vector does not move with it.
        let start = buffer.as_mut_ptr().cast();
        // SAFETY: the pool is open as long as the connection, the name ends, and the memory has
        // `length` bytes that nothing else uses before the read is complete.
        let result = unsafe {
            (library.aio_read)(connection.pool, chunk.object.as_ptr(), completion, start, length, 0)
        };
        if let Err(errno) = check(result) {
            // SAFETY: nothing was begun that would use it.
            unsafe { (library.aio_release)(completion) };
            return Err(errno);
        }
        Ok(Flight { connection, completion, buffer })
    }

    /// Waits for the answer: the memory, and how many bytes of it were read; or an errno.
    fn land(mut self) -> Result<(Vec<u8>, usize), i32> {
        let library = self.connection.library;
        // SAFETY: the completion is this value's, and not released yet.
        let result = unsafe {
            (library.aio_wait_for_complete)(self.completion);
            (library.aio_get_return_value)(self.completion)
        };
        check(result)?;
        let buffer = std::mem::take(&mut self.buffer);
        let length = result as usize;
        if length > buffer.len() { Err(libc::EIO) } else { Ok((buffer, length)) }
    }
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        let library = self.connection.library;
        // SAFETY: as above; once it is complete the library does not use the memory any more.
        unsafe {
            (library.aio_wait_for_complete)(self.completion);
            (library.aio_release)(self.completion);
        }
    }
}

fn check(result: i32) -> Result<(), i32> {
    if result < 0 { Err(-result) } else { Ok(()) }
}
