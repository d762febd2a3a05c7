//! Nodes of recipes (docs/design/format.md, "Recipe").

use std::ops::Range;

use super::bytes::layout;
use super::ids::{DIGEST_BYTES, FingerprintCheck, RecordId};

layout! {
    pub mod header: 40 bytes {
        MAGIC: 4 at 0,
        FORMAT: 1 at 4,
        LEVEL: 1 at 5,
        RESERVED: 2 at 6,
        COUNT: 4 at 8,
        RESERVED_TOO: 4 at 12,
        LENGTH: 8 at 16,
        CONTENT: 16 at 24,
    }
}

layout! {
    pub mod fields: 16 bytes {
        ID: 8 at 0,
        LENGTH: 8 at 8,
    }
}

const MAGIC: [u8; 4] = *b"DDRP";
const FORMAT: u8 = 1;
const LEVEL_LEAF: u8 = 0;
/// No file has a node of a higher level.
pub const LEVELS_MAX: u8 = 5;
/// Maximum per node.
const ROWS_MAX: usize = 4096;

/// A chunk or a hole. In a node that is no leaf: another node.
pub struct Row {
    pub id: RecordId,
    pub length: u64,
    pub fingerprint_check: FingerprintCheck,
}

/// Header and rows of a node. None if the payload is not a node, or if its number of rows differs
/// from its header.
fn divided(payload: &[u8]) -> Option<(&[u8], &[u8])> {
    let (head, rows) = payload.split_at_checked(header::BYTES)?;
    let is_node = *header::MAGIC.of(head) == MAGIC && header::FORMAT.u8(head) == FORMAT;
    let is_whole = rows.len() == header::COUNT.u32(head) as usize * fields::BYTES;
    (is_node && is_whole).then_some((head, rows))
}

/// The level of a node, the bytes of file below it, and its rows. None where a payload is none, or has
/// another number of rows than it says.
pub fn rows_of(payload: &[u8]) -> Option<(u8, u64, impl ExactSizeIterator<Item = Row>)> {
    let (head, rows) = divided(payload)?;
    let level = header::LEVEL.u8(head);
    let row = if level == LEVEL_LEAF { Row::of_chunk } else { Row::of_node };
    Some((level, header::LENGTH.u64(head), rows.chunks_exact(fields::BYTES).map(row)))
}

impl Row {
    /// A row of a leaf.
    fn of_chunk(row: &[u8]) -> Row {
        let (id, length) = (RecordId(fields::ID.u64(row)), fields::LENGTH.u64(row));
        // A chunk's check is in the upper half. A hole uses all 64 bits for its length.
        let own = if id.is_hole() { length } else { u64::from(length as u32) };
        let fingerprint_check = FingerprintCheck((length >> 32) as u32);
        Row { id, length: own, fingerprint_check }
    }

    /// A row of any other node, which names a node.
    fn of_node(row: &[u8]) -> Row {
        let (id, length) = (RecordId(fields::ID.u64(row)), fields::LENGTH.u64(row));
        Row { id, length, fingerprint_check: FingerprintCheck(0) }
    }
}

/// A node of any level, with the start of each row.
pub struct Node {
    pub level: u8,
    /// Bytes of the file below it.
    pub length: u64,
    /// The same for the same content, wherever its chunks are.
    pub content: [u8; DIGEST_BYTES],
    rows: Vec<Row>,
    /// The starts of the rows.
    starts: Vec<u64>,
}

impl Node {
    /// None if no recipe can have this payload as a node.
    pub fn of(payload: &[u8]) -> Option<Node> {
        let (level, stated, rows) = rows_of(payload)?;
        let rows: Vec<Row> = rows.collect();
        let is_one = !rows.is_empty() && rows.len() <= ROWS_MAX;
        let (mut starts, mut length) = (Vec::with_capacity(rows.len()), 0_u64);
        for row in &rows {
            starts.push(length);
            length = length.checked_add(row.length).filter(|_| row.length > 0)?;
        }
        let is_one = is_one && length == stated;
        let content = *header::CONTENT.of(payload);
        is_one.then_some(Node { level, length, content, rows, starts })
    }

    /// A leaf without a record.
    pub fn of_rows(rows: Vec<Row>, content: [u8; DIGEST_BYTES]) -> Node {
        let (mut starts, mut length) = (Vec::with_capacity(rows.len()), 0);
        for row in &rows {
            starts.push(length);
            length += row.length;
        }
        Node { level: LEVEL_LEAF, length, content, rows, starts }
    }

    /// All rows, each with its place in the node.
    pub fn rows(&self) -> impl ExactSizeIterator<Item = (u64, &Row)> {
        self.starts.iter().copied().zip(&self.rows)
    }

    pub fn is_leaf(&self) -> bool {
        self.level == LEVEL_LEAF
    }

    /// The rows in a range of the node, each with its start.
    pub fn rows_in(&self, range: &Range<u64>) -> impl Iterator<Item = (u64, &Row)> {
        let first = self.starts.partition_point(|&start| start <= range.start).saturating_sub(1);
        let end = range.end;
        let starts = self.starts[first..].iter().copied();
        starts.zip(&self.rows[first..]).take_while(move |&(start, _)| start < end)
    }

    /// Approximate bytes of memory.
    pub fn bytes(&self) -> usize {
        self.rows.len() * (size_of::<Row>() + size_of::<u64>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn payload(level: u8, length: u64, rows: &[(u64, u64)]) -> Vec<u8> {
        let mut head = [0; header::BYTES];
        header::MAGIC.put(&mut head, &MAGIC);
        header::FORMAT.put(&mut head, &[FORMAT]);
        header::LEVEL.put(&mut head, &[level]);
        header::COUNT.put(&mut head, &(rows.len() as u32).to_le_bytes());
        header::LENGTH.put(&mut head, &length.to_le_bytes());
        let rows = rows.iter().flat_map(|(id, length)| [id.to_le_bytes(), length.to_le_bytes()]);
        head.into_iter().chain(rows.flatten()).collect()
    }

    /// The starts and lengths of the rows in a range.
    fn touched(node: &Node, range: Range<u64>) -> Vec<(u64, u64)> {
        node.rows_in(&range).map(|(start, row)| (start, row.length)).collect()
    }

    #[test]
    fn a_range_touches_the_rows_that_it_has_bytes_of() {
        let node = Node::of(&payload(0, 60, &[(1, 10 | 7 << 32), (0, 20), (2, 30)])).unwrap();
        assert_eq!(touched(&node, 0..60), [(0, 10), (10, 20), (30, 30)]);
        assert_eq!(touched(&node, 9..11), [(0, 10), (10, 20)]);
        assert_eq!(touched(&node, 10..30), [(10, 20)]);
        assert_eq!(touched(&node, 59..100), [(30, 30)]);
        let checks: Vec<_> =
            node.rows_in(&(0..60)).map(|(_, row)| row.fingerprint_check.0).collect();
        assert_eq!(checks, [7, 0, 0]);
    }

    #[test]
    fn rows_of_an_inner_node_have_all_bits_for_their_length() {
        let node = Node::of(&payload(1, 5 << 32, &[(1, 2 << 32), (2, 3 << 32)])).unwrap();
        assert_eq!(touched(&node, 0..1), [(0, 2 << 32)]);
        assert_eq!(touched(&node, 2 << 32..3 << 32), [(2 << 32, 3 << 32)]);
    }

    #[test]
    fn lengths_that_do_not_add_up_are_refused() {
        assert!(Node::of(&payload(0, 31, &[(1, 10), (2, 20)])).is_none());
        assert!(Node::of(&payload(0, 10, &[(1, 10), (2, 0)])).is_none());
        assert!(Node::of(&payload(0, 0, &[])).is_none());
        assert!(Node::of(&payload(1, 1, &[(1, u64::MAX), (2, 2)])).is_none());
        assert!(Node::of(&payload(0, 10, &[(1, 10)])[..50]).is_none());
    }
}
