//! `digest_needed`, `Join`, `KnownRecords`.

use std::sync::{Mutex, RwLock, RwLockReadGuard};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::format::ids::{ContainerNumber, FingerprintCheck, RecordId};
use crate::python::support::input::{Input, pack_ids, pack_u32};
use crate::threads::lock::{locked, read, write};
use crate::upkeep::file_needs;
use crate::upkeep::join;
use crate::upkeep::record_census::{KnownBytes, RecordCensus};

#[pyfunction]
pub fn digest_needed(py: Python<'_>, entries: Input, lengths: Input, seed: u64) -> u64 {
    let (entries, lengths) = (entries.bytes(), lengths.bytes());
    py.detach(|| file_needs::digest_needed(entries, lengths, seed))
}

/// Locked only with the GIL released, and no Python code runs with the lock.
#[pyclass(frozen, module = "dedupd_core.native.upkeep")]
pub struct Join(Mutex<join::Join>);

fn packed(pairs: join::Pairs) -> Vec<u8> {
    pack_ids(pairs.into_iter().flat_map(|(merged, into)| [merged, into]))
}

#[pymethods]
impl Join {
    #[new]
    #[pyo3(signature = (capacity, sample_bits = 0, seed = 0))]
    fn new(capacity: usize, sample_bits: u32, seed: u64) -> PyResult<Join> {
        if capacity >= 1 << 31 {
            return Err(PyValueError::new_err(format!("capacity is too large: {capacity}")));
        }
        Ok(Join(Mutex::new(join::Join::new(capacity, sample_bits, seed))))
    }

    fn __len__(&self, py: Python<'_>) -> usize {
        py.detach(|| locked(&self.0).len())
    }

    #[getter]
    fn memory_bytes(&self, py: Python<'_>) -> usize {
        py.detach(|| locked(&self.0).bytes())
    }

    #[pyo3(signature = (entries, seed, first_id, domain = 0))]
    fn add(&self, py: Python<'_>, entries: Input, seed: u64, first_id: u64, domain: u64) -> bool {
        let entries = entries.bytes();
        py.detach(|| locked(&self.0).add(entries, seed, RecordId(first_id), domain))
    }

    #[pyo3(signature = (entries, seed, first_id, domain = 0))]
    fn probe(
        &self,
        py: Python<'_>,
        entries: Input,
        seed: u64,
        first_id: u64,
        domain: u64,
    ) -> Vec<u8> {
        let entries = entries.bytes();
        packed(py.detach(|| locked(&self.0).probe(entries, seed, RecordId(first_id), domain)))
    }

    fn finish(&self, py: Python<'_>) -> Vec<u8> {
        packed(py.detach(|| locked(&self.0).finish()))
    }
}

/// No thread waits for the GIL with this lock.
#[pyclass(frozen, subclass, module = "dedupd_core.native.upkeep")]
pub struct KnownRecords(RwLock<RecordCensus>);

impl KnownRecords {
    pub fn census(&self) -> RwLockReadGuard<'_, RecordCensus> {
        read(&self.0)
    }
}

fn bytes_of(raw_length: u32, fingerprint_check: u32) -> KnownBytes {
    KnownBytes { raw_length, fingerprint_check: FingerprintCheck(fingerprint_check) }
}

#[pymethods]
impl KnownRecords {
    #[new]
    fn new() -> KnownRecords {
        KnownRecords(RwLock::default())
    }

    fn add_table(&self, py: Python<'_>, number: u32, table: Input, seed: u64) -> PyResult<Vec<u8>> {
        let entries = table.entries("table")?;
        let others =
            py.detach(|| write(&self.0).add_table(ContainerNumber(number), &entries, seed));
        Ok(pack_u32(others))
    }

    #[pyo3(signature = (record_id, raw_length, fingerprint_check, target = None))]
    fn set(&self, record_id: u64, raw_length: u32, fingerprint_check: u32, target: Option<u64>) {
        let bytes = bytes_of(raw_length, fingerprint_check);
        write(&self.0).set(RecordId(record_id), bytes, target.map(RecordId));
    }

    fn set_second(&self, record_id: u64, raw_length: u32, fingerprint_check: u32) {
        write(&self.0).set_second(RecordId(record_id), bytes_of(raw_length, fingerprint_check));
    }

    fn count(&self, number: u32) -> usize {
        read(&self.0).count(ContainerNumber(number))
    }

    fn numbers(&self) -> Vec<u32> {
        read(&self.0).numbers().into_iter().map(|number| number.0).collect()
    }

    fn holds(&self, record_id: u64, raw_length: u32, fingerprint_check: u32) -> bool {
        read(&self.0).holds(RecordId(record_id), bytes_of(raw_length, fingerprint_check))
    }

    fn known(&self, record_id: u64) -> (u32, u32) {
        let known = read(&self.0);
        let found = known.known(known.resolve(RecordId(record_id)));
        (found.raw_length, found.fingerprint_check.0)
    }

    fn end_of(&self, record_id: u64) -> u64 {
        read(&self.0).resolve(RecordId(record_id)).0
    }

    fn is_primary(&self, record_id: u64) -> bool {
        read(&self.0).own(RecordId(record_id)).is_there()
    }

    fn relied_on(&self) -> Vec<u64> {
        read(&self.0).relied_on().into_iter().map(|id| id.0).collect()
    }

    fn refer(&self, record_id: u64) {
        read(&self.0).refer(RecordId(record_id));
    }

    fn add_references(&self, record_id: u64, count: u8) {
        read(&self.0).add_references(RecordId(record_id), count);
    }

    fn references(&self, record_id: u64) -> u8 {
        read(&self.0).references(RecordId(record_id))
    }

    fn referred_at_least(&self, py: Python<'_>, count: u8) -> Vec<u8> {
        pack_ids(py.detach(|| read(&self.0).with_references(|found| found >= count)))
    }

    fn unreferenced(&self, py: Python<'_>) -> usize {
        py.detach(|| read(&self.0).with_references(|found| found == 0).len())
    }
}
