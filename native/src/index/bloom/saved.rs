//! The chains between two jobs: see docs/design/format.md, "Saved chains".

use std::collections::HashMap;
use std::io::Result;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use super::super::chunks::{ChunkIndex, Stamp};
use super::super::lists::{decode_blocks, decode_stamps, encode_blocks, encode_stamps};
use super::super::numbers::Numbers;
use super::units::{CHAIN_PAGES, UNIT_BYTES};
use super::{Bloom, PAGE_ROWS, PARTITIONS_MAX, first_unit, offset};
use crate::format::ids::ContainerNumber;
use crate::format::saved_index::{
    CHECKSUM_BYTES, Header, Owner, SAVED_CHAINS, block, buffered, chain, checked, header, seal,
    stamp,
};

fn header_of(index: &ChunkIndex<Bloom>) -> Header {
    Header {
        group_bits: 0,
        parts: index.suggest.buffers.len(),
        entries: index.suggest.len as u64,
        containers: index.stamps.len(),
        blocks: index.numbers.blocks().len(),
        runs: index.suggest.chains.len(),
        left_over: index.suggest.buffers.iter().map(Vec::len).sum(),
    }
}

fn list_bytes(counts: &Header) -> usize {
    counts.containers * stamp::BYTES
        + counts.blocks * block::BYTES
        + counts.runs * chain::BYTES
        + counts.left_over * buffered::BYTES
        + CHECKSUM_BYTES
}

/// The lists after the chains.
fn encode_lists(index: &ChunkIndex<Bloom>) -> Vec<u8> {
    let mut out = encode_stamps(&index.stamps);
    out.extend(encode_blocks(&index.numbers));
    for (partition, pages) in &index.suggest.chains {
        let mut row = [0; chain::BYTES];
        chain::PARTITION.put(&mut row, &partition.to_le_bytes());
        chain::PAGES.put(&mut row, &pages.to_le_bytes());
        out.extend(row);
    }
    for (partition, rows) in (0u32..).zip(&index.suggest.buffers) {
        for (signature, number) in rows {
            let mut row = [0; buffered::BYTES];
            buffered::PARTITION.put(&mut row, &partition.to_le_bytes());
            buffered::SIGNATURE.put(&mut row, &signature.to_le_bytes());
            buffered::NUMBER.put(&mut row, &number.to_le_bytes());
            out.extend(row);
        }
    }
    seal(out)
}

struct Lists {
    stamps: HashMap<ContainerNumber, Stamp>,
    numbers: Numbers,
    chains: Vec<(u32, u32)>,
    buffered: Vec<[u32; 3]>,
}

impl Lists {
    fn decode(data: &[u8], counts: &Header) -> Option<Lists> {
        let data = checked(data)?;
        let (stamps, data) = data.split_at_checked(counts.containers * stamp::BYTES)?;
        let (blocks, data) = data.split_at_checked(counts.blocks * block::BYTES)?;
        let (chains, rows) = data.split_at_checked(counts.runs * chain::BYTES)?;
        let chain = |row: &[u8]| (chain::PARTITION.u32(row), chain::PAGES.u32(row));
        let buffered = |row: &[u8]| {
            let fields = [buffered::PARTITION, buffered::SIGNATURE, buffered::NUMBER];
            fields.map(|field| field.u32(row))
        };
        let lists = Lists {
            stamps: decode_stamps(stamps),
            numbers: decode_blocks(blocks)?,
            chains: chains.chunks_exact(chain::BYTES).map(chain).collect(),
            buffered: rows.chunks_exact(buffered::BYTES).map(buffered).collect(),
        };
        let is_right = |partition: u32| (partition as usize) < counts.parts;
        let chain_is_right =
            |&(partition, pages): &(u32, u32)| is_right(partition) && pages as usize <= CHAIN_PAGES;
        (lists.chains.iter().all(chain_is_right)
            && lists.buffered.iter().all(|row| is_right(row[0]))
            && lists.fill_buffers(counts.parts)
            && lists.entries() == counts.entries)
            .then_some(lists)
    }

    /// Returns whether each write buffer has room for its entries, and for one more.
    fn fill_buffers(&self, partitions: usize) -> bool {
        let mut filled = vec![0; partitions];
        self.buffered.iter().for_each(|row| filled[row[0] as usize] += 1);
        filled.into_iter().all(|count| count < PAGE_ROWS)
    }

    /// Number of entries on pages, which are all full, and in write buffers.
    fn entries(&self) -> u64 {
        let pages: u64 = self.chains.iter().map(|&(_, pages)| u64::from(pages)).sum();
        pages * PAGE_ROWS as u64 + self.buffered.len() as u64
    }
}

impl ChunkIndex<Bloom> {
    /// Restore the chains from the file. If the file is not valid, return false and truncate it.
    /// The file becomes valid again with `write_lists` and `write_header`.
    ///
    /// The owner syncs the file before any other write to it. Otherwise a crash could leave a
    /// damaged file that looks valid.
    pub fn restore(&mut self, owner: &Owner, capacity: usize) -> Result<bool> {
        let Some((counts, lists)) = self.read_saved(owner) else {
            self.suggest.effects.truncate(self.suggest.file.as_raw_fd(), 0)?;
            return Ok(false);
        };
        let file = self.suggest.file.try_clone()?;
        let effects = self.suggest.effects.clone();
        effects.write_at(&file, &[0; header::BYTES], 0)?;
        let mut bloom =
            Bloom::with_partitions(file, self.suggest.room, effects, capacity, counts.parts);
        for (chain, &(partition, _)) in (0u32..).zip(&lists.chains) {
            bloom.chains_of[partition as usize].push(chain);
        }
        for [partition, signature, number] in lists.buffered {
            let buffer = &mut bloom.buffers[partition as usize];
            if buffer.is_empty() {
                buffer.reserve_exact(super::PAGE_ROWS);
            }
            buffer.push((signature, number));
        }
        bloom.chains = lists.chains;
        bloom.len = counts.entries as usize;
        self.suggest = bloom;
        self.stamps = lists.stamps;
        self.numbers = lists.numbers;
        Ok(true)
    }

    fn read_saved(&self, owner: &Owner) -> Option<(Header, Lists)> {
        let file = &self.suggest.file;
        let mut header = [0; header::BYTES];
        file.read_exact_at(&mut header, 0).ok()?;
        let counts = Header::of(&header, &SAVED_CHAINS, owner)?;
        let start = offset(first_unit(counts.runs));
        let is_whole = file.metadata().ok()?.len() == start + list_bytes(&counts) as u64;
        let has_partitions = (1..=PARTITIONS_MAX).contains(&counts.parts);
        if !is_whole || counts.group_bits != 0 || !has_partitions {
            return None;
        }
        let mut data = vec![0; list_bytes(&counts)];
        file.read_exact_at(&mut data, start).ok()?;
        let lists = Lists::decode(&data, &counts)?;
        Some((counts, lists))
    }

    /// Write the lists that the next job needs in addition to the chains. They become valid with
    /// `write_header`; the owner syncs the file before that call.
    pub fn write_lists(&self) -> Result<()> {
        let Bloom { file, room, effects, .. } = &self.suggest;
        let start = offset(first_unit(self.suggest.chains.len()));
        let lists = encode_lists(self);
        room.require(file, lists.len())?;
        effects.write_at(file, &lists, start)?;
        effects.truncate(file.as_raw_fd(), start + lists.len() as u64)
    }

    pub fn write_header(&self, owner: &Owner) -> Result<()> {
        let mut first = header_of(self).to_bytes(&SAVED_CHAINS, owner).to_vec();
        first.resize(UNIT_BYTES, 0);
        self.suggest.effects.write_at(&self.suggest.file, &first, 0)
    }
}
