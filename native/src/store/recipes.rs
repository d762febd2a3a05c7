//! Recipes, read as far as they are asked for, with a cache of their nodes.
//!
//! If anything is not exactly as expected, the answer names the part and the reason (`why.rs`).

use std::ops::Range;
use std::sync::{Arc, Mutex};

use crate::format::ids::{ChunkKey, DIGEST_BYTES, Fingerprint, FingerprintCheck, RecordId};
use crate::format::recipe::{Node, Row};
use crate::format::stub::{DIRECT, StubHead};
use crate::store::bases::Bases;
use crate::store::bounded::Bounded;
use crate::store::record_reader::Reads;
use crate::store::why::{StorePart, Unreadable, Why};
use crate::threads::lock::locked;

/// Of decoded nodes: those of 160 files of 320 MiB.
const NODES_BYTES: usize = 16 << 20;

/// More levels have no file.
const LEVELS_MAX: u8 = 5;

/// A chunk or a hole at its place in a file.
pub struct Span {
    pub start: u64,
    pub end: u64,
    /// None of a hole.
    pub chunk: Option<ChunkKey>,
}

/// What a node says, and half of the fingerprint of its record.
type Known = (Arc<Node>, [u8; DIGEST_BYTES]);

/// The recipes of a store.
pub struct Recipes {
    streams: Arc<Bases>,
    chunks: Arc<Bases>,
    /// By id, and whether it is that of a chunk.
    nodes: Mutex<Bounded<(RecordId, bool), Known>>,
}

impl Recipes {
    /// `streams`: the containers of recipes; `chunks`: those of chunks.
    pub fn new(streams: Arc<Bases>, chunks: Arc<Bases>) -> Recipes {
        Recipes { streams, chunks, nodes: Mutex::new(Bounded::new(NODES_BYTES)) }
    }

    /// The chunks and holes of a stub that a range touches, which it covers.
    pub fn spans(
        &self,
        stub: &StubHead,
        range: &Range<u64>,
        reads: Reads,
    ) -> Result<Vec<Span>, Unreadable> {
        let key = (stub.recipe, stub.flags & DIRECT != 0);
        let (root, digest) = self.node(key, reads)?;
        let is_meant =
            digest == stub.digest && root.length >= stub.covered && root.level <= LEVELS_MAX;
        if !is_meant || range.end > stub.covered {
            return Err(Unreadable::recipe(Why::NotMeant));
        }
        let mut spans = Vec::new();
        self.add(&root, 0, range, reads, &mut spans)?;
        Ok(spans)
    }

    fn add(
        &self,
        node: &Node,
        base: u64,
        range: &Range<u64>,
        reads: Reads,
        spans: &mut Vec<Span>,
    ) -> Result<(), Unreadable> {
        let within = range.start.saturating_sub(base)..range.end - base;
        for (start, row) in node.rows_in(&within) {
            let start = base + start;
            if node.is_leaf() {
                spans.push(Span { start, end: start + row.length, chunk: chunk_of(row)? });
                continue;
            }
            let (child, _) = self.node((row.id, false), reads)?;
            if child.level + 1 != node.level || child.length != row.length {
                return Err(Unreadable::recipe(Why::NotMeant));
            }
            self.add(&child, start, range, reads, spans)?;
        }
        Ok(())
    }

    fn node(&self, key: (RecordId, bool), reads: Reads) -> Result<Known, Unreadable> {
        if let Some(known) = locked(&self.nodes).get(&key) {
            return Ok(known);
        }
        let (id, is_chunk) = key;
        if is_chunk {
            let found = self.chunks.described(id, reads);
            let (length, fingerprint) =
                found.map_err(|why| Unreadable { part: StorePart::Direct(id), why })?;
            return Ok(self.keep(key, chunk_node(id, length, &fingerprint), &fingerprint));
        }
        let of_node = |why| Unreadable { part: StorePart::Node(id), why };
        let (payload, fingerprint) = self.streams.of_any(id, reads).map_err(of_node)?;
        let node = Node::of(&payload).ok_or(of_node(Why::Damaged))?;
        Ok(self.keep(key, node, &fingerprint))
    }

    /// Keeps a record, which the caller has verified. Ignores a record that is not a node.
    pub fn keep_node(&self, id: RecordId, payload: &[u8], fingerprint: &Fingerprint) {
        if let Some(node) = Node::of(payload) {
            self.keep((id, false), node, fingerprint);
        }
    }

    /// Keeps what a chunk's record says, which the caller has verified.
    pub fn keep_direct(&self, id: RecordId, length: u32, fingerprint: &Fingerprint) {
        self.keep((id, true), chunk_node(id, length, fingerprint), fingerprint);
    }

    fn keep(&self, key: (RecordId, bool), node: Node, fingerprint: &Fingerprint) -> Known {
        let mut digest = [0; DIGEST_BYTES];
        digest.copy_from_slice(&fingerprint[..DIGEST_BYTES]);
        let known = (Arc::new(node), digest);
        let bytes = known.0.bytes();
        let gone = locked(&self.nodes).keep(key, known.clone(), bytes);
        drop(gone);
        known
    }
}

/// What stands for a recipe where a stub names a chunk.
fn chunk_node(id: RecordId, length: u32, fingerprint: &Fingerprint) -> Node {
    let fingerprint_check = FingerprintCheck::of(fingerprint);
    Node::of_chunk(Row { id, length: u64::from(length), fingerprint_check })
}

/// None of a hole. Fails of a chunk that no recipe can name.
fn chunk_of(row: &Row) -> Result<Option<ChunkKey>, Unreadable> {
    if row.id.is_hole() {
        return Ok(None);
    }
    match u32::try_from(row.length) {
        Ok(length) => Ok(Some(ChunkKey { id: row.id, length, check: row.fingerprint_check })),
        Err(_) => Err(Unreadable::recipe(Why::Damaged)),
    }
}
