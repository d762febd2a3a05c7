//! `ChunkReader`, `keep_freed_memory`.

use std::ffi::CString;
use std::sync::{Arc, Mutex};

use pyo3::exceptions::{PyImportError, PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::hashing::algorithm_named;
use super::support::input::Input;
use super::support::output::uninitialised;
use crate::fingerprint::Algorithm;
use crate::rados::chunk_reads::{Found, Wanted, read_all};
use crate::rados::connection::{Address, Connection, Refusal};
use crate::rados::memory;
use crate::threads::lock::locked;

#[pyclass(frozen, module = "dedupd.native.rados")]
pub struct ChunkReader {
    connection: Mutex<Option<Arc<Connection>>>,
    algorithm: Algorithm,
}

/// Of each chunk its bytes, and its frame where frames are asked for; the first errno, or 0.
type Read = (Vec<Option<Py<PyBytes>>>, Vec<Option<Py<PyBytes>>>, i32);

#[pymethods]
impl ChunkReader {
    #[new]
    #[pyo3(signature = (*, conf, user, keyring, pool, namespace, timeout_s, algorithm))]
    #[expect(clippy::too_many_arguments, reason = "an address, in its parts")]
    fn new(
        py: Python<'_>,
        conf: CString,
        user: CString,
        keyring: Option<CString>,
        pool: CString,
        namespace: CString,
        timeout_s: f64,
        algorithm: &str,
    ) -> PyResult<ChunkReader> {
        let algorithm = algorithm_named("algorithm", algorithm)?;
        let timeout_s = CString::new(timeout_s.to_string())?;
        let address = Address { conf, user, keyring, pool, namespace, timeout_s };
        let connection =
            py.detach(|| Connection::open(&address)).map_err(|refusal| match refusal {
                Refusal::Library(reason) => PyImportError::new_err(reason),
                Refusal::Errno(errno) => system_error(errno),
            })?;
        Ok(ChunkReader { connection: Mutex::new(Some(Arc::new(connection))), algorithm })
    }

    #[pyo3(signature = (objects, fingerprints, lengths, *, at_once, with_frames))]
    fn read(
        &self,
        py: Python<'_>,
        objects: Vec<CString>,
        fingerprints: Input,
        lengths: Vec<usize>,
        at_once: usize,
        with_frames: bool,
    ) -> PyResult<Read> {
        let fingerprints = fingerprints.fingerprints("fingerprints")?;
        if objects.len() != fingerprints.len() || objects.len() != lengths.len() {
            return Err(PyValueError::new_err("each object has one fingerprint and one length"));
        }
        let connection = locked(&self.connection).clone();
        let connection = connection.ok_or_else(|| PyValueError::new_err("the reader is closed"))?;
        let results: Vec<Py<PyBytes>> =
            lengths.iter().map(|&length| uninitialised(py, length)).collect::<PyResult<_>>()?;
        let wanted = objects
            .into_iter()
            .zip(fingerprints)
            .zip(lengths.iter().zip(&results))
            .map(|((object, &fingerprint), (&length, result))| {
                let start = result.bind(py).as_bytes().as_ptr().cast_mut();
                // SAFETY: the object is new, and nobody else has it before this function returns.
                let out = unsafe { std::slice::from_raw_parts_mut(start, length) };
                Wanted { object, fingerprint, out }
            })
            .collect();
        let mut kept: Vec<Option<Vec<u8>>> = vec![None; lengths.len()];
        let found = py.detach(|| {
            let keep = |at: usize, frame: &[u8]| {
                if with_frames {
                    kept[at] = Some(frame.to_vec());
                }
            };
            let found = read_all(&connection, wanted, self.algorithm, at_once, keep);
            // Where the reader was closed meanwhile the connection ends here.
            drop(connection);
            found
        });
        let errno = found.iter().find_map(|one| match one {
            Found::Failed(errno) => Some(*errno),
            _ => None,
        });
        let chunks = results
            .into_iter()
            .zip(&found)
            .map(|(bytes, found)| matches!(found, Found::Good).then_some(bytes))
            .collect();
        let frames = kept
            .into_iter()
            .map(|frame| frame.map(|frame| PyBytes::new(py, &frame).unbind()))
            .collect();
        Ok((chunks, frames, errno.unwrap_or(0)))
    }

    fn close(&self, py: Python<'_>) {
        let connection = locked(&self.connection).take();
        py.detach(|| drop(connection));
    }
}

#[pyfunction]
pub fn keep_freed_memory() {
    memory::keep_freed_memory();
}

fn system_error(errno: i32) -> PyErr {
    let text = std::io::Error::from_raw_os_error(errno).to_string();
    let text = text.split(" (os error").next().unwrap_or_default().to_owned();
    PyOSError::new_err((errno, text))
}
