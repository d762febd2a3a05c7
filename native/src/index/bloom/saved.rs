//! The chains between two jobs: see docs/format.md, "Saved chains".

use std::collections::HashMap;
use std::io::Result;
use std::os::unix::fs::FileExt;

use super::super::chunks::{ChunkIndex, Stamp};
use super::super::lists::{
    Header, Owner, STAMP_BYTES, checked, decode_blocks, decode_stamps, encode_blocks,
    encode_stamps, halves, seal,
};
use super::super::numbers::Numbers;
use super::units::{CHAIN_PAGES, UNIT_BYTES};
use super::{Bloom, first_unit, offset};

const MAGIC: &[u8; 8] = b"DEDUPBLM";
const FORMAT: u16 = 1;
const CHAIN_BYTES: usize = 8;
const BUFFERED_BYTES: usize = 12;
const CHECK_BYTES: usize = 8;

/// How many there are of what the file consists of.
struct Counts {
    partitions: usize,
    entries: u64,
    stamps: usize,
    blocks: usize,
    chains: usize,
    buffered: usize,
}

impl Counts {
    fn of(index: &ChunkIndex<Bloom>) -> Counts {
        Counts {
            partitions: index.suggest.buffers.len(),
            entries: index.suggest.len as u64,
            stamps: index.stamps.len(),
            blocks: index.numbers.blocks().len(),
            chains: index.suggest.chains.len(),
            buffered: index.suggest.buffers.iter().map(Vec::len).sum(),
        }
    }

    fn list_bytes(&self) -> usize {
        self.stamps * STAMP_BYTES
            + self.blocks * 8
            + self.chains * CHAIN_BYTES
            + self.buffered * BUFFERED_BYTES
            + CHECK_BYTES
    }

    fn encode(&self, owner: &Owner) -> Vec<u8> {
        let header = Header {
            byte: 0,
            parts: self.partitions as u32,
            entries: self.entries,
            counts: [self.stamps, self.blocks, self.chains, self.buffered].map(|n| n as u32),
        };
        header.encode(MAGIC, FORMAT, owner)
    }

    /// None for another volume's chains, those of another format, or damaged ones.
    fn decode(data: &[u8], owner: &Owner) -> Option<Counts> {
        let header = Header::decode(data, MAGIC, FORMAT, owner)?;
        let [stamps, blocks, chains, buffered] = header.counts.map(|count| count as usize);
        let (partitions, entries) = (header.parts as usize, header.entries);
        (header.byte == 0 && partitions > 0).then_some(Counts {
            partitions,
            entries,
            stamps,
            blocks,
            chains,
            buffered,
        })
    }
}

/// The lists behind the chains.
fn encode_lists(index: &ChunkIndex<Bloom>) -> Vec<u8> {
    let mut out = encode_stamps(&index.stamps);
    out.extend(encode_blocks(&index.numbers));
    for (partition, pages) in &index.suggest.chains {
        out.extend(partition.to_le_bytes());
        out.extend(pages.to_le_bytes());
    }
    for (partition, rows) in (0u32..).zip(&index.suggest.buffers) {
        for (signature, number) in rows {
            for word in [partition, *signature, *number] {
                out.extend(word.to_le_bytes());
            }
        }
    }
    seal(out)
}

struct Lists {
    stamps: HashMap<u32, Stamp>,
    numbers: Numbers,
    chains: Vec<(u32, u32)>,
    buffered: Vec<[u32; 3]>,
}

impl Lists {
    fn decode(data: &[u8], counts: &Counts) -> Option<Lists> {
        let data = checked(data)?;
        let (stamps, data) = data.split_at_checked(counts.stamps * STAMP_BYTES)?;
        let (blocks, data) = data.split_at_checked(counts.blocks * 8)?;
        let (chains, buffered) = data.split_at_checked(counts.chains * CHAIN_BYTES)?;
        let words = |row: &[u8]| -> [u32; 3] {
            let mut words = halves(row);
            std::array::from_fn(|_| words.next().unwrap_or_default())
        };
        let lists = Lists {
            stamps: decode_stamps(stamps),
            numbers: decode_blocks(blocks)?,
            chains: chains.chunks_exact(CHAIN_BYTES).map(words).map(|[a, b, _]| (a, b)).collect(),
            buffered: buffered.chunks_exact(BUFFERED_BYTES).map(words).collect(),
        };
        let is_right = |partition: u32| (partition as usize) < counts.partitions;
        let chain_is_right =
            |&(partition, pages): &(u32, u32)| is_right(partition) && pages as usize <= CHAIN_PAGES;
        (lists.chains.iter().all(chain_is_right)
            && lists.buffered.iter().all(|row| is_right(row[0])))
        .then_some(lists)
    }
}

impl ChunkIndex<Bloom> {
    /// Take what the file has in place of the empty chains; false, and an empty file, where it is not
    /// valid. The file is not valid from here on, until `write_lists` and `write_header`.
    ///
    /// The owner makes that durable before it goes on, lest a crash leave a file that only looks valid.
    pub fn restore(&mut self, owner: &Owner, capacity: usize) -> Result<bool> {
        let Some((counts, lists)) = self.read_saved(owner) else {
            self.suggest.file.set_len(0)?;
            return Ok(false);
        };
        let file = self.suggest.file.try_clone()?;
        file.write_all_at(&[0; Header::BYTES], 0)?;
        let mut bloom = Bloom::with_partitions(file, capacity, counts.partitions);
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

    fn read_saved(&self, owner: &Owner) -> Option<(Counts, Lists)> {
        let file = &self.suggest.file;
        let mut header = [0; Header::BYTES];
        file.read_exact_at(&mut header, 0).ok()?;
        let counts = Counts::decode(&header, owner)?;
        let start = offset(first_unit(counts.chains));
        if file.metadata().ok()?.len() != start + counts.list_bytes() as u64 {
            return None;
        }
        let mut data = vec![0; counts.list_bytes()];
        file.read_exact_at(&mut data, start).ok()?;
        let lists = Lists::decode(&data, &counts)?;
        Some((counts, lists))
    }

    /// Write what the next job needs beside the chains. It counts once `write_header` was called,
    /// before which the owner makes all of the file durable.
    pub fn write_lists(&self) -> Result<()> {
        let file = &self.suggest.file;
        let start = offset(first_unit(self.suggest.chains.len()));
        let lists = encode_lists(self);
        file.write_all_at(&lists, start)?;
        file.set_len(start + lists.len() as u64)
    }

    pub fn write_header(&self, owner: &Owner) -> Result<()> {
        let mut first = Counts::of(self).encode(owner);
        first.resize(UNIT_BYTES, 0);
        self.suggest.file.write_all_at(&first, 0)
    }
}
