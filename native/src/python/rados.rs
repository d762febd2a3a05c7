//! `ChunkReader`, `ChunkNumbers`, `FrameCache`, `ClusterContent`, `keep_freed_memory`.

use std::ffi::{CString, c_int};
use std::io::Error;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pyo3::exceptions::{PyImportError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;

use super::hashing::algorithm_named;
use super::support::calls::os_error;
use super::support::input::Input;
use super::support::output::export;
use crate::format::cluster::kept_frame::Name;
use crate::format::ids::{FINGERPRINT_BYTES, Fingerprint};
use crate::rados::cluster_content;
use crate::rados::connection::{Address, Connection, Refusal};
use crate::rados::{chunk_numbers, frame_cache, memory};
use crate::system::files;
use crate::threads::lock::locked;

#[pyclass(frozen, module = "dedupd_core.native.rados")]
pub struct ChunkReader(Mutex<Option<Arc<Connection>>>);

#[pymethods]
impl ChunkReader {
    #[new]
    #[pyo3(signature = (*, conf, user, keyring, pool, namespace, timeout_s))]
    fn new(
        py: Python<'_>,
        conf: CString,
        user: CString,
        keyring: Option<CString>,
        pool: CString,
        namespace: CString,
        timeout_s: f64,
    ) -> PyResult<ChunkReader> {
        let timeout_s = CString::new(timeout_s.to_string())?;
        let address = Address { conf, user, keyring, pool, namespace, timeout_s };
        let connection =
            py.detach(|| Connection::open(&address)).map_err(|refusal| match refusal {
                Refusal::Library(reason) => PyImportError::new_err(reason),
                Refusal::Errno(errno) => os_error(py, &Error::from_raw_os_error(errno)),
            })?;
        Ok(ChunkReader(Mutex::new(Some(Arc::new(connection)))))
    }

    fn close(&self, py: Python<'_>) {
        let reader = locked(&self.0).take();
        py.detach(|| drop(reader));
    }
}

impl ChunkReader {
    fn open(&self) -> PyResult<Arc<Connection>> {
        let reader = locked(&self.0).clone();
        reader.ok_or_else(|| PyValueError::new_err("the reader is closed"))
    }
}

#[pyclass(frozen, module = "dedupd_core.native.rados")]
pub struct ChunkNumbers(Arc<chunk_numbers::ChunkNumbers>);

#[pymethods]
impl ChunkNumbers {
    #[new]
    fn new(idle_max: usize) -> ChunkNumbers {
        ChunkNumbers(Arc::new(chunk_numbers::ChunkNumbers::new(idle_max)))
    }

    fn take(&self, fingerprints: Input) -> PyResult<Vec<u64>> {
        let fingerprints = fingerprints.fingerprints("fingerprints")?;
        Ok(self.0.take(fingerprints.into_iter()))
    }

    fn give_back(&self, numbers: Vec<u64>) {
        self.0.give_back(numbers.into_iter());
    }

    fn fingerprint(&self, number: u64) -> Option<Fingerprint> {
        self.0.fingerprint(number)
    }

    fn __len__(&self) -> usize {
        self.0.count()
    }
}

/// The fingerprint of a chunk, or the shorter name of a version.
fn name_of(name: &[u8]) -> PyResult<Name> {
    let mut whole = [0; FINGERPRINT_BYTES];
    let start = whole.get_mut(..name.len());
    start
        .ok_or_else(|| PyValueError::new_err("a name has 32 bytes at most"))?
        .copy_from_slice(name);
    Ok(whole)
}

/// A frame to be written to the disk, as a buffer.
#[pyclass(frozen, module = "dedupd_core.native.rados")]
pub struct KeptFrame(Vec<u8>);

#[pymethods]
impl KeptFrame {
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let bytes = slf.get().0.as_slice();
        // SAFETY: the bytes neither move nor change while this object lives.
        unsafe { export(&slf, std::ptr::from_ref(bytes).cast_mut(), true, view, flags) }
    }
}

#[pyclass(frozen, module = "dedupd_core.native.rados")]
pub struct FrameCache(Arc<frame_cache::FrameCache>);

#[pymethods]
impl FrameCache {
    #[new]
    fn new(frame_bytes_max: usize) -> FrameCache {
        FrameCache(Arc::new(frame_cache::FrameCache::new(frame_bytes_max)))
    }

    /// The descriptor still belongs to the caller.
    fn add_segment(&self, py: Python<'_>, number: u32, fd: RawFd, rows: Input) -> PyResult<()> {
        let file = files::duplicate(fd).map_err(|error| os_error(py, &error))?;
        self.0.add_segment(number, file.into(), rows.bytes());
        Ok(())
    }

    fn drop_segment(&self, py: Python<'_>, number: u32) {
        py.detach(|| self.0.drop_segment(number));
    }

    fn get(&self, py: Python<'_>, name: &[u8]) -> PyResult<Option<Vec<u8>>> {
        let name = name_of(name)?;
        Ok(py.detach(|| self.0.decoded(&name, |frame| Some(frame.to_vec()))))
    }

    fn forget(&self, name: &[u8]) -> PyResult<()> {
        self.0.forget(&name_of(name)?);
        Ok(())
    }

    fn keep(&self, name: &[u8], frame: &[u8]) -> PyResult<()> {
        let name = name_of(name)?;
        if self.0.wants(&name) {
            self.0.keep(name, frame.to_vec());
        }
        Ok(())
    }

    fn next(
        &self,
        py: Python<'_>,
        segment: u32,
        offset: u32,
        room: usize,
        wait_s: f64,
    ) -> Option<(Vec<KeptFrame>, Vec<u8>)> {
        let limit = Duration::try_from_secs_f64(wait_s).unwrap_or_default();
        let batch = py.detach(|| self.0.next(segment, offset, room, limit))?;
        let frames = batch.frames.into_iter().map(KeptFrame).collect();
        Some((frames, batch.rows))
    }

    fn settle(&self, segment: u32, rows: Input, are_written: bool) {
        self.0.settle(segment, rows.bytes(), are_written);
    }

    fn give_up_waiting(&self) {
        self.0.give_up_waiting();
    }

    fn close(&self) {
        self.0.close();
    }

    #[getter]
    fn is_closed(&self) -> bool {
        self.0.is_closed()
    }

    #[getter]
    fn expected(&self) -> usize {
        self.0.expected()
    }

    fn __len__(&self) -> usize {
        self.0.count()
    }
}

#[pyclass(frozen, module = "dedupd_core.native.rados")]
pub struct ClusterContent(pub Arc<cluster_content::ClusterContent>);

#[pymethods]
impl ClusterContent {
    #[new]
    fn new(
        numbers: &ChunkNumbers,
        cache: Option<&Bound<'_, FrameCache>>,
        algorithm: &str,
    ) -> PyResult<ClusterContent> {
        let algorithm = algorithm_named("algorithm", algorithm)?;
        let (numbers, kept) =
            (Arc::clone(&numbers.0), cache.map(|cache| Arc::clone(&cache.get().0)));
        Ok(ClusterContent(Arc::new(cluster_content::ClusterContent::new(numbers, kept, algorithm))))
    }

    fn connect(&self, py: Python<'_>, reader: Option<&ChunkReader>) -> PyResult<()> {
        let reader = reader.map(ChunkReader::open).transpose()?;
        py.detach(|| self.0.connect(reader));
        Ok(())
    }

    #[getter]
    fn recent_failure(&self) -> i32 {
        self.0.failures.any()
    }

    fn take_failure(&self, names: Vec<Vec<u8>>) -> PyResult<i32> {
        let names: Vec<Name> = names.iter().map(|name| name_of(name)).collect::<PyResult<_>>()?;
        Ok(self.0.failures.take(names.iter()))
    }
}

#[pyfunction]
pub fn keep_freed_memory() {
    memory::keep_freed_memory();
}
