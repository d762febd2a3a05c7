//! Records of containers: sealing, reading and checking them, and their tables.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::format::ids::Checksum;
use crate::python::codec::Encoded;
use crate::python::hashing::algorithm_named;
use crate::python::store::bases::Bases;
use crate::python::support::input::{Input, pack_u32, require};
use crate::python::support::output::{NewBytes, Output, column};
use crate::store::blocks_ahead;
use crate::store::dead_payloads::Container as PunchedContainer;
use crate::store::record_check::Place as CheckPlace;
use crate::store::record_reader::{Files, Reads, Row};
use crate::store::record_writer::{Columns, Place};
use crate::store::stream_frames;
use crate::store::table_check::{Container, PassedRecords, Position};
use crate::store::table_states::{self as of_tables, Weight, states, weigh};

/// Frames, the fingerprints of their chunks, and the number of chunks.
type Framed = (Py<PyBytes>, Vec<u8>, usize);

#[pyclass(frozen, module = "dedupd_core.native.store")]
pub struct BlocksAhead(blocks_ahead::BlocksAhead);

#[pymethods]
impl BlocksAhead {
    #[new]
    fn new(bytes_max: usize) -> BlocksAhead {
        BlocksAhead(blocks_ahead::BlocksAhead::new(bytes_max))
    }
}

#[pyfunction]
#[pyo3(signature = (number, data_fd, table_fd, seed, wanted, sequence, stream_seed, ahead, threads))]
#[expect(clippy::too_many_arguments, reason = "a container, and the place in a stream")]
pub fn frame_chunks(
    py: Python<'_>,
    number: u32,
    data_fd: i32,
    table_fd: i32,
    seed: u64,
    wanted: Vec<Row>,
    sequence: u32,
    stream_seed: u64,
    ahead: &Bound<'_, BlocksAhead>,
    threads: usize,
) -> PyResult<Framed> {
    let reads = Reads::Uncached;
    let files = Files { data: data_fd, table: table_fd, seed, reads, bases: None };
    let ahead = &ahead.get().0;
    let (entries, blocks) = py.detach(|| {
        let entries = stream_frames::entries(&files, &wanted);
        let blocks = stream_frames::blocks(&files, number, &entries, ahead);
        (entries, blocks)
    });
    let length = entries.iter().map(stream_frames::frame_bytes).sum();
    let mut frames = NewBytes::of(py, length)?;
    let out = frames.bytes_mut();
    let place = stream_frames::Place { sequence, seed: stream_seed };
    let blocks = blocks.as_ref();
    let count =
        py.detach(|| stream_frames::write(&files, &wanted, &entries, blocks, place, out, threads));
    let good = &entries[..count];
    let fingerprints = good.iter().flat_map(|entry| entry.fingerprint).collect();
    let frames = frames.finish();
    if count == entries.len() {
        return Ok((frames, fingerprints, count));
    }
    let length = good.iter().map(stream_frames::frame_bytes).sum();
    Ok((column(py, &frames.as_bytes(py)[..length]), fingerprints, count))
}

#[pyfunction]
#[pyo3(signature = (encoded, fingerprints, raw_lengths, hints, *, seed, ordinal, offset))]
#[allow(clippy::too_many_arguments)]
pub fn seal(
    py: Python<'_>,
    encoded: &Bound<'_, Encoded>,
    fingerprints: Input,
    raw_lengths: Input,
    hints: Input,
    seed: u64,
    ordinal: u32,
    offset: u64,
) -> PyResult<Vec<u8>> {
    let mut buffer: Output = encoded.extract()?;
    let fields = encoded.get();
    let (starts, stored, checksums): (Input, Input, Input) = (
        fields.starts.bind(py).extract()?,
        fields.stored_lengths.bind(py).extract()?,
        fields.checksums.bind(py).extract()?,
    );
    let columns = Columns {
        starts: starts.u32s("starts")?,
        stored_lengths: stored.u32s("stored_lengths")?,
        codecs: fields.codecs.as_bytes(py),
        checksums: checksums.u64s("checksums")?.into_iter().map(Checksum).collect(),
        fingerprints: fingerprints.fingerprints("fingerprints")?,
        raw_lengths: raw_lengths.u32s("raw_lengths")?,
        hints: hints.u32s("hints")?,
    };
    let place = Place { seed, ordinal, offset };
    let buffer = buffer.bytes_mut();
    py.detach(|| crate::store::record_writer::seal(buffer, &columns, &place))
        .map_err(PyValueError::new_err)
}

#[pyclass(frozen, get_all, module = "dedupd_core.native.store")]
pub struct CheckedRecords {
    consumed: usize,
    is_lost: bool,
    ordinals: Py<PyBytes>,
    next_ordinals: Py<PyBytes>,
    kinds: Py<PyBytes>,
    statuses: Py<PyBytes>,
    entries: Py<PyBytes>,
    raw_bytes: u64,
}

#[pyfunction]
#[pyo3(signature = (data, *, seed, offset, algorithm, threads, bases = None))]
pub fn check_records(
    py: Python<'_>,
    data: Input,
    seed: u64,
    offset: u64,
    algorithm: &str,
    threads: usize,
    bases: Option<&Bound<'_, Bases>>,
) -> PyResult<CheckedRecords> {
    let algorithm = algorithm_named("algorithm", algorithm)?;
    let data = data.bytes();
    let bases = bases.map(|bases| &*bases.get().0);
    let place = CheckPlace { seed, offset, algorithm, threads, bases };
    let found = py.detach(|| crate::store::record_check::check(data, &place));
    Ok(CheckedRecords {
        consumed: found.consumed,
        is_lost: found.is_lost,
        ordinals: column(py, pack_u32(found.ordinals)),
        next_ordinals: column(py, pack_u32(found.next_ordinals)),
        kinds: column(py, found.kinds),
        statuses: column(py, found.statuses),
        entries: column(py, found.entries),
        raw_bytes: found.raw_bytes,
    })
}

#[pyfunction]
#[pyo3(signature = (
    fd, table, *, seed, ordinal, offset, end, bytes_max, algorithm, threads, bases = None
))]
#[expect(clippy::too_many_arguments, reason = "all but two by name")]
pub fn pass_records(
    py: Python<'_>,
    fd: i32,
    table: Input,
    seed: u64,
    ordinal: usize,
    offset: u64,
    end: u64,
    bytes_max: u64,
    algorithm: &str,
    threads: usize,
    bases: Option<&Bound<'_, Bases>>,
) -> PyResult<PassedRecords> {
    let algorithm = algorithm_named("algorithm", algorithm)?;
    let bases = bases.map(|bases| &*bases.get().0);
    let container = Container { data: fd, entries: &table.entries("table")?, seed, bases };
    let from = Position { ordinal, offset };
    Ok(py.detach(|| container.pass(from, end, bytes_max, algorithm, threads)))
}

#[pyfunction]
#[pyo3(signature = (fd, table, *, seed, first=0, threads=1))]
pub fn headers_agree(
    py: Python<'_>,
    fd: i32,
    table: Input,
    seed: u64,
    first: usize,
    threads: usize,
) -> PyResult<bool> {
    let container = Container { data: fd, entries: &table.entries("table")?, seed, bases: None };
    Ok(py.detach(|| container.headers_agree(first, threads)))
}

#[pyfunction]
#[pyo3(signature = (fd, table, *, seed, block_bytes, threads, is_seen=false))]
pub fn dead_payloads(
    py: Python<'_>,
    fd: i32,
    table: Input,
    seed: u64,
    block_bytes: u64,
    threads: usize,
    is_seen: bool,
) -> PyResult<Vec<(u32, u64, u64)>> {
    require(block_bytes > 0, "block_bytes = 0")?;
    let entries = &table.entries("table")?;
    let container = PunchedContainer { data: fd, entries, seed, block_bytes, is_seen };
    let found = py.detach(|| container.dead_payloads(threads))?;
    Ok(found.into_iter().map(|(ordinal, blocks)| (ordinal, blocks.start, blocks.end)).collect())
}

#[pyfunction]
pub fn table_states(py: Python<'_>, entries: Input, seed: u64) -> Vec<u8> {
    let entries = entries.bytes();
    py.detach(|| states(entries, seed))
}

#[pyfunction]
pub fn weigh_table(py: Python<'_>, entries: Input, seed: u64) -> Weight {
    let entries = entries.bytes();
    py.detach(|| weigh(entries, seed))
}

#[pyfunction]
pub fn places_digest(py: Python<'_>, entries: Input, seed: u64) -> Option<u64> {
    let entries = entries.bytes();
    py.detach(|| of_tables::places_digest(entries, seed))
}
