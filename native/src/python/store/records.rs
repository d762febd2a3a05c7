//! Records of containers: sealing, reading and checking them, and their tables.

use std::ops::Range;
use std::sync::Arc;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::format::ids::Checksum;
use crate::format::record_header::{RECORD_HEADER_BYTES, record_bytes};
use crate::format::table_entry::{ENTRY_BYTES, EntryBytes, TableEntry};
use crate::python::codec::Encoded;
use crate::python::hashing::algorithm_named;
use crate::python::store::bases::Bases;
use crate::python::support::input::{Input, require};
use crate::python::support::output::{Output, column};
use crate::store::container_check::{self, Reached};
use crate::store::dead_payloads::Container as PunchedContainer;
use crate::store::header_check;
use crate::store::header_scan::{self, ScannedHeader};
use crate::store::record_check::{self, CheckOptions};
use crate::store::record_writer::{Columns, WritePosition};
use crate::store::table_states::{self as of_tables, Weight, states, weigh};

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
    let place = WritePosition { seed, ordinal, offset };
    let buffer = buffer.bytes_mut();
    py.detach(|| crate::store::record_writer::seal(buffer, &columns, &place))
        .map_err(PyValueError::new_err)
}

#[pyfunction]
#[pyo3(signature = (fd, ordinal, entry, *, seed, algorithm, bases = None))]
pub fn is_intact(
    py: Python<'_>,
    fd: i32,
    ordinal: u32,
    entry: EntryBytes,
    seed: u64,
    algorithm: &str,
    bases: Option<&Bound<'_, Bases>>,
) -> PyResult<bool> {
    let algorithm = algorithm_named("algorithm", algorithm)?;
    let bases = bases.map(|bases| &*bases.get().0);
    let Some(entry) = TableEntry::sound(&entry, seed) else { return Ok(false) };
    let options = CheckOptions { seed, offset: entry.offset, algorithm, threads: 1, bases };
    Ok(py.detach(|| record_check::is_intact(fd, ordinal, &entry, &options)))
}

/// Start, end, the header of a record, and whether it was searched.
type Part = (u64, u64, Py<PyBytes>, bool);

#[pyclass(module = "dedupd_core.native.store")]
pub struct HeaderScan(header_scan::HeaderScan, u64);

#[pymethods]
impl HeaderScan {
    #[new]
    fn new(fd: i32, seed: u64, start: u64, end: u64) -> HeaderScan {
        HeaderScan(header_scan::HeaderScan::new(fd, seed, start, end), seed)
    }

    fn __iter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    fn __next__(&mut self, py: Python<'_>) -> PyResult<Option<Part>> {
        Ok(py.detach(|| self.0.next_part())?.map(|found| match found {
            ScannedHeader::Gap(gap) => (gap.start, gap.end, column(py, []), true),
            ScannedHeader::Record { offset, header, is_searched } => {
                let mut bytes = [0; RECORD_HEADER_BYTES];
                header.write(&mut bytes, self.1);
                let end = offset + record_bytes(header.stored_length.into());
                (offset, end, column(py, bytes), is_searched)
            }
        }))
    }
}

#[pyfunction]
pub fn valid_seed(
    py: Python<'_>,
    fd: i32,
    seeds: Vec<u64>,
    start: u64,
    end: u64,
) -> PyResult<Option<u64>> {
    let mut scan = header_scan::HeaderScan::new(fd, 0, start, end);
    Ok(py.detach(|| scan.valid_seed(&seeds))?)
}

#[pyclass(frozen, get_all, module = "dedupd_core.native.store")]
pub struct Difference {
    what: &'static str,
    ordinal: u32,
    start: u64,
    end: u64,
    entry: Option<Py<PyBytes>>,
}

#[pyclass(module = "dedupd_core.native.store")]
pub struct ContainerCheck(container_check::ContainerCheck);

#[pymethods]
impl ContainerCheck {
    #[new]
    #[pyo3(signature = (
        fd, table, *, seed, start, end, ordinal = 0, is_forgeable, algorithm, threads, bases = None
    ))]
    #[expect(clippy::too_many_arguments, reason = "all but two by name")]
    fn new(
        fd: i32,
        table: Vec<u8>,
        seed: u64,
        start: u64,
        end: u64,
        ordinal: u32,
        is_forgeable: bool,
        algorithm: &str,
        threads: usize,
        bases: Option<&Bound<'_, Bases>>,
    ) -> PyResult<ContainerCheck> {
        let at = (ordinal, start);
        let mut check = container_check::ContainerCheck::new(fd, table, seed, at, end);
        check.is_forgeable = is_forgeable;
        check.bases = bases.map(|bases| Arc::clone(&bases.get().0));
        check.algorithm = algorithm_named("algorithm", algorithm)?;
        check.threads = threads;
        Ok(ContainerCheck(check))
    }

    fn step(&mut self, py: Python<'_>, bytes_max: u64) -> PyResult<Vec<Difference>> {
        py.detach(|| self.0.step(bytes_max))?;
        Ok(self.taken(py))
    }

    fn finish(&mut self, py: Python<'_>) -> PyResult<Vec<Difference>> {
        py.detach(|| self.0.finish())?;
        Ok(self.taken(py))
    }

    fn take_implied(&mut self, py: Python<'_>) -> Vec<(u32, u32, Py<PyBytes>)> {
        let row = |(ordinals, entry): (Range<u32>, TableEntry)| {
            (ordinals.start, ordinals.end, column(py, entry.to_bytes(self.0.seed)))
        };
        std::mem::take(&mut self.0.implied).into_iter().map(row).collect()
    }

    #[getter]
    fn reached(&self) -> Reached {
        self.0.reached.clone()
    }
}

impl ContainerCheck {
    fn taken(&mut self, py: Python<'_>) -> Vec<Difference> {
        let shown = |one: container_check::Difference| {
            let entry = one.entry.map(|entry| column(py, entry.to_bytes(self.0.seed)));
            let (start, end) = (one.range.start, one.range.end);
            Difference { what: one.what, ordinal: one.ordinal, start, end, entry }
        };
        std::mem::take(&mut self.0.differences).into_iter().map(shown).collect()
    }
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
    let table = table.bytes();
    require(table.len() % ENTRY_BYTES == 0, "the table has a part of an entry")?;
    Ok(py.detach(|| header_check::headers_agree(fd, table, seed, first, threads)))
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
