//! Recipes, read as far as they are asked for, with a cache of their nodes.
//!
//! Answers only where everything is exactly as expected. `dedupd_core/store/recipe` handles all other
//! cases.

use std::ops::Range;
use std::sync::{Arc, Mutex};

use crate::format::ids::{DIGEST_BYTES, FingerprintCheck, RecordId};
use crate::format::recipe::{Node, Row};
use crate::format::stub::{DIRECT, StubHead};
use crate::store::bases::Bases;
use crate::store::bounded::Bounded;
use crate::store::chunk_cache::ChunkKey;
use crate::store::record_reader::Reads;
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

    /// The chunks and holes of a stub that a range touches, which it covers. None where anything is
    /// not as expected, and with [`Reads::CachedOnly`] also where not all nodes are in memory.
    pub fn spans(&self, stub: &StubHead, range: &Range<u64>, reads: Reads) -> Option<Vec<Span>> {
        let key = (stub.recipe, stub.flags & DIRECT != 0);
        let (root, digest) = self.node(key, reads)?;
        let is_meant =
            digest == stub.digest && root.length >= stub.covered && root.level <= LEVELS_MAX;
        if !is_meant || range.end > stub.covered {
            return None;
        }
        let mut spans = Vec::new();
        self.add(&root, 0, range, reads, &mut spans)?;
        Some(spans)
    }

    fn add(
        &self,
        node: &Node,
        base: u64,
        range: &Range<u64>,
        reads: Reads,
        spans: &mut Vec<Span>,
    ) -> Option<()> {
        let within = range.start.saturating_sub(base)..range.end - base;
        for (start, row) in node.rows_in(&within) {
            let start = base + start;
            if node.is_leaf() {
                spans.push(Span { start, end: start + row.length, chunk: chunk_of(row)? });
                continue;
            }
            let (child, _) = self.node((row.id, false), reads)?;
            if child.level + 1 != node.level || child.length != row.length {
                return None;
            }
            self.add(&child, start, range, reads, spans)?;
        }
        Some(())
    }

    fn node(&self, key: (RecordId, bool), reads: Reads) -> Option<Known> {
        if let Some(known) = locked(&self.nodes).get(&key) {
            return Some(known);
        }
        let (id, is_chunk) = key;
        let (node, fingerprint) = if is_chunk {
            let (length, fingerprint) = self.chunks.described(id, reads)?;
            let fingerprint_check = FingerprintCheck::of(&fingerprint);
            let row = Row { id, length: u64::from(length), fingerprint_check };
            (Node::of_chunk(row), fingerprint)
        } else {
            let (payload, fingerprint) = self.streams.of_any(id, reads)?;
            (Node::of(&payload)?, fingerprint)
        };
        let digest = *fingerprint.first_chunk()?;
        let known = (Arc::new(node), digest);
        let bytes = known.0.bytes();
        let gone = locked(&self.nodes).keep(key, known.clone(), bytes);
        drop(gone);
        Some(known)
    }
}

/// None within of a hole; none of a chunk that no recipe can name.
#[expect(clippy::option_option, reason = "whether there is a span, and what it is of")]
fn chunk_of(row: &Row) -> Option<Option<ChunkKey>> {
    if row.id.is_hole() {
        return Some(None);
    }
    let length = u32::try_from(row.length).ok()?;
    Some(Some(ChunkKey { id: row.id, length, check: row.fingerprint_check }))
}
