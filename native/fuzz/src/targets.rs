//! Properties of every input: no panic, and no more memory than the input warrants. Accepted data
//! is encoded to the same bytes, and a flipped bit is refused if a checksum covers it.

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsRawFd, FromRawFd};
use std::sync::Arc;

use native::codec::encode;
use native::fingerprint::Algorithm;
use native::format::codec::Codec;
use native::format::deletion;
use native::format::ids::{Checksum, ContainerNumber, RecordId};
use native::format::recipe::rows_of;
use native::format::record_header::{RECORD_HEADER_BYTES, RecordHeader, RecordKind};
use native::format::saved_index::{Header, Owner, SAVED_CHAINS, SAVED_TABLE, checked, seal};
use native::format::stub::stub_head;
use native::format::table_entry::{ENTRY_BYTES, TableEntry, entries, set_state};
use native::index::bloom::Bloom;
use native::index::chunks::ChunkIndex;
use native::index::log::Log;
use native::index::snapshot;
use native::store::container_check::ContainerCheck;
use native::store::record_check;
use native::system::effects::SystemCalls;
use native::system::room::Room;
use native::upkeep::mark_set::Marks;

#[path = "pages.rs"]
mod pages;
#[path = "requests.rs"]
mod requests;

pub type Target = fn(&[u8]);

const SEED: u64 = 0x5EED;

/// An input may state lengths of gigabytes; a decoder may trust lengths that it has checked.
const RAW_BYTES_MAX: usize = 1 << 20;

pub const TARGETS: [(&str, Target); 12] = [
    ("codec", codec),
    ("container", container),
    ("deletions", deletions),
    ("marks", marks),
    ("pages", pages::pages),
    ("recipe", recipe),
    ("record", record),
    ("requests", requests::requests),
    ("saved_chains", saved_chains),
    ("saved_table", saved_table),
    ("stub", stub),
    ("table", table),
];

pub fn named(name: &str) -> Option<Target> {
    TARGETS.iter().find(|(one, _)| *one == name).map(|(_, target)| *target)
}

/// The input in parts: numbers first; the rest is for consumers of bytes.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn bytes<const N: usize>(&mut self) -> [u8; N] {
        let mut out = [0; N];
        let (taken, rest) = self.0.split_at(self.0.len().min(N));
        out[..taken.len()].copy_from_slice(taken);
        self.0 = rest;
        out
    }

    fn u8(&mut self) -> u8 {
        self.bytes::<1>()[0]
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.bytes())
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.bytes())
    }

    fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }
}

fn header(input: &mut Input<'_>) -> RecordHeader {
    let ordinal = input.u32();
    RecordHeader {
        ordinal,
        collected: ordinal.min(input.u8().into()) as u16,
        kind: RecordKind(input.u8() % 5),
        codec: Codec::from(input.u8() % 3),
        raw_length: input.u32(),
        stored_length: input.u32(),
        hint: input.u32(),
        fingerprint: input.bytes(),
        target: input.u64(),
        checksum: Checksum(input.u64()),
    }
}

fn record(data: &[u8]) {
    if let Some(bytes) = data.first_chunk::<RECORD_HEADER_BYTES>()
        && let Some(found) = RecordHeader::sound(bytes, SEED)
    {
        let mut again = [0; RECORD_HEADER_BYTES];
        found.write(&mut again, SEED);
        assert_eq!(&again[..72], &bytes[..72]);
    }
    let mut input = Input(data);
    let made = header(&mut input);
    let mut bytes = [0; RECORD_HEADER_BYTES];
    made.write(&mut bytes, SEED);
    let found = RecordHeader::sound(&bytes, SEED).expect("its own header is refused");
    let entry = found.table_entry(input.u64());
    assert_eq!(
        TableEntry::sound(&entry.to_bytes(SEED), SEED).map(|e| e.offset),
        Some(entry.offset)
    );
    assert!(found.next_ordinal() > found.ordinal || found.ordinal == u32::MAX);
    let _ = found.agrees_with(&entry, found.ordinal);
    assert!(RecordHeader::sound(&bytes, SEED + 1).is_none(), "of another container");
    let bit = usize::from(input.u8()) * 256 + usize::from(input.u8());
    bytes[bit / 8 % RECORD_HEADER_BYTES] ^= 1 << (bit % 8);
    assert!(RecordHeader::sound(&bytes, SEED).is_none(), "a flipped bit is accepted");
}

fn check(data: &[u8]) -> record_check::Checked {
    let place = record_check::CheckOptions {
        seed: SEED,
        offset: 128,
        algorithm: Algorithm::Blake3,
        threads: 1,
        bases: None,
    };
    let found = record_check::check(data, &place);
    assert!(found.consumed <= data.len());
    found
}

/// The check of a container ends, whatever its records and its table are.
fn check_container(records: &[u8], table: &[u8]) {
    let file = file_of(records);
    let end = records.len() as u64;
    let data = file.as_raw_fd();
    for is_forgeable in [true, false] {
        let mut check = ContainerCheck::new(data, table.to_vec(), SEED, (0, 0), end);
        check.is_forgeable = is_forgeable;
        check.threads = 1;
        while check.reached.offset < end {
            let before = check.reached.offset;
            check.step(u64::MAX).expect("a file in memory can be read");
            assert!(check.reached.offset > before, "no progress");
        }
        check.finish().expect("a file in memory can be read");
    }
}

/// A log with the bytes of the input, and a log of deletions with sound heads, and with the bytes
/// of the input as paths, attributes and lengths.
fn deletions(data: &[u8]) {
    for is_proven in [true, false] {
        for uid in [None, Some(7)] {
            deletions_of(deletion::Log { data, base: 64, seed: SEED, is_proven, uid });
        }
    }
    let mut input = Input(data);
    let mut made = Vec::new();
    for _ in 0..input.u8() % 8 {
        let mut head: [u8; deletion::head::BYTES] = input.bytes();
        deletion::head::MAGIC.put(&mut head, b"DDDL");
        if input.u8() % 8 > 0 {
            deletion::head::CAUSE.put(&mut head, &[1 + input.u8() % 4]);
            deletion::head::PATH_BYTES.put(&mut head, &u16::from(input.u8()).to_le_bytes());
            deletion::head::ATTRIBUTES.put(&mut head, &u16::from(input.u8() % 3).to_le_bytes());
            let attributes_bytes = u32::from(input.u8());
            deletion::head::ATTRIBUTES_BYTES.put(&mut head, &attributes_bytes.to_le_bytes());
        }
        let tail = input.rest();
        let (tail, rest) = tail.split_at(deletion::tail_bytes(&head).min(tail.len()));
        input = Input(rest);
        deletion::seal(&mut head, tail, SEED, made.len());
        made.extend_from_slice(&head);
        made.extend_from_slice(tail);
        made.resize(made.len().next_multiple_of(8), 0);
    }
    let whole = deletions_of(deletion::Log {
        data: &made,
        base: 0,
        seed: SEED,
        is_proven: true,
        uid: None,
    });
    let own = deletions_of(deletion::Log {
        data: &made,
        base: 0,
        seed: SEED,
        is_proven: true,
        uid: Some(7),
    });
    assert!(own.rows.iter().all(|row| row.uid() == 7 && whole.rows.contains(row)));
    let other = deletion::Log { data: &made, base: 8, seed: SEED, is_proven: true, uid: None };
    assert!(deletions_of(other).rows.is_empty(), "accepted at another offset");
}

fn deletions_of(log: deletion::Log<'_>) -> deletion::Content {
    let spans: Vec<_> = log.spans().collect();
    assert!(spans.is_sorted_by(|one, next| one.1 <= next.0));
    let found = log.content();
    assert!(found.rows.is_sorted_by(|one, next| one.offset < next.offset));
    assert!(found.lost_bytes <= log.data.len());
    for row in &found.rows {
        assert!(spans.iter().any(|span| span.0 == row.offset as usize));
        assert!(row.path.len() + row.names.len() <= log.data.len());
        assert!(!row.path.starts_with(b"/") && !row.path.contains(&0));
        let _ = (row.is_below(b"a"), row.end_ns(u64::MAX));
    }
    found
}

fn container(data: &[u8]) {
    check(data);
    // A row of records with valid headers, and payloads of all kinds.
    let mut input = Input(data);
    let mut records = Vec::new();
    while !input.0.is_empty() && records.len() < RAW_BYTES_MAX {
        let mut made = header(&mut input);
        let length = usize::from(input.u8()).min(input.0.len());
        let (payload, rest) = input.0.split_at(length);
        input.0 = rest;
        if input.u8() % 4 != 0 {
            made.stored_length = length as u32;
            made.checksum = Checksum(xxhash(payload));
        }
        if input.u8() % 2 == 0 {
            made.raw_length = length as u32;
            made.fingerprint = Algorithm::Blake3.digest(payload);
        }
        let mut bytes = [0; RECORD_HEADER_BYTES];
        made.write(&mut bytes, SEED);
        records.extend(bytes);
        records.extend(payload);
        records.resize(records.len().next_multiple_of(8), 0);
    }
    let found = check(&records);
    for record in &found.records {
        let entry = TableEntry::sound(&record.entry.to_bytes(SEED), SEED);
        let entry = entry.expect("its own entry is refused");
        if record.status == record_check::Status::Intact && entry.state.has_bytes() {
            assert!(entry.codec.stands_alone());
        }
    }
    let table = found.records.iter().flat_map(|record| record.entry.to_bytes(SEED));
    let table: Vec<u8> = table.collect();
    let half = table.len() / 2 / ENTRY_BYTES * ENTRY_BYTES;
    for table in [&table[..], &table[..half], &[]] {
        check_container(&records, table);
    }
}

fn xxhash(data: &[u8]) -> u64 {
    // `seal` uses the same public checksum.
    let sealed = seal(data.to_vec());
    u64::from_le_bytes(*sealed.last_chunk().expect("eight bytes"))
}

fn table(data: &[u8]) {
    for bytes in entries(data) {
        let entry = TableEntry::unchecked(bytes);
        let mut again = entry.to_bytes(SEED);
        assert_eq!(again[..62], bytes[..62]);
        let found = TableEntry::sound(&again, SEED).expect("its own entry is refused");
        assert_eq!(found.to_bytes(SEED), again);
        let mut changed = again;
        set_state(&mut changed, native::format::table_entry::State(bytes[0]), SEED);
        assert!(TableEntry::sound(&changed, SEED).is_some());
        // The 16-bit check finds each flipped bit in most of an entry, and nearly each one
        // elsewhere: an entry is only a guide.
        again[62] ^= 1;
        assert!(TableEntry::sound(&again, SEED).is_none());
    }
}

fn recipe(data: &[u8]) {
    let Some((level, _, rows)) = rows_of(data) else { return };
    assert_eq!(rows.len() * 16 + 40, data.len());
    for row in rows {
        assert!(level > 0 || row.id.is_hole() || row.length <= u64::from(u32::MAX));
    }
}

fn stub(data: &[u8]) {
    let Some(found) = stub_head(data, SEED) else { return };
    assert_eq!(found.to_bytes(SEED), data, "accepted, and encoded to other bytes");
    for bit in 0..data.len() * 8 {
        let mut flipped = data.to_vec();
        flipped[bit / 8] ^= 1 << (bit % 8);
        assert!(stub_head(&flipped, SEED).is_none(), "a flipped bit is accepted");
    }
}

fn codec(data: &[u8]) {
    let mut input = Input(data);
    let (codec, stated) = (Codec::from(input.u8() % 2), input.u32() as usize % RAW_BYTES_MAX);
    let stored = input.rest();
    for length in [stated, stored.len()] {
        if encode::check(stored, codec, length, Checksum(xxhash(stored))).is_ok() {
            let mut out = vec![0; length];
            let _ = encode::decode(stored, codec, &mut out);
        }
    }
}

fn marks(data: &[u8]) {
    let mut input = Input(data);
    let (count, number) = (usize::from(input.u8()) * 3, ContainerNumber(1));
    let mut marks = Marks::of([(number, count)]);
    let bits = input.rest();
    let is_taken = marks.merge(number, bits);
    let beyond = (count..bits.len() * 8).any(|at| bits[at / 8] >> (at % 8) & 1 == 1);
    assert_eq!(is_taken, !beyond);
    if is_taken {
        let ones: u32 = bits.iter().map(|byte| byte.count_ones()).sum();
        assert_eq!(marks.count(), u64::from(ones));
    }
    for ordinal in 0..count as u32 + 9 {
        let id = RecordId::new(number, ordinal);
        assert!(marks.knows(id) || !marks.set(id));
    }
}

// --- saved indexes ----------------------------------------------------------------------------

fn owner() -> Owner {
    Owner { volume_id: [7; 16], kind: 1 }
}

/// A file in memory.
fn file_of(data: &[u8]) -> File {
    // SAFETY: the name is NUL-terminated; the returned descriptor has no other owner.
    let mut file = unsafe { File::from_raw_fd(libc::memfd_create(c"fuzz".as_ptr(), 0)) };
    file.write_all(data).expect("no memory for a file");
    file
}

/// A header with counts of the input, mostly small, so that the lists may be long enough.
fn saved_header(input: &mut Input<'_>) -> Header {
    let mut count =
        || if input.u8() % 8 == 0 { input.u32() as usize } else { usize::from(input.u8() % 5) };
    let (parts, containers, blocks, runs, left_over) =
        (count(), count(), count(), count(), count());
    let entries = count() as u64;
    Header {
        group_bits: u32::from(input.u8() % 20),
        parts,
        entries,
        containers,
        blocks,
        runs,
        left_over,
    }
}

fn saved_table(data: &[u8]) {
    let _ = snapshot::read(&file_of(data), &owner());
    let mut input = Input(data);
    let head = saved_header(&mut input);
    let mut file = head.to_bytes(&SAVED_TABLE, &owner()).to_vec();
    let lists = ((head.containers as u64) * 24)
        .saturating_add((head.blocks as u64) * 8)
        .saturating_add((head.parts as u64) * 4)
        .saturating_add((head.left_over as u64) * 16);
    let plane = 48u64 << head.group_bits;
    if lists < 1 << 12 && plane.saturating_mul(head.runs as u64) < 1 << 16 {
        file.extend(seal(filled(&mut input, lists)));
        for _ in 0..head.runs {
            file.extend(seal(filled(&mut input, plane)));
        }
    } else {
        file.extend(seal(input.rest().to_vec()));
    }
    if let Some((table, numbers, _)) = snapshot::read(&file_of(&file), &owner()) {
        let mut found = Vec::new();
        for hash in [0, 1, u64::MAX, head.entries] {
            table.candidates(hash, &mut found);
        }
        found.into_iter().for_each(|number| {
            let _ = numbers.id(number);
        });
    }
}

fn filled(input: &mut Input<'_>, length: u64) -> Vec<u8> {
    (0..length).map(|_| input.u8()).collect()
}

fn saved_chains(data: &[u8]) {
    restore_chains(data);
    let mut input = Input(data);
    let mut head = saved_header(&mut input);
    head.group_bits = 0;
    head.runs %= 2;
    let mut file = head.to_bytes(&SAVED_CHAINS, &owner()).to_vec();
    file.resize((4096 + (head.runs as u64) * 160 * 4096) as usize, 0);
    let lists = ((head.containers as u64) * 24)
        .saturating_add((head.blocks as u64) * 8)
        .saturating_add((head.runs as u64) * 8)
        .saturating_add((head.left_over as u64) * 12);
    let list = if lists < 1 << 12 { filled(&mut input, lists) } else { input.rest().to_vec() };
    let list = seal(list);
    assert!(checked(&list).is_some());
    file.extend(list);
    restore_chains(&file);
}

fn restore_chains(data: &[u8]) {
    let log = Log::new(-1, [7; 16], 10, 10);
    let room = Room { reserve_bytes: 0 };
    let bloom = Bloom::new(file_of(data), room, Arc::new(SystemCalls), 1000);
    let mut index = ChunkIndex::new(log, bloom);
    if index.restore(&owner(), 1000).expect("a file in memory") {
        // Without tables below, the result is a number that leads nowhere, or an error.
        let _ = index.lookup(&[&[0; 32], &[0xFF; 32]]);
    }
}
