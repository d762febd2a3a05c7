//! Recipes, read as far as they are asked for, with a cache of their nodes.
//!
//! If anything is not exactly as expected, the answer names the part and the reason (`why.rs`).

use std::ops::Range;
use std::sync::{Arc, Mutex};

use crate::fingerprint::Algorithm;
use crate::format::ids::{ChunkKey, DIGEST_BYTES, Fingerprint, FingerprintCheck, RecordId};
use crate::format::recipe::{LEVELS_MAX, Node, Row};
use crate::format::stub::{DIRECT, StubHead};
use crate::store::bases::Bases;
use crate::store::bounded::Bounded;
use crate::store::record_reader::CacheUse;
use crate::store::why::{StorePart, Unreadable, Why};
use crate::threads::lock::locked;

/// Of decoded nodes: those of 160 files of 320 MiB.
const NODES_BYTES: usize = 16 << 20;

/// A chunk or a hole at its place in a file.
pub struct Span {
    pub start: u64,
    pub end: u64,
    /// None of a hole.
    pub chunk: Option<ChunkKey>,
}

/// A leaf at its place in a file.
pub struct LeafAt {
    pub start: u64,
    /// A hole if the leaf has no record.
    pub id: RecordId,
    pub node: Arc<Node>,
    /// The nodes between the leaf and the root that begin at the same offset.
    pub above: Vec<RecordId>,
}

/// A part of a file whose recipe cannot be read.
pub struct Broken {
    pub range: Range<u64>,
    /// The inner nodes below the root that begin at the same offset.
    pub above: Vec<RecordId>,
    pub unreadable: Unreadable,
}

/// What a node says, and half of the fingerprint of its record.
type CachedNode = (Arc<Node>, [u8; DIGEST_BYTES]);

/// The recipes of a store.
pub struct Recipes {
    streams: Arc<Bases>,
    chunks: Arc<Bases>,
    /// By id, and whether it is that of a chunk.
    nodes: Mutex<Bounded<(RecordId, bool), CachedNode>>,
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
        reads: CacheUse,
    ) -> Result<Vec<Span>, Unreadable> {
        let root = self.root(stub, reads)?;
        if root.length < stub.covered || range.end > stub.covered {
            return Err(Unreadable::recipe(Why::NotMeant));
        }
        let mut spans = Vec::new();
        self.add(&root, 0, range, reads, &mut spans)?;
        Ok(spans)
    }

    /// The root of a stub's recipe.
    pub fn root(&self, stub: &StubHead, reads: CacheUse) -> Result<Arc<Node>, Unreadable> {
        let is_direct = stub.flags & DIRECT != 0;
        let (root, digest) = self.node((stub.recipe, is_direct), reads)?;
        if digest == stub.digest && root.level <= LEVELS_MAX {
            return Ok(root);
        }
        let part = if is_direct { StorePart::Direct } else { StorePart::Node };
        Err(Unreadable { part: part(stub.recipe), why: Why::NotMeant })
    }

    fn child(&self, node: &Node, row: &Row, reads: CacheUse) -> Result<Arc<Node>, Unreadable> {
        let (child, _) = self.node((row.id, false), reads)?;
        if child.level + 1 == node.level && child.length == row.length {
            return Ok(child);
        }
        Err(Unreadable { part: StorePart::Node(row.id), why: Why::NotMeant })
    }

    /// The leaf that has the byte `at` of a stub. It may be beyond what the stub covers.
    pub fn leaf(&self, stub: &StubHead, at: u64) -> Result<LeafAt, Broken> {
        let (mut above, mut range) = (Vec::new(), 0..stub.covered);
        let broken = |range: &Range<u64>, above: &[RecordId], unreadable| Broken {
            range: range.clone(),
            above: above.to_vec(),
            unreadable,
        };
        let mut id = if stub.flags & DIRECT == 0 { stub.recipe } else { RecordId::HOLE };
        let root = self.root(stub, CacheUse::Any).map_err(|why| broken(&range, &above, why))?;
        let mut node = root;
        while !node.is_leaf() {
            let within = at.saturating_sub(range.start)..u64::MAX;
            let Some((start, row)) = node.rows_in(&within).next() else {
                let unreadable = Unreadable { part: StorePart::Node(id), why: Why::Damaged };
                return Err(broken(&range, &above, unreadable));
            };
            let start = range.start + start;
            range = start..start.saturating_add(row.length);
            id = row.id;
            if node.level > 1 && start == at {
                above.push(id);
            }
            let child = self.child(&node, row, CacheUse::Any);
            node = child.map_err(|unreadable| broken(&range, &above, unreadable))?;
        }
        Ok(LeafAt { start: range.start, id, node, above })
    }

    fn add(
        &self,
        node: &Node,
        base: u64,
        range: &Range<u64>,
        reads: CacheUse,
        spans: &mut Vec<Span>,
    ) -> Result<(), Unreadable> {
        let within = range.start.saturating_sub(base)..range.end - base;
        for (start, row) in node.rows_in(&within) {
            let start = base + start;
            if node.is_leaf() {
                spans.push(Span { start, end: start + row.length, chunk: chunk_of(row)? });
                continue;
            }
            let child = self.child(node, row, reads)?;
            self.add(&child, start, range, reads, spans)?;
        }
        Ok(())
    }

    fn node(&self, key: (RecordId, bool), reads: CacheUse) -> Result<CachedNode, Unreadable> {
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

    /// Keeps a record, which the caller has verified. Returns whether it is a node.
    pub fn keep_node(&self, id: RecordId, payload: &[u8], fingerprint: &Fingerprint) -> bool {
        let node = Node::of(payload);
        node.map(|node| self.keep((id, false), node, fingerprint)).is_some()
    }

    /// Keeps what a chunk's record says, which the caller has verified.
    pub fn keep_direct(&self, id: RecordId, length: u32, fingerprint: &Fingerprint) {
        self.keep((id, true), chunk_node(id, length, fingerprint), fingerprint);
    }

    fn keep(&self, key: (RecordId, bool), node: Node, fingerprint: &Fingerprint) -> CachedNode {
        let mut digest = [0; DIGEST_BYTES];
        digest.copy_from_slice(&fingerprint[..DIGEST_BYTES]);
        let known = (Arc::new(node), digest);
        let bytes = known.0.bytes();
        let gone = locked(&self.nodes).replace(key, known.clone(), bytes);
        drop(gone);
        known
    }
}

/// What stands for a recipe where a stub names a chunk.
fn chunk_node(id: RecordId, length: u32, fingerprint: &Fingerprint) -> Node {
    let (length, fingerprint_check) = (u64::from(length), FingerprintCheck::of(fingerprint));
    let content = content_digest([(fingerprint, length)]);
    Node::of_rows(vec![Row { id, length, fingerprint_check }], content)
}

/// The digest of the content of a file, by the fingerprints and lengths of its chunks and holes. The
/// fingerprint of a hole is zeros.
pub fn content_digest<'a>(
    parts: impl IntoIterator<Item = (&'a Fingerprint, u64)>,
) -> [u8; DIGEST_BYTES] {
    let mut data = Vec::new();
    for (fingerprint, length) in parts {
        data.extend_from_slice(fingerprint);
        data.extend(length.to_le_bytes());
    }
    let mut digest = [0; DIGEST_BYTES];
    digest.copy_from_slice(&Algorithm::Blake3.digest(&data)[..DIGEST_BYTES]);
    digest
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
