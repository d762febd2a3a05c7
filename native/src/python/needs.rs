//! `NeedSet`, `more_than`, `longest`, `digest_needed`.

use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::input::{Input, pack_u32, pack_u64};
use crate::needs::{self, Needs};

#[pyclass(frozen, module = "dedupd.native")]
pub struct NeedSet(RwLock<Needs>);

/// Nobody waits for the GIL while holding the lock.
impl NeedSet {
    fn read(&self) -> RwLockReadGuard<'_, Needs> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Needs> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

type Taken<'py> = (Bound<'py, PyBytes>, Bound<'py, PyBytes>);

#[pymethods]
impl NeedSet {
    #[new]
    fn new() -> NeedSet {
        NeedSet(RwLock::default())
    }

    fn add_container(&self, number: u32, count: usize) {
        self.write().add_container(number, count);
    }

    fn need(&self, ids: Input, lengths: Input) -> PyResult<()> {
        let (ids, lengths) = (ids.u64s("ids")?, lengths.u64s("lengths")?);
        if ids.len() != lengths.len() {
            return Err(PyValueError::new_err("each id has a length"));
        }
        let mut needs = self.write();
        ids.into_iter().zip(lengths).for_each(|(id, length)| needs.need(id, length));
        Ok(())
    }

    fn needed(&self, record_id: u64) -> u64 {
        self.read().needed(record_id)
    }

    fn lengths<'py>(&self, py: Python<'py>, number: u32) -> Bound<'py, PyBytes> {
        pack_u64(py, self.read().lengths(number).iter().copied())
    }

    fn fresh<'py>(&self, py: Python<'py>, number: u32) -> Bound<'py, PyBytes> {
        PyBytes::new(py, self.read().fresh(number))
    }

    fn put(&self, number: u32, lengths: Input, fresh: Input) {
        self.write().put(number, lengths.bytes(), fresh.bytes());
    }

    fn take_fresh<'py>(
        &self,
        py: Python<'py>,
        number: u32,
        first: usize,
        end: usize,
    ) -> PyResult<Taken<'py>> {
        if first % 8 != 0 {
            return Err(PyValueError::new_err("first is a multiple of 8"));
        }
        let taken = self.write().take_fresh(number, first, end);
        let ordinals = pack_u32(py, taken.iter().map(|&(ordinal, _)| ordinal));
        Ok((ordinals, pack_u64(py, taken.iter().map(|&(_, length)| length))))
    }
}

#[pyfunction]
pub fn more_than<'py>(py: Python<'py>, now: Input, before: Input) -> Bound<'py, PyBytes> {
    let (now, before) = (now.bytes(), before.bytes());
    PyBytes::new(py, &py.detach(|| needs::more_than(now, before)))
}

#[pyfunction]
pub fn longest<'py>(py: Python<'py>, one: Input, other: Input) -> Bound<'py, PyBytes> {
    let (one, other) = (one.bytes(), other.bytes());
    PyBytes::new(py, &py.detach(|| needs::longest(one, other)))
}

#[pyfunction]
pub fn digest_needed(py: Python<'_>, entries: Input, lengths: Input, seed: u64) -> u64 {
    let (entries, lengths) = (entries.bytes(), lengths.bytes());
    py.detach(|| needs::digest_needed(entries, lengths, seed))
}
