//! Times of the last writes of users to parts of files.

use std::sync::Arc;

use pyo3::prelude::*;

use crate::mount::write_times::Notes;

#[pyclass(frozen, module = "dedupd_core.native.mount")]
pub struct WriteTimes(pub Arc<Notes>);

#[pymethods]
impl WriteTimes {
    #[new]
    fn new() -> WriteTimes {
        WriteTimes(Arc::default())
    }

    fn note(&self, ino: u64, start: u64, end: u64) {
        self.0.note(ino, start, end);
    }

    #[pyo3(signature = (ino, size, age_s, *, passed_over = false))]
    fn quiet(&self, ino: u64, size: u64, age_s: f64, passed_over: bool) -> Vec<(u64, u64)> {
        self.0.quiet(ino, size, age_s, passed_over)
    }

    fn files(&self) -> Vec<u64> {
        self.0.files()
    }

    fn pass_over(&self, ino: u64, start: u64, end: u64) {
        self.0.pass_over(ino, start, end);
    }

    fn forget(&self, ino: u64) {
        self.0.forget(ino);
    }
}
