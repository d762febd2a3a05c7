//! Record headers of a container, found in the order of their offsets.

use std::io;
use std::ops::Range;
use std::os::fd::RawFd;

use crate::format::record_header::{
    MAGIC, RECORD_ALIGN_BYTES, RECORD_HEADER_BYTES, RecordHeader, record_bytes,
};
use crate::system::reads::read_readable;

/// Read at once: large enough for sequential I/O, and little memory.
const WINDOW_BYTES: u64 = 4 << 20;

/// A part of a container.
pub enum ScannedHeader {
    /// A record. `is_searched`: damage came before it, so the bytes may be the payload of a record
    /// that lost its own header.
    Record { offset: u64, header: RecordHeader, is_searched: bool },
    /// A range without a valid record.
    Gap(Range<u64>),
}

/// Walks from header to header. After damage, it searches every aligned offset for the next one.
pub struct HeaderScan {
    data: RawFd,
    seed: u64,
    position: u64,
    end: u64,
    gap: Option<u64>,
    is_searched: bool,
    window: Vec<u8>,
    base: u64,
}

impl HeaderScan {
    /// `data` must stay open as long as this.
    pub fn new(data: RawFd, seed: u64, start: u64, end: u64) -> HeaderScan {
        let (gap, is_searched, window, base) = (None, false, Vec::new(), start);
        HeaderScan { data, seed, position: start, end, gap, is_searched, window, base }
    }

    /// The next part, with unreadable blocks as zeros.
    pub fn next_part(&mut self) -> io::Result<Option<ScannedHeader>> {
        while let Some(bytes) = self.header_bytes()? {
            let header = RecordHeader::sound(&bytes, self.seed);
            let Some((header, next)) = header.and_then(|header| self.within(header)) else {
                self.gap.get_or_insert(self.position);
                self.is_searched = true;
                self.search();
                continue;
            };
            if let Some(start) = self.gap.take() {
                return Ok(Some(ScannedHeader::Gap(start..self.position)));
            }
            let (offset, is_searched) = (self.position, self.is_searched);
            self.position = next;
            return Ok(Some(ScannedHeader::Record { offset, header, is_searched }));
        }
        let rest = (self.position < self.end).then_some(self.position);
        self.position = self.end;
        Ok(self.gap.take().or(rest).map(|start| ScannedHeader::Gap(start..self.end)))
    }

    /// The next record.
    pub fn next_record(&mut self) -> io::Result<Option<(u64, RecordHeader)>> {
        loop {
            match self.next_part()? {
                Some(ScannedHeader::Gap(_)) => {}
                Some(ScannedHeader::Record { offset, header, .. }) => {
                    return Ok(Some((offset, header)));
                }
                None => return Ok(None),
            }
        }
    }

    /// The first of `seeds` that any header is valid with.
    pub fn valid_seed(&mut self, seeds: &[u64]) -> io::Result<Option<u64>> {
        while let Some(bytes) = self.header_bytes()? {
            let is_valid = |seed: &&u64| RecordHeader::sound(&bytes, **seed).is_some();
            if let Some(&seed) = seeds.iter().find(is_valid) {
                return Ok(Some(seed));
            }
            self.search();
        }
        Ok(None)
    }

    /// A header with the end of its record, which must not be after the end of the container.
    fn within(&self, header: RecordHeader) -> Option<(RecordHeader, u64)> {
        let next = self.position + record_bytes(header.stored_length.into());
        (next <= self.end).then_some((header, next))
    }

    /// The bytes at the present position. None at the end.
    fn header_bytes(&mut self) -> io::Result<Option<[u8; RECORD_HEADER_BYTES]>> {
        let length = RECORD_HEADER_BYTES as u64;
        if self.position + length > self.end {
            return Ok(None);
        }
        let known = self.base..self.base + self.window.len() as u64;
        if self.position < known.start || self.position + length > known.end {
            self.base = self.position;
            self.window.resize(WINDOW_BYTES.min(self.end - self.base) as usize, 0);
            let count = read_readable(self.data, self.base, &mut self.window)?;
            self.window.truncate(count);
        }
        let at = (self.position - self.base) as usize;
        let bytes = self.window.get(at..).and_then(<[u8]>::first_chunk).copied();
        if bytes.is_none() {
            // The file is shorter than the caller says: nothing else can be read.
            self.gap.get_or_insert(self.position);
            self.position = self.end;
        }
        Ok(bytes)
    }

    /// Continues at the next offset with the magic of a header, or to the end of the window.
    fn search(&mut self) {
        let mut at = (self.position - self.base) as usize + RECORD_ALIGN_BYTES;
        while at + RECORD_HEADER_BYTES <= self.window.len() {
            if self.window[at..].starts_with(&MAGIC) {
                break;
            }
            at += RECORD_ALIGN_BYTES;
        }
        self.position = self.base + at as u64;
    }
}
