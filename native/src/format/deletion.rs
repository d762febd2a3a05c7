//! The deletions of a log (docs/design/format.md, "Deletion"), as far as a listing needs them.
//! `dedupd_core/format/deletion.py` reads and writes the complete deletions.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::bytes::{Field, layout};

layout! {
    pub mod head: 136 bytes {
        MAGIC: 4 at 0,
        CAUSE: 1 at 4,
        FLAGS: 1 at 5,
        PATH_BYTES: 2 at 6,
        ATTRIBUTES: 2 at 8,
        RESERVED: 2 at 10,
        ATTRIBUTES_BYTES: 4 at 12,
        TIME_NS: 8 at 16,
        KEEP_S: 4 at 24,
        MODE: 4 at 28,
        UID: 4 at 32,
        GID: 4 at 36,
        INODE: 8 at 40,
        GENERATION: 4 at 48,
        RESERVED_END: 4 at 52,
        SIZE: 8 at 56,
        ATIME_NS: 8 at 64,
        MTIME_NS: 8 at 72,
        RECIPE: 8 at 80,
        DIGEST: 16 at 88,
        COVERED: 8 at 104,
        LOCAL: 8 at 112,
        TAIL_CHECKSUM: 8 at 120,
        CHECKSUM: 8 at 128,
    }
}

/// The fields, before the checksums.
pub const FIELDS_BYTES: usize = head::TAIL_CHECKSUM.start;
/// In an unproven log, one checksum of everything follows the fields.
const UNPROVEN_HEAD_BYTES: usize = FIELDS_BYTES + 8;
const MAGIC: &[u8; 4] = b"DDDL";
const ALIGN_BYTES: usize = 8;
const USERS: &[u8] = b"user.";
pub const NS: u64 = 1_000_000_000;

/// The operation that took the content of a stub.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    Removed,
    Replaced,
    Cut,
    Overwritten,
}

impl Cause {
    fn of(fields: &[u8]) -> Option<Cause> {
        match head::CAUSE.u8(fields) {
            1 => Some(Cause::Removed),
            2 => Some(Cause::Replaced),
            3 => Some(Cause::Cut),
            4 => Some(Cause::Overwritten),
            _ => None,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Cause::Removed => "removed",
            Cause::Replaced => "replaced",
            Cause::Cut => "cut",
            Cause::Overwritten => "overwritten",
        }
    }

    pub fn takes_the_whole_file(self) -> bool {
        matches!(self, Cause::Removed | Cause::Replaced)
    }
}

/// A deletion without the values of its attributes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Its offset in the log.
    pub offset: u32,
    pub cause: Cause,
    pub fields: [u8; FIELDS_BYTES],
    pub path: Box<[u8]>,
    /// Names of attributes outside the namespace of users, each with a NUL after it.
    pub names: Box<[u8]>,
}

impl Row {
    pub fn uid(&self) -> u32 {
        head::UID.u32(&self.fields)
    }

    pub fn time_ns(&self) -> u64 {
        head::TIME_NS.u64(&self.fields)
    }

    /// Returns until when it is kept, at most `keep_ns` after the deletion.
    pub fn end_ns(&self, keep_ns: u64) -> u64 {
        let own_ns = u64::from(head::KEEP_S.u32(&self.fields)) * NS;
        self.time_ns().saturating_add(keep_ns.min(own_ns))
    }

    /// Returns whether it was at `path` or below; all paths are below the empty path.
    pub fn is_below(&self, path: &[u8]) -> bool {
        match self.path.strip_prefix(path) {
            Some(rest) => path.is_empty() || rest.is_empty() || rest[0] == b'/',
            None => false,
        }
    }

    /// Bytes of memory.
    pub fn bytes(&self) -> usize {
        size_of::<Row>() + self.path.len() + self.names.len()
    }
}

/// The rest of a log from the start of a deletion on, and the fields of its header.
#[derive(Clone, Copy)]
pub struct Log<'a> {
    pub data: &'a [u8],
    /// Offset of `data` in the log, a multiple of 8.
    pub base: usize,
    pub seed: u64,
    /// False for the format with a seed that users can compute.
    pub is_proven: bool,
    /// The user whose deletions it has, if it is the log of one user.
    pub uid: Option<u32>,
}

/// The sound deletions of a log, in order, and the number of damaged bytes.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Content {
    pub rows: Vec<Row>,
    pub lost_bytes: usize,
}

/// A sound head: its start in the data, the end of the deletion, and the fields.
struct Span<'a> {
    start: usize,
    end: usize,
    fields: &'a [u8; FIELDS_BYTES],
}

/// The data after a head.
struct Tail<'a> {
    cause: Cause,
    path: &'a [u8],
    names: Vec<u8>,
}

impl<'a> Log<'a> {
    pub fn content(self) -> Content {
        let mut found = Content::default();
        let mut last = 0;
        for Span { start, end, fields } in self.heads() {
            found.lost_bytes += start - last;
            last = end;
            match self.tail(start, fields) {
                Some(Tail { cause, path, names }) => found.rows.push(Row {
                    offset: (self.base + start) as u32,
                    cause,
                    fields: *fields,
                    path: path.into(),
                    names: names.into(),
                }),
                None if end <= self.data.len() => found.lost_bytes += end - start,
                None => (),
            }
        }
        let rest = self.data.get(last..).unwrap_or_default();
        if rest.len() >= head::BYTES && rest.iter().any(|byte| *byte != 0) {
            found.lost_bytes += rest.len(); // a crash leaves less
        }
        found
    }

    /// Start and end in the log of each deletion with a sound head. The last may be incomplete.
    pub fn spans(self) -> impl Iterator<Item = (usize, usize)> {
        self.heads().map(move |span| (self.base + span.start, self.base + span.end))
    }

    /// Finds the sound heads; in an unproven log, only up to the first damage.
    fn heads(self) -> impl Iterator<Item = Span<'a>> {
        let mut at = 0;
        std::iter::from_fn(move || {
            loop {
                if let Some(fields) = self.fields(at) {
                    let bytes = self.head_bytes() + tail_bytes(fields);
                    let start = at;
                    at = (start + bytes).next_multiple_of(ALIGN_BYTES);
                    return Some(Span { start, end: at, fields });
                }
                if !self.is_proven {
                    return None;
                }
                at = self.next(at + ALIGN_BYTES)?;
            }
        })
    }

    /// The next possible start of a deletion, from `at` on.
    fn next(self, at: usize) -> Option<usize> {
        let mut words = self.data.get(at..)?.chunks(ALIGN_BYTES);
        words.position(|word| word.starts_with(MAGIC)).map(|found| at + found * ALIGN_BYTES)
    }

    fn head_bytes(self) -> usize {
        if self.is_proven { head::BYTES } else { UNPROVEN_HEAD_BYTES }
    }

    /// The fields of the deletion at `at`, if the checksum of the head is correct. In an unproven
    /// log, the checksum of everything has to be correct.
    fn fields(self, at: usize) -> Option<&'a [u8; FIELDS_BYTES]> {
        let found = self.data.get(at..)?.get(..self.head_bytes())?;
        let fields = found.first_chunk().filter(|fields| fields.starts_with(MAGIC))?;
        let is_sound = match self.is_proven {
            true => checksum(&found[..head::CHECKSUM.start], self.place(at), found, head::CHECKSUM),
            false => self.tail(at, fields).is_some(),
        };
        is_sound.then_some(fields)
    }

    /// The rest of a deletion, if path and attributes are sound and the user is right.
    fn tail(self, at: usize, fields: &[u8; FIELDS_BYTES]) -> Option<Tail<'a>> {
        let start = at + self.head_bytes();
        let tail = self.data.get(start..start + tail_bytes(fields))?;
        let head = &self.data[at..start];
        let is_sound = match self.is_proven {
            true => checksum(tail, self.place(at), head, head::TAIL_CHECKSUM),
            false => {
                let seed = xxh3_64_with_seed(tail, self.seed);
                checksum(fields, seed, head, head::TAIL_CHECKSUM)
            }
        };
        let is_own = self.uid.is_none_or(|uid| uid == head::UID.u32(fields));
        let (path, attributes) = tail.split_at(usize::from(head::PATH_BYTES.u16(fields)));
        let cause = Cause::of(fields)?;
        let names = names(attributes, head::ATTRIBUTES.u16(fields))?;
        (is_sound && is_own && !leads_out(path)).then_some(Tail { cause, path, names })
    }

    /// The seed of all checksums of the deletion at `at` of a proven log.
    fn place(self, at: usize) -> u64 {
        xxh3_64_with_seed(&((self.base + at) as u64).to_le_bytes(), self.seed)
    }
}

/// Returns whether the field of a head is the checksum of `data`.
fn checksum(data: &[u8], seed: u64, head: &[u8], field: Field<8>) -> bool {
    xxh3_64_with_seed(data, seed) == field.u64(head)
}

/// Writes the checksums of a head, for the deletion at `offset` of a log.
pub fn seal(bytes: &mut [u8; head::BYTES], tail: &[u8], seed: u64, offset: usize) {
    let log = Log { data: &[], base: offset, seed, is_proven: true, uid: None };
    let seed = log.place(0);
    head::TAIL_CHECKSUM.put(bytes, &xxh3_64_with_seed(tail, seed).to_le_bytes());
    let checksum = xxh3_64_with_seed(&bytes[..head::CHECKSUM.start], seed);
    head::CHECKSUM.put(bytes, &checksum.to_le_bytes());
}

/// The length of path and attributes, which follow a head.
pub fn tail_bytes(fields: &[u8]) -> usize {
    usize::from(head::PATH_BYTES.u16(fields)) + head::ATTRIBUTES_BYTES.u32(fields) as usize
}

/// Returns whether a path leads out of the tree.
fn leads_out(path: &[u8]) -> bool {
    path.first() == Some(&b'/')
        || path.contains(&0)
        || path.split(|byte| *byte == b'/').any(|part| part == b"..")
}

/// The names of `count` attributes, without those of users. None if the count differs. Each
/// attribute is a name and a value after their lengths.
fn names(mut rest: &[u8], count: u16) -> Option<Vec<u8>> {
    let mut names = Vec::new();
    for _ in 0..count {
        let ([a, b, c, d, e, f], after) = rest.split_first_chunk()?;
        let (name, after) = after.split_at_checked(u16::from_le_bytes([*a, *b]).into())?;
        (_, rest) = after.split_at_checked(u32::from_le_bytes([*c, *d, *e, *f]) as usize)?;
        if !name.starts_with(USERS) {
            names.extend_from_slice(name);
            names.push(0);
        }
    }
    rest.is_empty().then_some(names)
}
