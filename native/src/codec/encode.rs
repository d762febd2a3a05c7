//! Payloads: selective compression into a buffer of records, and back.

use std::cell::RefCell;
use std::ops::{Deref, DerefMut};
use std::sync::Mutex;

use xxhash_rust::xxh3::xxh3_64;
use zstd_safe::{CCtx, CParameter, DCtx};

use crate::codec::compressibility::incompressible;
use crate::format::codec::Codec;
use crate::format::ids::Checksum;
use crate::threads::lock::locked;

#[derive(Clone, Copy, Debug)]
pub struct Options {
    pub level: i32,
    pub saving_min: f64,
    pub header_bytes: usize,
    pub align_bytes: usize,
}

impl Options {
    /// The error names the wrong parameter.
    pub fn validate(&self) -> Result<(), String> {
        if !(0..=zstd_safe::max_c_level()).contains(&self.level) {
            return Err(format!(
                "level must be 0 to {}, not {}",
                zstd_safe::max_c_level(),
                self.level
            ));
        }
        if !(0.0..1.0).contains(&self.saving_min) {
            return Err(format!(
                "saving_min must be at least 0 and below 1, not {}",
                self.saving_min
            ));
        }
        if self.header_bytes > 1 << 16 {
            return Err(format!("header_bytes must be 65536 at most, not {}", self.header_bytes));
        }
        if !self.align_bytes.is_power_of_two() || self.align_bytes > 1 << 20 {
            return Err(format!(
                "align_bytes must be a power of two up to 1048576, not {}",
                self.align_bytes
            ));
        }
        Ok(())
    }

    /// Maximum of stored bytes that makes compression worthwhile for `raw` bytes.
    fn stored_max(&self, raw: usize) -> usize {
        let allowed = (raw as f64 * (1.0 - self.saving_min)).floor() as usize;
        allowed.min(raw.saturating_sub(1))
    }
}

/// Reusable memory for records: a new page from the system costs a fault, and is filled with zeros.
#[derive(Default)]
pub struct Buffer(Vec<u8>);

static IDLE: Mutex<Vec<Vec<u8>>> = Mutex::new(Vec::new());
const IDLE_MAX: usize = 4;
/// Smaller buffers are cheap to allocate.
const IDLE_BYTES_MIN: usize = 1 << 20;

impl Buffer {
    /// At least `length` bytes with undefined content.
    pub fn of(length: usize) -> Buffer {
        let idle = || locked(&IDLE);
        let used = if length < IDLE_BYTES_MIN { None } else { idle().pop() };
        Buffer(used.filter(|buffer| buffer.len() >= length).unwrap_or_else(|| vec![0; length]))
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let buffer = std::mem::take(&mut self.0);
        let mut idle = locked(&IDLE);
        if buffer.len() >= IDLE_BYTES_MIN && idle.len() < IDLE_MAX {
            idle.push(buffer);
        }
    }
}

/// The first `length` bytes of `buffer` are the records.
#[derive(Default)]
pub struct Records {
    pub buffer: Buffer,
    pub length: usize,
    pub starts: Vec<u32>,
    pub stored_lengths: Vec<u32>,
    pub codecs: Vec<Codec>,
    pub checksums: Vec<Checksum>,
}

/// Encodes one record per `(start, length)` of `data`; the ranges must lie in it.
pub fn encode(data: &[u8], ranges: &[(usize, usize)], options: Options) -> Result<Records, String> {
    options.validate()?;
    let room: usize = ranges
        .iter()
        .map(|(_, length)| (options.header_bytes + length).next_multiple_of(options.align_bytes))
        .sum();
    if u32::try_from(room).is_err() {
        return Err(format!("lengths add up to {room} bytes of records: more than 4 GiB"));
    }
    let mut records = Records { buffer: Buffer::of(room), ..Records::default() };
    let mut at = 0;
    for &(start, length) in ranges {
        let raw = &data[start..start + length];
        let payload = at + options.header_bytes;
        let (codec, stored) = store(raw, &mut records.buffer[payload..payload + length], options)?;
        let end = (payload + stored).next_multiple_of(options.align_bytes);
        // The buffer has old bytes, and zstd may write past the end that it returns.
        records.buffer[at..payload].fill(0);
        records.buffer[payload + stored..end].fill(0);
        records.starts.push(at as u32);
        records.stored_lengths.push(stored as u32);
        records.codecs.push(codec);
        records.checksums.push(checksum_of(&records.buffer[payload..payload + stored]));
        at = end;
    }
    records.length = at;
    Ok(records)
}

/// Codec and payload of one record that leans on no other, compressed where that saves space.
pub fn alone(raw: &[u8]) -> Result<(Codec, Vec<u8>), String> {
    let options = Options { level: 3, saving_min: 0.05, header_bytes: 0, align_bytes: 1 };
    let mut payload = vec![0; raw.len()];
    let (codec, stored) = store(raw, &mut payload, options)?;
    payload.truncate(stored);
    Ok((codec, payload))
}

/// Writes the payload of `raw` into `out`, of the same length; returns codec and stored length.
fn store(raw: &[u8], out: &mut [u8], options: Options) -> Result<(Codec, usize), String> {
    let stored_max = options.stored_max(raw.len());
    if options.level > 0 && stored_max > 0 && !incompressible(raw) {
        if let Some(stored) = compress(raw, &mut out[..stored_max], options.level)? {
            return Ok((Codec::Zstd, stored));
        }
    }
    out.copy_from_slice(raw);
    Ok((Codec::Raw, raw.len()))
}

pub(super) struct Compressor {
    context: CCtx<'static>,
    level: i32,
}

impl Compressor {
    pub fn new() -> Compressor {
        Compressor { context: CCtx::create(), level: 0 }
    }

    pub fn at(&mut self, level: i32) -> Result<&mut CCtx<'static>, String> {
        if self.level != level {
            self.context.set_parameter(CParameter::CompressionLevel(level)).map_err(describe)?;
            self.level = level;
        }
        Ok(&mut self.context)
    }
}

thread_local! {
    // A context takes about 1 MiB, and much time to create: one per thread.
    static COMPRESSOR: RefCell<Compressor> = RefCell::new(Compressor::new());
    static DECOMPRESSOR: RefCell<DCtx<'static>> = RefCell::new(DCtx::create());
}

/// Returns None if the result does not fit into `out`.
pub fn compress(raw: &[u8], out: &mut [u8], level: i32) -> Result<Option<usize>, String> {
    COMPRESSOR.with_borrow_mut(|compressor| fitting(compressor.at(level)?.compress2(out, raw)))
}

/// The length of a created payload; None if it did not fit.
pub(super) fn fitting(made: Result<usize, usize>) -> Result<Option<usize>, String> {
    match made {
        Ok(stored) => Ok(Some(stored)),
        Err(DESTINATION_TOO_SMALL) => Ok(None),
        Err(code) => Err(describe(code)),
    }
}

/// Returns an error unless a payload has filled all of `out`.
pub(super) fn filled(length: usize, out: &[u8]) -> Result<(), Corruption> {
    if length == out.len() {
        Ok(())
    } else {
        Err(format!("payload decodes to {length} bytes, should be {}", out.len()))
    }
}

/// `-ZSTD_error_dstSize_tooSmall` (zstd_errors.h; stable since zstd 1.3.1).
const DESTINATION_TOO_SMALL: usize = 0usize.wrapping_sub(70);

pub(super) fn describe(code: usize) -> String {
    format!("zstd: {}", zstd_safe::get_error_name(code))
}

/// The reason why a payload is not accepted.
pub type Corruption = String;

fn checksum_of(stored: &[u8]) -> Checksum {
    Checksum(xxh3_64(stored))
}

/// Performs all checks without decompression.
pub fn check(
    stored: &[u8],
    codec: Codec,
    raw_length: usize,
    checksum: Checksum,
) -> Result<(), Corruption> {
    let found = checksum_of(stored);
    if found != checksum {
        let (found, expected) = (found.0, checksum.0);
        return Err(format!(
            "checksum of stored bytes is {found:#018x}, should be {expected:#018x}"
        ));
    }
    let stated = match codec {
        Codec::Raw => Some(stored.len() as u64),
        Codec::Zstd | Codec::Delta | Codec::Dictionary => {
            zstd_safe::get_frame_content_size(stored).unwrap_or(None)
        }
        Codec::Unknown(number) => return Err(format!("codec {number} is not known")),
    };
    match stated {
        Some(length) if length == raw_length as u64 => Ok(()),
        Some(length) => Err(format!("payload holds {length} bytes, should be {raw_length}")),
        None => Err("payload is not a zstd frame of known length".to_owned()),
    }
}

/// Fills `out` from a payload that passed `check`, and depends on no other record.
pub fn decode(stored: &[u8], codec: Codec, out: &mut [u8]) -> Result<(), Corruption> {
    match codec {
        Codec::Raw => {
            out.copy_from_slice(stored);
            Ok(())
        }
        Codec::Zstd => decompress(stored, out),
        Codec::Delta | Codec::Dictionary | Codec::Unknown(_) => {
            Err(format!("payload of codec {} cannot be decoded alone", codec.number()))
        }
    }
}

fn decompress(stored: &[u8], out: &mut [u8]) -> Result<(), Corruption> {
    let length = DECOMPRESSOR
        .with_borrow_mut(|context| context.decompress(out, stored))
        .map_err(describe)?;
    filled(length, out)
}
