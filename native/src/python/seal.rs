//! `seal`.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::codec::Encoded;
use super::input::Input;
use super::output::Output;
use crate::seal::{Columns, Place};

#[pyfunction]
#[pyo3(signature = (encoded, fingerprints, raw_lengths, hints, *, seed, ordinal, offset))]
#[allow(clippy::too_many_arguments)]
pub fn seal<'py>(
    py: Python<'py>,
    encoded: &Bound<'py, Encoded>,
    fingerprints: Input,
    raw_lengths: Input,
    hints: Input,
    seed: u64,
    ordinal: u32,
    offset: u64,
) -> PyResult<Bound<'py, PyBytes>> {
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
        checksums: checksums.u64s("checksums")?,
        fingerprints: fingerprints.fingerprints("fingerprints")?,
        raw_lengths: raw_lengths.u32s("raw_lengths")?,
        hints: hints.u32s("hints")?,
    };
    let place = Place { seed, ordinal, offset };
    let buffer = buffer.bytes_mut();
    let entries =
        py.detach(|| crate::seal::seal(buffer, &columns, &place)).map_err(PyValueError::new_err)?;
    Ok(PyBytes::new(py, &entries))
}
