//! The table as a file: see docs/format.md, "Saved table".

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;

use super::chunks::{ChunkIndex, Stamp};
use super::group::{BUCKET_BYTES, Group, SLOTS, Slot};
use super::lists::{
    Header, Owner, STAMP_BYTES, checked, decode_blocks, decode_stamps, encode_blocks,
    encode_stamps, halves, seal, words,
};
use super::numbers::Numbers;
use super::table::{GROUP_BITS_MAX, Table};

const MAGIC: &[u8; 8] = b"DEDUPTBL";
const FORMAT: u16 = 2;
const STASHED_BYTES: usize = 16;
const CHECK_BYTES: usize = 8;

/// How many there are of what a file consists of.
struct Counts {
    group_bits: u32,
    groups: usize,
    entries: u64,
    stamps: usize,
    blocks: usize,
    planes: usize,
    stashed: usize,
}

impl Counts {
    fn of(index: &ChunkIndex<Table>) -> Counts {
        Counts {
            group_bits: index.suggest.group_bits,
            groups: index.suggest.groups.len(),
            entries: index.suggest.len() as u64,
            stamps: index.stamps.len(),
            blocks: index.numbers.blocks().len(),
            planes: index.suggest.groups.iter().map(Group::planes).sum(),
            stashed: index.suggest.stash.values().map(Vec::len).sum(),
        }
    }

    /// Bytes of the lists between the header and the planes, without their checksum.
    fn list_bytes(&self) -> usize {
        self.stamps * STAMP_BYTES + self.blocks * 8 + self.groups * 4 + self.stashed * STASHED_BYTES
    }

    fn plane_bytes(&self) -> usize {
        BUCKET_BYTES << self.group_bits
    }

    fn file_bytes(&self) -> usize {
        Header::BYTES
            + self.list_bytes()
            + CHECK_BYTES
            + self.planes * (self.plane_bytes() + CHECK_BYTES)
    }

    fn encode(&self, owner: &Owner) -> Vec<u8> {
        let header = Header {
            byte: self.group_bits as u8,
            parts: self.groups as u32,
            entries: self.entries,
            counts: [self.stamps, self.blocks, self.planes, self.stashed].map(|n| n as u32),
        };
        header.encode(MAGIC, FORMAT, owner)
    }

    /// None for another volume's table, one of another format, or one that is damaged.
    fn decode(data: &[u8], owner: &Owner) -> Option<Counts> {
        let header = Header::decode(data, MAGIC, FORMAT, owner)?;
        let [stamps, blocks, planes, stashed] = header.counts.map(|count| count as usize);
        let group_bits = header.byte.into();
        let (groups, entries) = (header.parts as usize, header.entries);
        (group_bits <= GROUP_BITS_MAX && groups > 0).then_some(Counts {
            group_bits,
            groups,
            entries,
            stamps,
            blocks,
            planes,
            stashed,
        })
    }
}

fn encode_lists(index: &ChunkIndex<Table>) -> Vec<u8> {
    let mut out = encode_stamps(&index.stamps);
    out.extend(encode_blocks(&index.numbers));
    for group in &index.suggest.groups {
        out.extend((group.planes() as u32).to_le_bytes());
    }
    for ((signature, bucket), numbers) in &index.suggest.stash {
        for number in numbers {
            out.extend(bucket.to_le_bytes());
            out.extend(u32::from(*signature).to_le_bytes());
            out.extend(number.to_le_bytes());
        }
    }
    seal(out)
}

fn encode_plane(group: &Group, plane: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(group.buckets() * BUCKET_BYTES + CHECK_BYTES);
    for bucket in 0..group.buckets() {
        let entries = (0..SLOTS).map(|at| group.entry(bucket, Slot { plane, at }));
        entries.clone().for_each(|(signature, _)| out.extend(signature.to_le_bytes()));
        entries.for_each(|(_, number)| out.extend(number.to_le_bytes()));
    }
    seal(out)
}

fn decode_plane(data: &[u8], group: &mut Group, plane: usize) {
    for (bucket, data) in data.chunks_exact(BUCKET_BYTES).enumerate() {
        let (signatures, numbers) = data.split_at(SLOTS * 2);
        for at in 0..SLOTS {
            let signature = u16::from_le_bytes([signatures[2 * at], signatures[2 * at + 1]]);
            let number = numbers[4 * at..].first_chunk().map_or(0, |n| u32::from_le_bytes(*n));
            group.set(bucket, Slot { plane, at }, signature, number);
        }
    }
}

/// Part `part` of the file, None behind the last one: a part at a time, for the sake of memory.
pub fn part(index: &ChunkIndex<Table>, owner: &Owner, part: usize) -> Option<Vec<u8>> {
    match part {
        0 => Some(Counts::of(index).encode(owner)),
        1 => Some(encode_lists(index)),
        _ => {
            let planes = |group| (0..Group::planes(group)).map(move |plane| (group, plane));
            let (group, plane) = index.suggest.groups.iter().flat_map(planes).nth(part - 2)?;
            Some(encode_plane(group, plane))
        }
    }
}

/// Table, record numbers and stamps of a file; None, for whatever reason, where it is not valid.
pub fn read(file: &File, owner: &Owner) -> Option<(Table, Numbers, HashMap<u32, Stamp>)> {
    let at = |offset: usize, length: usize| -> Option<Vec<u8>> {
        let mut data = vec![0; length];
        file.read_exact_at(&mut data, offset as u64).ok().map(|()| data)
    };
    let counts = Counts::decode(&at(0, Header::BYTES)?, owner)?;
    if file.metadata().ok()?.len() != counts.file_bytes() as u64 {
        return None;
    }
    let lists = at(Header::BYTES, counts.list_bytes() + CHECK_BYTES)?;
    let mut lists = checked(&lists)?;
    let mut take = |length: usize| {
        let (taken, rest) = lists.split_at(length);
        lists = rest;
        taken.to_vec()
    };
    let stamps = decode_stamps(&take(counts.stamps * STAMP_BYTES));
    let numbers = decode_blocks(&take(counts.blocks * 8))?;
    let widths: Vec<usize> = halves(&take(counts.groups * 4)).map(|width| width as usize).collect();
    let stashed = take(counts.stashed * STASHED_BYTES);
    if widths.iter().sum::<usize>() != counts.planes || widths.contains(&0) {
        return None;
    }
    let mut offset = Header::BYTES + counts.list_bytes() + CHECK_BYTES;
    let mut groups: Vec<Group> = Vec::new();
    for planes in widths {
        let mut group = Group::new(1 << counts.group_bits, planes);
        for plane in 0..planes {
            let data = at(offset, counts.plane_bytes() + CHECK_BYTES)?;
            decode_plane(checked(&data)?, &mut group, plane);
            offset += data.len();
        }
        groups.push(group);
    }
    let mut table = Table::from_groups(counts.group_bits, groups);
    for row in stashed.chunks_exact(STASHED_BYTES) {
        let bucket = words(row).next()?;
        let last: Vec<u32> = halves(&row[8..]).collect();
        table.stash.entry((last[0] as u16, bucket)).or_default().push(last[1]);
        table.len += 1;
    }
    (table.len() as u64 == counts.entries).then_some((table, numbers, stamps))
}

impl ChunkIndex<Table> {
    /// Take what a file has in place of the empty table; false, and an empty one that is ready for
    /// `capacity` entries, where the file is not valid.
    pub fn restore(&mut self, file: &File, owner: &Owner, capacity: usize) -> bool {
        // There is never memory for two.
        self.suggest = Table::with_capacity(0);
        let Some((table, numbers, stamps)) = read(file, owner) else {
            self.suggest = Table::with_capacity(capacity);
            return false;
        };
        self.suggest = table;
        self.numbers = numbers;
        self.stamps = stamps;
        self.has_snapshot = true;
        true
    }
}
