//! `KnownRecords`.

use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::input::{Input, pack_u32, pack_u64};
use crate::known::{Known, word};

#[pyclass(frozen, module = "dedupd.native")]
pub struct KnownRecords(RwLock<Known>);

/// Nobody waits for the GIL while holding the lock.
impl KnownRecords {
    pub fn read(&self) -> RwLockReadGuard<'_, Known> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Known> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl KnownRecords {
    #[new]
    fn new() -> KnownRecords {
        KnownRecords(RwLock::default())
    }

    fn add_table<'py>(
        &self,
        py: Python<'py>,
        number: u32,
        table: Input,
        seed: u64,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let entries = table.entries("table")?;
        let others = py.detach(|| self.write().add_table(number, &entries, seed));
        Ok(pack_u32(py, others))
    }

    #[pyo3(signature = (record_id, length, check, target = None))]
    fn set(&self, record_id: u64, length: u32, check: u32, target: Option<u64>) {
        self.write().set(record_id, word(length, check), target);
    }

    fn set_second(&self, record_id: u64, length: u32, check: u32) {
        self.write().set_second(record_id, word(length, check));
    }

    fn count(&self, number: u32) -> usize {
        self.read().count(number)
    }

    fn numbers(&self) -> Vec<u32> {
        self.read().numbers()
    }

    fn resolve(&self, record_id: u64) -> u64 {
        self.read().resolve(record_id)
    }

    fn holds(&self, record_id: u64, length: u32, check: u32) -> bool {
        self.read().holds(record_id, word(length, check))
    }

    fn known(&self, record_id: u64) -> (u32, u32) {
        let known = self.read();
        let word = known.word(known.resolve(record_id));
        ((word >> 32) as u32, word as u32)
    }

    fn is_primary(&self, record_id: u64) -> bool {
        self.read().own_word(record_id) != 0
    }

    fn relied_on(&self) -> Vec<u64> {
        self.read().relied_on()
    }

    fn refer(&self, record_id: u64) {
        self.read().refer(record_id);
    }

    fn add_references(&self, record_id: u64, count: u8) {
        self.read().add_references(record_id, count);
    }

    fn references(&self, record_id: u64) -> u8 {
        self.read().references(record_id)
    }

    fn referred_at_least<'py>(&self, py: Python<'py>, count: u8) -> Bound<'py, PyBytes> {
        pack_u64(py, py.detach(|| self.read().with_references(|found| found >= count)))
    }

    fn unreferenced(&self, py: Python<'_>) -> usize {
        py.detach(|| self.read().with_references(|found| found == 0).len())
    }
}
