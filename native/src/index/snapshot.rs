//! The table as a file: see docs/design/format.md, "Saved table".

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;

use super::chunks::{ChunkIndex, Stamp};
use super::group::{BUCKET_BYTES, Group, SLOTS, Slot};
use super::lists::{decode_blocks, decode_stamps, encode_blocks, encode_stamps};
use super::numbers::Numbers;
use super::table::{GROUP_BITS_MAX, Table};
use crate::format::bytes::{u16s, u32s};
use crate::format::ids::ContainerNumber;
use crate::format::saved_index::{
    CHECKSUM_BYTES, Header, Owner, SAVED_TABLE, block, bucket, checked, group, header, seal, stamp,
    stashed,
};

const _: () = assert!(bucket::BYTES == BUCKET_BYTES);

fn header_of(index: &ChunkIndex<Table>) -> Header {
    Header {
        group_bits: index.suggest.group_bits,
        parts: index.suggest.groups.len(),
        entries: index.suggest.len() as u64,
        containers: index.stamps.len(),
        blocks: index.numbers.blocks().len(),
        runs: index.suggest.groups.iter().map(Group::planes).sum(),
        left_over: index.suggest.stash.values().map(Vec::len).sum(),
    }
}

/// Bytes of the lists between the header and the planes, with their checksum.
fn list_bytes(counts: &Header) -> usize {
    counts.containers * stamp::BYTES
        + counts.blocks * block::BYTES
        + counts.parts * group::BYTES
        + counts.left_over * stashed::BYTES
        + CHECKSUM_BYTES
}

fn encode_lists(index: &ChunkIndex<Table>) -> Vec<u8> {
    let mut out = encode_stamps(&index.stamps);
    out.extend(encode_blocks(&index.numbers));
    for group in &index.suggest.groups {
        out.extend((group.planes() as u32).to_le_bytes());
    }
    for ((signature, bucket), numbers) in &index.suggest.stash {
        for number in numbers {
            let mut row = [0; stashed::BYTES];
            stashed::BUCKET.put(&mut row, &bucket.to_le_bytes());
            stashed::SIGNATURE.put(&mut row, &u32::from(*signature).to_le_bytes());
            stashed::NUMBER.put(&mut row, &number.to_le_bytes());
            out.extend(row);
        }
    }
    seal(out)
}

fn encode_plane(group: &Group, plane: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(group.buckets() * bucket::BYTES + CHECKSUM_BYTES);
    for bucket in 0..group.buckets() {
        let entries = (0..SLOTS).map(|at| group.entry(bucket, Slot { plane, at }));
        entries.clone().for_each(|(signature, _)| out.extend(signature.to_le_bytes()));
        entries.for_each(|(_, number)| out.extend(number.to_le_bytes()));
    }
    seal(out)
}

fn decode_plane(data: &[u8], group: &mut Group, plane: usize) {
    for (number, data) in data.chunks_exact(bucket::BYTES).enumerate() {
        let signatures = u16s(bucket::SIGNATURES.of(data));
        for (at, (signature, entry)) in signatures.zip(u32s(bucket::NUMBERS.of(data))).enumerate() {
            group.set(number, Slot { plane, at }, signature, entry);
        }
    }
}

/// Part `part` of the file, None after the last part. Writing in parts takes little memory.
pub fn part(index: &ChunkIndex<Table>, owner: &Owner, part: usize) -> Option<Vec<u8>> {
    match part {
        0 => Some(header_of(index).to_bytes(&SAVED_TABLE, owner).to_vec()),
        1 => Some(encode_lists(index)),
        _ => {
            let planes = |group| (0..Group::planes(group)).map(move |plane| (group, plane));
            let (group, plane) = index.suggest.groups.iter().flat_map(planes).nth(part - 2)?;
            Some(encode_plane(group, plane))
        }
    }
}

/// Table, record numbers and stamps of a file. None if it cannot be read, or is not valid.
pub fn read(
    file: &File,
    owner: &Owner,
) -> Option<(Table, Numbers, HashMap<ContainerNumber, Stamp>)> {
    let at = |offset: usize, length: usize| -> Option<Vec<u8>> {
        let mut data = vec![0; length];
        file.read_exact_at(&mut data, offset as u64).ok().map(|()| data)
    };
    let counts = Header::of(at(0, header::BYTES)?.first_chunk()?, &SAVED_TABLE, owner)?;
    if counts.group_bits > GROUP_BITS_MAX || counts.parts == 0 {
        return None;
    }
    let plane_bytes = (bucket::BYTES << counts.group_bits) + CHECKSUM_BYTES;
    let mut offset = header::BYTES + list_bytes(&counts);
    if file.metadata().ok()?.len() != (offset + counts.runs * plane_bytes) as u64 {
        return None;
    }
    let lists = at(header::BYTES, list_bytes(&counts))?;
    let mut lists = checked(&lists)?;
    let mut take = |length: usize| {
        let (taken, rest) = lists.split_at(length);
        lists = rest;
        taken.to_vec()
    };
    let stamps = decode_stamps(&take(counts.containers * stamp::BYTES));
    let numbers = decode_blocks(&take(counts.blocks * block::BYTES))?;
    let widths: Vec<usize> =
        u32s(&take(counts.parts * group::BYTES)).map(|width| width as usize).collect();
    let left_over = take(counts.left_over * stashed::BYTES);
    if widths.iter().sum::<usize>() != counts.runs || widths.contains(&0) {
        return None;
    }
    let mut groups: Vec<Group> = Vec::new();
    for planes in widths {
        let mut group = Group::new(1 << counts.group_bits, planes);
        for plane in 0..planes {
            let data = at(offset, plane_bytes)?;
            decode_plane(checked(&data)?, &mut group, plane);
            offset += data.len();
        }
        groups.push(group);
    }
    let mut table = Table::from_groups(counts.group_bits, groups);
    for row in left_over.chunks_exact(stashed::BYTES) {
        let key = (stashed::SIGNATURE.u32(row) as u16, stashed::BUCKET.u64(row));
        table.stash.entry(key).or_default().push(stashed::NUMBER.u32(row));
        table.len += 1;
    }
    (table.len() as u64 == counts.entries).then_some((table, numbers, stamps))
}

impl ChunkIndex<Table> {
    /// Restore the table from a file. If the file is not valid, returns false and leaves an empty
    /// table with room for `capacity` entries.
    pub fn restore(&mut self, file: &File, owner: &Owner, capacity: usize) -> bool {
        // Frees the old table first, because there may not be memory for two.
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
