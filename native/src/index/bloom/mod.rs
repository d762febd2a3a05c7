//! Suggestions in one to two bytes of RAM per entry: BloomStore (seed 002, chapter 4).
//!
//! Keys are divided by their hashes into partitions. Each partition has a write buffer of one page
//! of entries, and a chain of full pages in a file, with a Bloom filter for each page. A key that
//! is not in the pre-filter, a filter in RAM, is new. For other keys, the filters of the chain are
//! read, and then each page whose filter matches.
//!
//! The file contains only derived data: damage is detected, and the file is then rebuilt from the
//! log. Entries that do not fit on the disk without using the reserve are omitted.

mod positions;
mod prefilter;
pub mod saved;
mod units;

use std::fs::File;
use std::io::{Error, ErrorKind, Result};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use self::prefilter::Prefilter;
use self::units::{CHAIN_BLOCKS, CHAIN_PAGES, CHAIN_UNITS, PAGE_ROWS, Row, UNIT_BYTES};
use super::suggest::Suggest;
use crate::system::effects::Effects;
use crate::system::room::Room;

/// Partitions of a small index: 64 KiB of write buffers.
const PARTITIONS_MIN: usize = 16;

/// Partitions of the largest index: record numbers have 32 bits.
const PARTITIONS_MAX: usize = partitions_for(u32::MAX as usize);

/// Partitions of an index for `capacity` entries.
const fn partitions_for(capacity: usize) -> usize {
    capacity * ROOM.0 / ROOM.1 / (CHAIN_PAGES * PAGE_ROWS) + 1
}

/// Room of the first chains, as a fraction of the expected entries: numerator, denominator.
const ROOM: (usize, usize) = (3, 2);

/// Average number of chains per partition from which more partitions are worth a complete scan.
const CHAINS_WIDE: usize = 4;

pub struct Bloom {
    file: File,
    /// The space of the file system that the file may use.
    room: Room,
    /// The functions that change the file.
    effects: Arc<dyn Effects>,
    prefilter: Prefilter,
    /// The entries of each partition that are not on a page yet.
    buffers: Vec<Vec<Row>>,
    /// The chains of each partition, the newest last.
    chains_of: Vec<Vec<u32>>,
    /// Partition and number of pages of each chain.
    chains: Vec<(u32, u32)>,
    len: usize,
    /// Number of reads for look-ups.
    reads: u64,
    /// The blocks of a chain during a change.
    blocks: Vec<u8>,
    /// True if entries were omitted because the disk is full.
    is_lossy: bool,
}

impl Bloom {
    /// `file` must be empty, unless the caller calls `restore` next.
    pub fn new(file: File, room: Room, effects: Arc<dyn Effects>, capacity: usize) -> Bloom {
        let partitions = partitions_for(capacity).max(PARTITIONS_MIN);
        Bloom::with_partitions(file, room, effects, capacity, partitions)
    }

    fn with_partitions(
        file: File,
        room: Room,
        effects: Arc<dyn Effects>,
        capacity: usize,
        partitions: usize,
    ) -> Bloom {
        Bloom {
            file,
            room,
            effects,
            prefilter: Prefilter::new(capacity),
            buffers: vec![Vec::new(); partitions],
            chains_of: vec![Vec::new(); partitions],
            chains: Vec::new(),
            len: 0,
            reads: 0,
            blocks: vec![0; CHAIN_BLOCKS * UNIT_BYTES],
            is_lossy: false,
        }
    }

    /// The partition of a hash, and its signature there, which uses other bits.
    fn place(&self, hash: u64) -> (usize, u32) {
        let partition = u128::from(hash.rotate_left(32)) * self.buffers.len() as u128;
        ((partition >> 64) as usize, (hash >> 32) as u32)
    }

    /// Move a full write buffer to a page of the partition's chain.
    fn flush(&mut self, partition: usize) -> Result<()> {
        match self.write_page(partition) {
            Err(error) if is_full(&error) => self.is_lossy = true,
            done => done?,
        }
        self.buffers[partition].clear();
        Ok(())
    }

    fn write_page(&mut self, partition: usize) -> Result<()> {
        let has_room = |&&chain: &&u32| self.chains[chain as usize].1 < CHAIN_PAGES as u32;
        let chain = match self.chains_of[partition].last().filter(has_room) {
            Some(&chain) => chain as usize,
            None => {
                self.chains_of[partition].push(self.chains.len() as u32);
                self.chains.push((partition as u32, 0));
                self.chains.len() - 1
            }
        };
        let page = self.chains[chain].1 as usize;
        let first = first_unit(chain);
        let unit = first + (CHAIN_BLOCKS + page) as u64;
        let rows = &self.buffers[partition];
        self.room.require(&self.file, UNIT_BYTES + self.blocks.len())?;
        self.effects.write_at(&self.file, &units::encode_page(rows, unit), offset(unit))?;
        if page == 0 {
            self.blocks.fill(0);
        } else {
            read_units(&self.file, &mut self.blocks, first)?;
        }
        for &(signature, _) in rows {
            units::mark(&mut self.blocks, page, signature);
        }
        units::seal(&mut self.blocks, first);
        self.effects.write_at(&self.file, &self.blocks, offset(first))?;
        self.chains[chain].1 += 1;
        Ok(())
    }

    /// Append a chain's record numbers of a key.
    fn search_chain(&mut self, chain: usize, signature: u32, found: &mut Vec<u32>) -> Result<()> {
        let first = first_unit(chain);
        let pages = self.chains[chain].1;
        if pages == 0 {
            return Ok(());
        }
        let block = self.read_unit(first + units::block_of(signature) as u64)?;
        // Filters of incomplete pages are ignored.
        let mut yes =
            units::filters(&block, signature) & (u128::MAX >> (CHAIN_PAGES as u32 - pages));
        while yes != 0 {
            let page = yes.ilog2();
            yes ^= 1 << page;
            let page = self.read_unit(first + (CHAIN_BLOCKS as u64) + u64::from(page))?;
            found.extend(units::matches(&page, signature));
        }
        Ok(())
    }

    fn read_unit(&mut self, unit: u64) -> Result<[u8; UNIT_BYTES]> {
        let mut data = [0; UNIT_BYTES];
        self.reads += 1;
        read_units(&self.file, &mut data, unit)?;
        Ok(data)
    }
}

/// The first unit of a chain; all chains follow the first unit of the file.
fn first_unit(chain: usize) -> u64 {
    1 + (chain * CHAIN_UNITS) as u64
}

fn offset(unit: u64) -> u64 {
    unit * UNIT_BYTES as u64
}

/// Read sealed units. A unit that cannot be read counts as damaged.
fn read_units(file: &File, data: &mut [u8], unit: u64) -> Result<()> {
    let read = file.read_exact_at(data, offset(unit));
    match read.is_ok() && units::are_valid(data, unit) {
        true => Ok(()),
        false => Err(Error::from(ErrorKind::InvalidData)),
    }
}

fn is_full(error: &Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOSPC | libc::EDQUOT))
}

impl Suggest for Bloom {
    fn prefetch(&self, hash: u64) {
        self.prefilter.prefetch(hash);
    }

    fn may_have(&self, hash: u64, _: &mut Vec<u32>) -> bool {
        self.prefilter.may_have(hash)
    }

    fn search(&mut self, hash: u64, found: &mut Vec<u32>) -> Result<()> {
        let (partition, signature) = self.place(hash);
        let buffered = self.buffers[partition].iter().rev().filter(|row| row.0 == signature);
        found.extend(buffered.map(|row| row.1));
        for at in (0..self.chains_of[partition].len()).rev() {
            self.search_chain(self.chains_of[partition][at] as usize, signature, found)?;
        }
        Ok(())
    }

    fn note(&mut self, hash: u64) {
        self.prefilter.insert(hash);
    }

    fn add(&mut self, hash: u64, number: u32) -> Result<()> {
        let (partition, signature) = self.place(hash);
        let buffer = &mut self.buffers[partition];
        if buffer.is_empty() {
            buffer.reserve_exact(PAGE_ROWS);
        }
        buffer.push((signature, number));
        self.len += 1;
        if buffer.len() == PAGE_ROWS { self.flush(partition) } else { Ok(()) }
    }

    fn len(&self) -> usize {
        self.len
    }

    fn bytes(&self) -> usize {
        self.prefilter.bytes()
            + self.buffers.iter().map(|rows| rows.capacity() * size_of::<Row>()).sum::<usize>()
            + self.buffers.len() * (size_of::<Vec<Row>>() + size_of::<Vec<u32>>())
            + self.chains.len() * (size_of::<(u32, u32)>() + size_of::<u32>())
            + self.blocks.len()
    }

    fn reads(&self) -> u64 {
        self.reads
    }

    fn is_lossy(&self) -> bool {
        self.is_lossy
    }

    fn is_wide(&self) -> bool {
        self.prefilter.is_wide() || self.chains.len() >= CHAINS_WIDE * self.buffers.len()
    }

    fn renew(&mut self, capacity: usize) -> Result<()> {
        self.effects.truncate(self.file.as_raw_fd(), 0)?;
        // The memory of the old filter is freed first.
        self.prefilter = Prefilter::new(0);
        let reads = self.reads;
        *self = Bloom::new(self.file.try_clone()?, self.room, self.effects.clone(), capacity);
        self.reads = reads;
        Ok(())
    }
}
