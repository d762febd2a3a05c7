//! Functions only for tests and benchmarks: the single steps of the chunker, the encoder's test for
//! incompressible data, and the internals of an index.

use pyo3::prelude::*;

use super::chunker::Chunker;
use super::index::{BloomIndex, TableIndex};
use super::support::input::{Input, pack_u32};
use crate::chunker::{Scratch, available_paths};
use crate::codec::compressibility;

#[pyfunction]
pub fn simd_paths() -> Vec<&'static str> {
    available_paths().iter().map(|path| path.name()).collect()
}

#[pyfunction]
#[pyo3(signature = (chunker, data, r#final = true))]
pub fn cut(
    py: Python<'_>,
    chunker: &Bound<'_, Chunker>,
    data: Input,
    r#final: bool,
) -> PyResult<Vec<u8>> {
    let (chunker, data) = (&chunker.get().inner, data.bytes_u32("data")?);
    let ends = py.detach(|| {
        let mut scratch = Scratch::default();
        let mut ends = Vec::new();
        let mut start = 0;
        while let Some(end) = chunker.next_cut(data, start, r#final, &mut scratch) {
            ends.push(end as u32);
            start = end;
        }
        ends
    });
    Ok(pack_u32(ends))
}

#[pyfunction]
pub fn candidates(py: Python<'_>, chunker: &Bound<'_, Chunker>, data: Input) -> PyResult<Vec<u8>> {
    let (chunker, data) = (&chunker.get().inner, data.bytes_u32("data")?);
    let found = py.detach(|| chunker.candidates(data));
    Ok(pack_u32(found.into_iter().flat_map(|(end, bits)| [end as u32, bits])))
}

#[pyfunction]
pub fn incompressible(py: Python<'_>, data: Input) -> bool {
    let data = data.bytes();
    py.detach(|| compressibility::incompressible(data))
}

#[derive(FromPyObject)]
pub enum AnyIndex<'py> {
    Table(Bound<'py, TableIndex>),
    Bloom(Bound<'py, BloomIndex>),
}

#[pyfunction]
pub fn rebuild(py: Python<'_>, index: AnyIndex<'_>) -> PyResult<()> {
    match index {
        AnyIndex::Table(index) => index.get().0.call(py, |index| index.rebuild()),
        AnyIndex::Bloom(index) => index.get().0.call(py, |index| index.rebuild()),
    }
}

#[pyfunction]
pub fn load_factor(py: Python<'_>, index: &Bound<'_, TableIndex>) -> f64 {
    let index = index.get();
    py.detach(|| index.0.lock().suggest.load())
}
