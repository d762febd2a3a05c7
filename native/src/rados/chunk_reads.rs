//! Trains of chunks: many reads in flight, taken in their order by the thread that asked.
//!
//! A reader in a thread of its own for each chunk is woken for each of them, and so are the threads
//! that hand the answers over. Here the answers that came meanwhile are taken without a switch. A read asks for one byte
//! more than the frame of a chunk can have: a longer object is not read to its end, and is found to be
//! another one.

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

/// Of an object whose length is not known, at first.
const OBJECT_BYTES: usize = 64 << 10;

/// A chunk that is read: the object that it lies in, and how many raw bytes it has.
pub struct Wanted {
    pub object: CString,
    pub fingerprint: Fingerprint,
    pub length: usize,
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

/// A read that has ended.
pub struct Landed<R> {
    /// The place of the chunk among those that were wanted.
    pub at: usize,
    pub found: Found,
    /// The memory for the raw bytes, filled where they are good.
    pub raw: R,
    /// What the object has is the start of this memory; empty where it was not read.
    pub memory: Vec<u8>,
    pub object_bytes: usize,
}

impl<R> Landed<R> {
    pub fn object(&self) -> &[u8] {
        &self.memory[..self.object_bytes]
    }
}

/// Reads chunks, up to `at_once` at a time, each proved by its fingerprint, into memory that `room`
/// makes. Tells of each, in their order, and takes memory back that is not kept. Begins none after one that has failed, so it takes one
/// time-out at most.
pub fn read_all<R: AsMut<[u8]>>(
    connection: &Connection,
    wanted: impl Iterator<Item = Wanted>,
    algorithm: Algorithm,
    at_once: usize,
    mut room: impl FnMut(usize) -> R,
    mut tell: impl FnMut(Landed<R>) -> Option<Vec<u8>>,
) {
    let failure = Cell::new(None);
    let mut begun: VecDeque<(Wanted, Result<Flight<'_>, i32>)> = VecDeque::new();
    let mut at = 0;
    let mut take = |(chunk, flight): (Wanted, Result<Flight<'_>, i32>)| {
        let mut raw = room(chunk.length);
        match flight.and_then(Flight::land) {
            Ok((memory, length)) => {
                let object = &memory[..length];
                let found = decode(object, &chunk.fingerprint, algorithm, raw.as_mut());
                let landed = Landed { at, found, raw, memory, object_bytes: length };
                if let Some(memory) = tell(landed) {
                    connection.idle.give_back(memory);
                }
            }
            Err(errno) => {
                let found = if errno == libc::ENOENT {
                    Found::Other
                } else {
                    failure.set(Some(errno));
                    Found::Failed(errno)
                };
                tell(Landed { at, found, raw, memory: Vec::new(), object_bytes: 0 });
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

/// The fingerprint proves the payload, so its checksum is not asked.
pub fn decode(
    object: &[u8],
    fingerprint: &Fingerprint,
    algorithm: Algorithm,
    out: &mut [u8],
) -> Found {
    let is_good = ChunkFrame::of(object, fingerprint).is_some_and(|frame| {
        frame.raw_length as usize == out.len()
            && (frame.codec != Codec::Raw || frame.payload.len() == out.len())
            && codec::decode(frame.payload, frame.codec, out).is_ok()
            && algorithm.digest(out) == *fingerprint
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
            (library.aio_read)(connection.pool, object.as_ptr(), completion, start, length, offset)
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
