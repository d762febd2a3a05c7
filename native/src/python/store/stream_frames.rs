//! `BlocksAhead`, `frame_chunks`, `frame_cluster_chunks`.

use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::stub_bytes::Unreadable;
use crate::format::ids::{ChunkKey, FingerprintCheck, RecordId};
use crate::python::rados::ClusterContent;
use crate::python::store::bases::Bases;
use crate::python::support::output::{NewBytes, column};
use crate::store::blocks_ahead;
use crate::store::stream_frames::{Chunks, FramePosition};

/// Frames, the fingerprints of their chunks, and the chunk after them if it cannot be read.
type Framed = (Py<PyBytes>, Vec<u8>, Option<Unreadable>);

#[pyclass(frozen, module = "dedupd_core.native.store")]
pub struct BlocksAhead(blocks_ahead::BlocksAhead);

#[pymethods]
impl BlocksAhead {
    #[new]
    fn new(bytes_max: usize) -> BlocksAhead {
        BlocksAhead(blocks_ahead::BlocksAhead::new(bytes_max))
    }
}

/// The chunks that recipes name: id, length and start of the fingerprint of each.
fn keys(wanted: Vec<(u64, u32, u32)>) -> Vec<ChunkKey> {
    let key =
        |(id, length, check)| ChunkKey { id: RecordId(id), length, check: FingerprintCheck(check) };
    wanted.into_iter().map(key).collect()
}

/// Returns the frames of chunks, up to the first unreadable chunk.
fn framed(
    py: Python<'_>,
    wanted: &[ChunkKey],
    mut chunks: Chunks,
    place: FramePosition,
    threads: usize,
) -> PyResult<Framed> {
    let mut frames = NewBytes::of(py, chunks.frame_bytes())?;
    let out = frames.bytes_mut();
    py.detach(|| chunks.write(wanted, place, out, threads));
    let fingerprints = chunks.chunks.iter().flat_map(|chunk| chunk.fingerprint).collect();
    let mut frames = frames.finish();
    let length = chunks.frame_bytes();
    if length < frames.as_bytes(py).len() {
        frames = column(py, &frames.as_bytes(py)[..length]);
    }
    Ok((frames, fingerprints, chunks.unreadable.map(Unreadable::from)))
}

#[pyfunction]
pub fn frame_chunks(
    py: Python<'_>,
    bases: &Bound<'_, Bases>,
    wanted: Vec<(u64, u32, u32)>,
    sequence: u32,
    seed: u64,
    ahead: &Bound<'_, BlocksAhead>,
    threads: usize,
) -> PyResult<Framed> {
    let (bases, wanted, ahead) = (&bases.get().0, keys(wanted), &ahead.get().0);
    let chunks = py.detach(|| Chunks::in_containers(bases, &wanted, ahead, threads));
    framed(py, &wanted, chunks, FramePosition { sequence, seed }, threads)
}

#[pyfunction]
pub fn frame_cluster_chunks(
    py: Python<'_>,
    content: &Bound<'_, ClusterContent>,
    wanted: Vec<(u64, u32, u32)>,
    sequence: u32,
    seed: u64,
) -> PyResult<Framed> {
    let (content, wanted) = (&content.get().0, keys(wanted));
    let chunks = py.detach(|| Chunks::of(&wanted, content.stored(&wanted)));
    framed(py, &wanted, chunks, FramePosition { sequence, seed }, 1)
}
