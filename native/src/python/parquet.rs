//! `write_parquet`.

use std::path::PathBuf;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use super::input::Input;
use super::sys::os_error;
use crate::parquet::{self, Column, Kind};

fn kind_of(name: &str) -> PyResult<Kind> {
    match name {
        "u16" => Ok(Kind::U16),
        "u32" => Ok(Kind::U32),
        "u64" => Ok(Kind::U64),
        "i64" => Ok(Kind::I64),
        "bytes" => Ok(Kind::Bytes),
        "text" => Ok(Kind::Text),
        _ => Err(PyValueError::new_err(format!("there are no columns of {name:?}"))),
    }
}

#[pyfunction]
pub fn write_parquet(
    py: Python<'_>,
    path: PathBuf,
    columns: Vec<(String, String, Input)>,
    rows: usize,
) -> PyResult<()> {
    let kinds = columns.iter().map(|(_, kind, _)| kind_of(kind)).collect::<PyResult<Vec<_>>>()?;
    let columns: Vec<Column> = columns
        .iter()
        .zip(kinds)
        .map(|((name, _, items), kind)| Column { name, kind, items: items.bytes() })
        .collect();
    let written = py.detach(|| parquet::write(&path, columns, rows));
    written.map_err(|error| match error.kind() {
        std::io::ErrorKind::InvalidInput => PyValueError::new_err(error.to_string()),
        _ => os_error(py, &error),
    })
}
