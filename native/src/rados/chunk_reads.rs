//! Trains of chunks: many reads in progress, whose results the calling thread takes in order.
//!
//! With a thread per chunk, each chunk would wake its thread, and the threads that pass on answers.
//! Here the thread takes all available answers without a switch. A read asks for one byte more than
//! the frame of a chunk can have. So a longer object is not read to its end, and is recognized as
//! wrong.

use std::cell::Cell;
use std::collections::VecDeque;
use std::ffi::{CStr, CString};
use std::ptr;

use super::connection::Connection;
use super::library::Handle;
use crate::codec::encode as codec;
use crate::fingerprint::Algorithm;
use crate::format::cluster::chunk_frame::{ChunkFrame, FRAME_BYTES};
use crate::format::cluster::file_recipe::PART_BYTES_MAX;
use crate::format::codec::Codec;
use crate::format::ids::Fingerprint;

/// Bytes of the first read of an object whose length is unknown.
const OBJECT_BYTES: usize = 64 << 10;

/// A chunk to read: its object, and the number of its raw bytes.
pub struct WantedChunk {
    pub object: CString,
    pub fingerprint: Fingerprint,
    pub length: usize,
}

/// The result of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadOutcome {
    /// The bytes exist and have the fingerprint.
    Good,
    /// The object is missing or wrong.
    Other,
    /// The cluster returned this errno.
    Failed(i32),
}

/// A completed read.
pub struct FinishedRead {
    /// The index of the chunk in the input.
    pub at: usize,
    pub found: ReadOutcome,
    /// The raw bytes, where they are good.
    pub raw: Vec<u8>,
    /// This memory starts with the content of the object; empty if it was not read.
    pub memory: Vec<u8>,
    pub object_bytes: usize,
}

/// Reads chunks, up to `at_once` concurrently, and verifies each by its fingerprint. Passes the
/// results to `tell` in order, and reuses memory that `tell` returns. Starts no read after a failed
/// read, so it takes one time-out at most.
pub fn read_all(
    connection: &Connection,
    wanted: impl Iterator<Item = WantedChunk>,
    algorithm: Algorithm,
    at_once: usize,
    mut tell: impl FnMut(FinishedRead) -> Option<Vec<u8>>,
) {
    let failure = Cell::new(None);
    let mut begun: VecDeque<(WantedChunk, Result<Flight<'_>, i32>)> = VecDeque::new();
    let mut at = 0;
    let mut take = |(chunk, flight): (WantedChunk, Result<Flight<'_>, i32>)| {
        let mut raw = vec![0; chunk.length];
        match flight.and_then(Flight::land) {
            Ok((memory, length)) => {
                let object = &memory[..length];
                let found = decode(object, &chunk.fingerprint, algorithm, &mut raw);
                let landed = FinishedRead { at, found, raw, memory, object_bytes: length };
                if let Some(memory) = tell(landed) {
                    connection.idle.give_back(memory);
                }
            }
            Err(errno) => {
                let found = if errno == libc::ENOENT {
                    ReadOutcome::Other
                } else {
                    failure.set(Some(errno));
                    ReadOutcome::Failed(errno)
                };
                tell(FinishedRead { at, found, raw, memory: Vec::new(), object_bytes: 0 });
            }
        }
        at += 1;
    };
    for chunk in wanted {
        if begun.len() >= at_once.max(1) {
            if let Some(first) = begun.pop_front() {
                take(first);
            }
        }
        let flight = match failure.get() {
            None => Flight::begin(connection, &chunk.object, FRAME_BYTES + chunk.length + 1, 0),
            Some(errno) => Err(errno),
        };
        begun.push_back((chunk, flight));
    }
    for one in begun {
        take(one);
    }
}

/// All of an object's data.
pub fn read_object(connection: &Connection, object: &CStr) -> Result<Vec<u8>, i32> {
    let mut data = Vec::new();
    let mut asked = OBJECT_BYTES;
    loop {
        let flight = Flight::begin(connection, object, asked, data.len() as u64)?;
        let (memory, length) = flight.land()?;
        data.extend_from_slice(&memory[..length]);
        connection.idle.give_back(memory);
        if length < asked {
            return Ok(data);
        }
        asked = PART_BYTES_MAX;
    }
}

/// Decodes without checking the payload's checksum, because the fingerprint verifies it.
pub fn decode(
    object: &[u8],
    fingerprint: &Fingerprint,
    algorithm: Algorithm,
    out: &mut [u8],
) -> ReadOutcome {
    let is_good = ChunkFrame::of(object, fingerprint).is_some_and(|frame| {
        frame.raw_length as usize == out.len()
            && (frame.codec != Codec::Raw || frame.payload.len() == out.len())
            && codec::decode(frame.payload, frame.codec, out).is_ok()
            && algorithm.digest(out) == *fingerprint
    });
    if is_good { ReadOutcome::Good } else { ReadOutcome::Other }
}

/// A read in progress. Its memory must exist until it has landed.
struct Flight<'a> {
    connection: &'a Connection,
    completion: Handle,
    buffer: Vec<u8>,
}

impl Flight<'_> {
    /// Asks for `length` bytes of an object from `offset` on.
    fn begin<'a>(
        connection: &'a Connection,
        object: &CStr,
        length: usize,
        offset: u64,
    ) -> Result<Flight<'a>, i32> {
        let library = connection.library;
        let mut buffer = connection.idle.of(length);
        let mut completion = ptr::null_mut();
        // SAFETY: no callback, and a writable handle.
        let result = unsafe {
            (library.aio_create_completion2)(ptr::null_mut(), ptr::null(), &raw mut completion)
        };
        check(result)?;
        // Moving a vector does not move its memory.
        let start = buffer.as_mut_ptr().cast();
        // SAFETY: the pool is open as long as the connection, the name is NUL-terminated, and the
        // memory has `length` bytes that nothing else uses before the read is complete.
        let result = unsafe {
            (library.aio_read)(connection.pool, object.as_ptr(), completion, start, length, offset)
        };
        if let Err(errno) = check(result) {
            // SAFETY: no read was started that would use it.
            unsafe { (library.aio_release)(completion) };
            return Err(errno);
        }
        Ok(Flight { connection, completion, buffer })
    }

    /// Waits for the answer: the memory and the number of bytes that were read, or an errno.
    fn land(mut self) -> Result<(Vec<u8>, usize), i32> {
        let library = self.connection.library;
        // SAFETY: the completion belongs to this value, and is not released yet.
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
        // SAFETY: as above; after the completion, the library no longer uses the memory.
        unsafe {
            (library.aio_wait_for_complete)(self.completion);
            (library.aio_release)(self.completion);
        }
    }
}

fn check(result: i32) -> Result<(), i32> {
    if result < 0 { Err(-result) } else { Ok(()) }
}
