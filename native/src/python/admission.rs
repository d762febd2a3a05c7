//! `Ledger`, `Snapshot`, `Notes`, `Recall`, `pays`, `verdict`.

use std::collections::HashSet;
use std::io;
use std::sync::{Arc, Mutex};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use super::support::calls::os_error;
use super::support::entries::{Fields, identity_of};
use super::support::input::Input;
use crate::admission::join::{Recall as Inner, join};
use crate::admission::ledger::{self, JudgedFiles, judged};
use crate::admission::notes;
use crate::format::saved_notes::{Judged, Note, judged as row, rows};
use crate::ingest::judgement;
use crate::system::files::duplicate;
use crate::threads::lock::locked;

const THOUSANDTHS: f64 = 1000.0;

/// Converts a fraction for a ledger. Rounds down, so that a value below a limit stays below it.
pub fn thousandths(fraction: f64) -> u16 {
    (fraction * THOUSANDTHS).clamp(0.0, THOUSANDTHS) as u16
}

#[pyfunction]
pub fn pays(freed: u64, cost: u64, saving_min: f64) -> bool {
    judgement::pays(freed, cost, saving_min)
}

#[pyfunction]
pub fn verdict(freed: u64, cost: u64, unique: u32, saving_min: f64) -> (f64, u16) {
    let (saving, missing) = judgement::verdict(freed, cost, unique, saving_min);
    (saving.clamp(0.0, 1.0), missing)
}

#[pyclass(frozen, module = "dedupd_core.native.admission")]
pub struct Ledger(pub Arc<ledger::Ledger>);

#[pymethods]
impl Ledger {
    #[new]
    #[pyo3(signature = (rows, saving_min, *, rows_max, notes_max))]
    fn new(rows: Input, saving_min: f64, rows_max: usize, notes_max: usize) -> PyResult<Ledger> {
        let bytes = rows.bytes();
        if bytes.len() % row::BYTES != 0 {
            let message = format!("rows has {} bytes: not a multiple of 16", bytes.len());
            return Err(PyValueError::new_err(message));
        }
        let list = self::rows(bytes, Judged::from_bytes).collect();
        let gain_min = (saving_min * THOUSANDTHS).clamp(0.0, THOUSANDTHS).ceil() as u16;
        Ok(Ledger(Arc::new(ledger::Ledger::new(list, gain_min, rows_max, notes_max))))
    }

    fn use_salt(&self, salt: u64) {
        self.0.use_salt(salt);
    }

    fn saving_of(&self, identity: Fields) -> Option<f64> {
        self.0.gain_of(&identity_of(identity)).map(|gain| f64::from(gain) / THOUSANDTHS)
    }

    fn leave_full(&self, identity: Fields, recalled: bool) {
        let row = judged(&identity_of(identity), ledger::FULL, u16::MAX);
        if recalled {
            self.0.leave_again(row);
        } else {
            self.0.leave(row, std::iter::empty());
        }
    }

    fn leave(&self, identity: Fields, saving: f64, missing: u16) {
        let row = judged(&identity_of(identity), thousandths(saving), missing);
        self.0.leave(row, std::iter::empty());
    }

    fn note(&self, inode: u64, prefixes: Input) -> PyResult<()> {
        self.0.note(inode, prefixes.u64s("prefixes")?.into_iter());
        Ok(())
    }

    fn leave_again(&self, identity: Fields, saving: f64, missing: u16) {
        self.0.leave_again(judged(&identity_of(identity), thousandths(saving), missing));
    }

    #[getter]
    fn is_full(&self) -> bool {
        self.0.is_full()
    }

    #[getter]
    fn has_changed(&self) -> bool {
        self.0.has_changed()
    }

    fn forget_notes(&self) {
        self.0.forget_notes();
    }

    #[pyo3(signature = (whole, recalled = HashSet::new()))]
    fn snapshot(&self, py: Python<'_>, whole: bool, recalled: HashSet<u64>) -> Snapshot {
        let mut recalled: Vec<u64> = recalled.into_iter().collect();
        recalled.sort_unstable();
        py.detach(|| {
            let kept = Arc::new(self.0.kept(whole, &recalled));
            Snapshot { kept, notes: Arc::new(self.0.notes()) }
        })
    }
}

#[pyclass(frozen, module = "dedupd_core.native.admission")]
pub struct Snapshot {
    kept: Arc<JudgedFiles>,
    notes: Arc<Vec<Note>>,
}

/// A descriptor, and the range of its file with notes.
type Saved = (i32, u64, u64);

impl Snapshot {
    fn open(&self, saved: Option<Saved>) -> io::Result<notes::Notes> {
        let (run, kept) = (Arc::clone(&self.notes), Arc::clone(&self.kept));
        let Some((fd, start, end)) = saved else {
            return notes::Notes::new(None, 0..0, run, kept);
        };
        notes::Notes::new(Some(duplicate(fd)?.into()), start..end, run, kept)
    }
}

#[pymethods]
impl Snapshot {
    #[getter]
    fn rows(&self) -> Vec<u8> {
        self.kept.rows.iter().flat_map(|row| row.to_bytes()).collect()
    }

    #[getter]
    fn files(&self) -> usize {
        self.kept.rows.len()
    }

    /// Bytes of the rows and of the notes of the run.
    #[getter]
    fn size_bytes(&self) -> usize {
        (self.kept.rows.len() + self.notes.len()) * row::BYTES
    }

    fn join(&self, py: Python<'_>, saved: Option<Saved>, entries_max: usize) -> PyResult<Recall> {
        py.detach(|| join(|| self.open(saved), &self.kept, entries_max))
            .map(Recall)
            .map_err(|error| os_error(py, &error))
    }

    fn notes(&self, py: Python<'_>, saved: Option<Saved>, joined: bool) -> PyResult<Notes> {
        let notes = self.open(saved).map_err(|error| os_error(py, &error))?;
        Ok(Notes { inner: Mutex::new(notes), joined })
    }
}

/// Notes in pieces, ready to be saved.
#[pyclass(frozen, module = "dedupd_core.native.admission")]
pub struct Notes {
    inner: Mutex<notes::Notes>,
    joined: bool,
}

const NOTES_AT_ONCE: usize = 1 << 16;

#[pymethods]
impl Notes {
    fn __iter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Vec<u8>>> {
        let block = py.detach(|| locked(&self.inner).block(NOTES_AT_ONCE, self.joined));
        let block = block.map_err(|error| os_error(py, &error))?;
        Ok((!block.is_empty()).then_some(block))
    }
}

/// Files to read again, and the chunks that make this worthwhile.
#[pyclass(frozen, module = "dedupd_core.native.admission")]
pub struct Recall(pub Inner);

#[pymethods]
impl Recall {
    #[new]
    #[pyo3(signature = (inodes = HashSet::new()))]
    fn new(inodes: HashSet<u64>) -> Recall {
        Recall(Inner { inodes, ..Inner::default() })
    }

    fn __len__(&self) -> usize {
        self.0.inodes.len()
    }

    #[getter]
    fn inodes(&self) -> HashSet<u64> {
        self.0.inodes.clone()
    }

    #[getter]
    fn wanted(&self) -> usize {
        self.0.wanted.len()
    }

    #[getter]
    fn is_cut(&self) -> bool {
        self.0.is_cut
    }

    /// The same recall with further files.
    fn including(&self, inodes: HashSet<u64>) -> Recall {
        let inodes = self.0.inodes.union(&inodes).copied().collect();
        Recall(Inner { inodes, wanted: self.0.wanted.clone(), is_cut: self.0.is_cut })
    }
}
