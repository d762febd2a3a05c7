//! `encode`, `decode`, `Encoded`.

use std::cell::UnsafeCell;
use std::ffi::c_int;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use pyo3::{create_exception, ffi};

use super::chunks::retained;
use super::support::input::{Input, pack_u32, pack_u64, require};
use super::support::output::{NewBytes, column, export};
use crate::codec::encode as codec;
use crate::codec::encode::{Buffer, Options};
use crate::codec::{delta, dictionary};
use crate::format::bytes::u32s;
use crate::format::codec::Codec;
use crate::format::ids::Checksum;

create_exception!(
    dedupd_core.native.codec,
    CorruptPayload,
    pyo3::exceptions::PyException,
    "Stored bytes do not match their checksum, or do not decode to the stated length."
);

/// Bytes that Python, and `seal` for Python, may write through a buffer view.
struct Exported(UnsafeCell<Buffer>);

// SAFETY: Rust does not access the contents after this; length and place never change.
unsafe impl Sync for Exported {}

#[pyclass(frozen, module = "dedupd_core.native.codec")]
pub struct Encoded {
    buffer: Exported,
    length: usize,
    #[pyo3(get)]
    pub starts: Py<PyBytes>,
    #[pyo3(get)]
    pub stored_lengths: Py<PyBytes>,
    #[pyo3(get)]
    pub codecs: Py<PyBytes>,
    #[pyo3(get)]
    pub checksums: Py<PyBytes>,
}

#[pymethods]
impl Encoded {
    fn __len__(&self) -> usize {
        self.length
    }

    /// Only the kept records, one after the other.
    fn retained(&self, py: Python<'_>, kept: Input) -> PyResult<Encoded> {
        let kept = kept.bytes();
        let starts: Vec<usize> = u32s(self.starts.as_bytes(py)).map(|at| at as usize).collect();
        require(kept.len() == starts.len(), "kept must have an item for each record")?;
        let ends = starts.iter().copied().skip(1).chain([self.length]);
        let ranges: Vec<_> = starts
            .iter()
            .zip(ends)
            .zip(kept)
            .filter(|(_, flag)| **flag != 0)
            .map(|((&start, end), _)| start..end)
            .collect();
        // SAFETY: the buffer exists, and nothing writes to it before it is sealed, which is later.
        let all = unsafe { &*self.buffer.0.get() };
        let length = ranges.iter().map(ExactSizeIterator::len).sum();
        let mut buffer = Buffer::of(length);
        let mut at = 0;
        let starts = pack_u32(ranges.into_iter().map(|range| {
            let start = at;
            at += range.len();
            buffer[start..at].copy_from_slice(&all[range]);
            start as u32
        }));
        Ok(Encoded {
            length,
            buffer: Exported(UnsafeCell::new(buffer)),
            starts: column(py, starts),
            stored_lengths: retained(py, &self.stored_lengths, kept),
            codecs: retained(py, &self.codecs, kept),
            checksums: retained(py, &self.checksums, kept),
        })
    }

    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let this = slf.get();
        // SAFETY: the allocation is neither moved nor freed while this object lives.
        unsafe {
            let start = (*this.buffer.0.get()).as_mut_ptr();
            export(&slf, std::ptr::slice_from_raw_parts_mut(start, this.length), false, view, flags)
        }
    }
}

#[pyfunction]
#[pyo3(signature = (data, starts, lengths, *, level, saving_min, header_bytes, align_bytes))]
#[allow(clippy::too_many_arguments)]
pub fn encode(
    py: Python<'_>,
    data: Input,
    starts: Input,
    lengths: Input,
    level: i32,
    saving_min: f64,
    header_bytes: usize,
    align_bytes: usize,
) -> PyResult<Encoded> {
    let options = Options { level, saving_min, header_bytes, align_bytes };
    let data = data.bytes();
    let (starts, lengths) = (starts.u32s("starts")?, lengths.u32s("lengths")?);
    if starts.len() != lengths.len() {
        return Err(PyValueError::new_err(format!(
            "lengths has {} items, starts has {}",
            lengths.len(),
            starts.len()
        )));
    }
    let mut ranges = Vec::with_capacity(starts.len());
    for (start, length) in starts.into_iter().zip(lengths) {
        let (start, length) = (start as usize, length as usize);
        if start + length > data.len() {
            return Err(PyValueError::new_err(format!(
                "lengths: {length} bytes from {start} go beyond the {} of data",
                data.len()
            )));
        }
        ranges.push((start, length));
    }
    let records =
        py.detach(|| codec::encode(data, &ranges, options)).map_err(PyValueError::new_err)?;
    let numbers: Vec<u8> = records.codecs.into_iter().map(Codec::number).collect();
    Ok(Encoded {
        length: records.length,
        buffer: Exported(UnsafeCell::new(records.buffer)),
        starts: column(py, pack_u32(records.starts)),
        stored_lengths: column(py, pack_u32(records.stored_lengths)),
        codecs: column(py, numbers),
        checksums: column(py, pack_u64(records.checksums.into_iter().map(|checksum| checksum.0))),
    })
}

#[pyfunction]
#[pyo3(signature = (stored, codec, raw_length, checksum, base = None))]
pub fn decode(
    py: Python<'_>,
    stored: Input,
    codec: i64,
    raw_length: usize,
    checksum: u64,
    base: Option<Input>,
) -> PyResult<Py<PyBytes>> {
    let codec = u8::try_from(codec)
        .map(Codec::from)
        .ok()
        .filter(|codec| codec.is_known())
        .ok_or_else(|| PyValueError::new_err(format!("codec {codec} is not known")))?;
    if codec.leans() && base.is_none() {
        let number = codec.number();
        return Err(PyValueError::new_err(format!("codec {number} needs the bytes of a base")));
    }
    let (stored, base) = (stored.bytes(), base.as_ref().map(Input::bytes));
    // Checked before memory is allocated for the stated length.
    py.detach(|| codec::check(stored, codec, raw_length, Checksum(checksum)))
        .map_err(CorruptPayload::new_err)?;
    let mut result = NewBytes::of(py, raw_length)?;
    let out = result.bytes_mut();
    py.detach(|| match base {
        Some(base) if codec == Codec::Delta => delta::decode(stored, base, out),
        Some(base) if codec == Codec::Dictionary => match dictionary::Dictionary::of(base) {
            Some(found) => dictionary::decode(stored, &found, out),
            None => Err("these bytes are no dictionary".to_owned()),
        },
        _ => codec::decode(stored, codec, out),
    })
    .map_err(CorruptPayload::new_err)?;
    Ok(result.finish())
}
