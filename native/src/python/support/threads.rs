//! The check of the number of threads in a call.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// A larger number is probably a mistake.
const THREADS_MAX: usize = 1024;

pub fn check_threads(threads: usize) -> PyResult<usize> {
    if (1..=THREADS_MAX).contains(&threads) {
        Ok(threads)
    } else {
        Err(PyValueError::new_err(format!("threads must be 1 to {THREADS_MAX}, not {threads}")))
    }
}
