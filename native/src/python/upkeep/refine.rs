//! `Refiner`, `Refined`, `Samples`, `sketch_records`, `deltas`.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::format::codec::Codec;
use crate::format::ids::{Checksum, RecordId};
use crate::python::hashing::algorithm_named;
use crate::python::store::bases::Bases;
use crate::python::support::input::{Input, pack_ids, pack_u32, pack_u64, require};
use crate::python::support::output::column;
use crate::python::upkeep::marks::Marks;
use crate::store::bases;
use crate::store::record_reader::CacheUse;
use crate::threads::lock::locked;
use crate::upkeep::follow_merges;
use crate::upkeep::groups::Groups;
use crate::upkeep::refining::{self, Join, Options, Piece, PreparedDictionary, RefineInputs};
use crate::upkeep::similar::Similar;
use crate::upkeep::sketch::{self, DOMAINS_MAX, FEATURES, SKETCH_BYTES, Sketch, in_domain};
use crate::upkeep::sketching::{Payload, SketchedContainer};
use crate::upkeep::training::{self, TrainingGoal};

fn sketches(data: &Input) -> PyResult<Vec<Sketch>> {
    let are_whole = data.bytes().len() % SKETCH_BYTES == 0;
    require(are_whole, "sketches: not a multiple of 64 bytes")?;
    let numbers = data.u64s("sketches")?;
    Ok(numbers.chunks_exact(FEATURES).filter_map(|one| one.try_into().ok()).collect())
}

/// Sketches of chunks of one domain, because no others share a feature with them.
fn sketches_in(data: &Input, domain: u64) -> PyResult<Vec<Sketch>> {
    require(domain < DOMAINS_MAX, "domain: too many of them")?;
    Ok(sketches(data)?.into_iter().map(|one| in_domain(one, domain)).collect())
}

#[pyfunction]
#[pyo3(signature = (fd, table, bases, *, seed, first, threads))]
pub fn sketch_records(
    py: Python<'_>,
    fd: i32,
    table: Input,
    bases: &Bound<'_, Bases>,
    seed: u64,
    first: u32,
    threads: usize,
) -> PyResult<Vec<u8>> {
    let entries = table.entries("table")?;
    let looked = SketchedContainer { data: fd, seed, bases: &bases.get().0 };
    let found = py.detach(|| looked.sketches(&entries, first, threads));
    Ok(pack_u64(found.into_iter().flatten()))
}

#[pyfunction]
pub fn pack_sketches(sketches: Input) -> PyResult<Vec<u8>> {
    Ok(sketch::pack(&self::sketches(&sketches)?))
}

#[pyfunction]
pub fn unpack_sketches(packed: Input, count: usize) -> PyResult<Vec<u8>> {
    let found = sketch::unpack(packed.bytes(), count)
        .ok_or_else(|| PyValueError::new_err("not that many sketches"))?;
    Ok(pack_u64(found.into_iter().flatten()))
}

#[pyclass(frozen, module = "dedupd_core.native.upkeep")]
#[derive(Default)]
pub struct Samples(Mutex<SampleSet>);

#[derive(Default)]
struct SampleSet {
    samples: Vec<Vec<u8>>,
    /// Bytes of all records that samples were taken from.
    raw_bytes: usize,
}

#[pymethods]
impl Samples {
    #[new]
    fn new() -> Samples {
        Samples::default()
    }

    #[pyo3(signature = (fd, table, bases, *, seed, first, bytes_max))]
    #[expect(clippy::too_many_arguments, reason = "most of them by name")]
    fn add(
        &self,
        py: Python<'_>,
        fd: i32,
        table: Input,
        bases: &Bound<'_, Bases>,
        seed: u64,
        first: u32,
        bytes_max: usize,
    ) -> PyResult<()> {
        let entries = table.entries("table")?;
        let looked = SketchedContainer { data: fd, seed, bases: &bases.get().0 };
        let (found, raw_bytes) = py.detach(|| looked.samples(&entries, first, bytes_max));
        let mut taken = locked(&self.0);
        taken.samples.extend(found);
        taken.raw_bytes += raw_bytes;
        Ok(())
    }

    #[pyo3(signature = (*, known, count, bytes_max, gain_bytes_min, level, threads))]
    #[expect(clippy::too_many_arguments, reason = "all by name")]
    fn train(
        &self,
        py: Python<'_>,
        known: Vec<Vec<u8>>,
        count: usize,
        bytes_max: usize,
        gain_bytes_min: f64,
        level: i32,
        threads: usize,
    ) -> Vec<Vec<u8>> {
        let SampleSet { samples, raw_bytes } = std::mem::take(&mut *locked(&self.0));
        let taken: usize = samples.iter().map(Vec::len).sum();
        let scale = raw_bytes as f64 / taken.max(1) as f64;
        let known = &known[..];
        let wanted =
            TrainingGoal { known, count, bytes_max, level, scale, gain_bytes_min, threads };
        py.detach(|| training::train(samples, wanted))
    }
}

#[pyfunction]
pub fn deltas(py: Python<'_>, table: Input, seed: u64) -> PyResult<(Vec<u8>, Vec<u8>)> {
    let entries = table.entries("table")?;
    let (places, found) = py.detach(|| follow_merges::deltas(&entries, seed));
    Ok((pack_u32(places), pack_ids(found)))
}

#[pyclass(frozen, get_all, module = "dedupd_core.native.upkeep")]
pub struct Refined {
    places: Py<PyBytes>,
    codecs: Py<PyBytes>,
    leans_on: Py<PyBytes>,
    lengths: Py<PyBytes>,
    checksums: Py<PyBytes>,
    payloads: Py<PyBytes>,
}

#[pyclass(frozen, module = "dedupd_core.native.upkeep")]
pub struct Refiner {
    similar: Mutex<Similar>,
    groups: Mutex<Groups>,
    leaned: Py<Marks>,
    bases: Arc<bases::Bases>,
    dictionaries: Mutex<Vec<PreparedDictionary>>,
    kept: Mutex<HashSet<RecordId>>,
    options: Options,
}

#[pymethods]
impl Refiner {
    #[new]
    #[pyo3(signature = (leaned, bases, *, level, saving_min, algorithm, threads))]
    fn new(
        leaned: Py<Marks>,
        bases: &Bound<'_, Bases>,
        level: Option<i32>,
        saving_min: f64,
        algorithm: &str,
        threads: usize,
    ) -> PyResult<Refiner> {
        let algorithm = algorithm_named("algorithm", algorithm)?;
        Ok(Refiner {
            similar: Mutex::default(),
            groups: Mutex::default(),
            leaned,
            bases: Arc::clone(&bases.get().0),
            dictionaries: Mutex::default(),
            kept: Mutex::default(),
            options: Options { level, saving_min, algorithm, threads },
        })
    }

    fn keep(&self, record_id: u64) {
        locked(&self.kept).insert(RecordId(record_id));
    }

    fn use_dictionary(&self, py: Python<'_>, record_id: u64) -> bool {
        let id = RecordId(record_id);
        py.detach(|| {
            let Ok((raw, fingerprint)) = self.bases.with_fingerprint(id, CacheUse::Uncached) else {
                return false;
            };
            let is_right = self.options.algorithm.digest(&raw) == fingerprint;
            let level = self.options.level.filter(|_| is_right);
            let found = level.and_then(|level| PreparedDictionary::of(id, &raw, level));
            let is_usable = found.is_some();
            locked(&self.dictionaries).extend(found);
            is_usable
        })
    }

    fn let_leave(&self, base: u64, members: Input) -> PyResult<()> {
        let members = members.ids("members")?;
        locked(&self.groups).add(RecordId(base), members);
        Ok(())
    }

    fn left(&self) -> Vec<u8> {
        pack_ids(locked(&self.groups).left())
    }

    fn bytes(&self) -> usize {
        locked(&self.similar).bytes()
    }

    fn forget(&self) {
        locked(&self.similar).forget();
    }

    #[pyo3(signature = (sketches, *, domain = 0))]
    fn want(&self, py: Python<'_>, sketches: Input, domain: u64) -> PyResult<()> {
        let sketches = sketches_in(&sketches, domain)?;
        py.detach(|| locked(&self.similar).want(&sketches));
        Ok(())
    }

    #[pyo3(signature = (first_id, sketches, table, *, seed, domain = 0))]
    fn offer(
        &self,
        py: Python<'_>,
        first_id: u64,
        sketches: Input,
        table: Input,
        seed: u64,
        domain: u64,
    ) -> PyResult<()> {
        let sketches = sketches_in(&sketches, domain)?;
        let (first, entries) = (RecordId(first_id), table.entries("table")?);
        py.detach(|| locked(&self.similar).offer(first, &sketches, &entries, seed));
        Ok(())
    }

    #[pyo3(signature = (*, ids, codecs, settled, targets, raw_lengths, checksums, fingerprints, lengths, payloads, sketches, domain = 0))]
    #[expect(clippy::too_many_arguments, reason = "columns, all by name")]
    fn refine(
        &self,
        py: Python<'_>,
        ids: Input,
        codecs: Input,
        settled: Input,
        targets: Input,
        raw_lengths: Input,
        checksums: Input,
        fingerprints: Input,
        lengths: Input,
        payloads: Input,
        sketches: Input,
        domain: u64,
    ) -> PyResult<Refined> {
        let (ids, codecs, targets) = (ids.ids("ids")?, codecs.bytes(), targets.ids("targets")?);
        let (raw_lengths, lengths) = (raw_lengths.u32s("raw_lengths")?, lengths.u32s("lengths")?);
        let settled = settled.bytes();
        let checksums = checksums.u64s("checksums")?;
        let fingerprints = fingerprints.fingerprints("fingerprints")?;
        let sketches = sketches_in(&sketches, domain)?;
        let counts = [
            settled.len(),
            codecs.len(),
            targets.len(),
            raw_lengths.len(),
            lengths.len(),
            checksums.len(),
            fingerprints.len(),
            sketches.len(),
        ];
        require(counts.iter().all(|&count| count == ids.len()), "columns differ in length")?;
        let mut rest = payloads.bytes();
        let mut pieces = Vec::with_capacity(ids.len());
        for at in 0..ids.len() {
            let Some((payload, after)) = rest.split_at_checked(lengths[at] as usize) else {
                return Err(PyValueError::new_err("lengths go beyond the payloads"));
            };
            rest = after;
            let payload = Payload {
                codec: Codec::from(codecs[at]),
                leans_on: targets[at],
                raw_length: raw_lengths[at] as usize,
                checksum: Checksum(checksums[at]),
                stored: payload,
            };
            let (fingerprint, sketch) = (fingerprints[at], sketches[at]);
            let is_settled = settled[at] != 0;
            pieces.push(Piece { id: ids[at], payload, fingerprint, sketch, is_settled });
        }
        let given = py.detach(|| {
            let (mut similar, mut leaned) = (locked(&self.similar), self.leaned.get().write());
            let mut groups = locked(&self.groups);
            let (dictionaries, kept) = (locked(&self.dictionaries), locked(&self.kept));
            let (bases, options) = (&*self.bases, self.options);
            // A dictionary may be trained with files of any domain.
            let dictionaries = if domain == 0 { &dictionaries[..] } else { &[] };
            let tools = RefineInputs { bases, dictionaries, kept: &kept, domain, options };
            let mut join = Join { similar: &mut similar, leaned: &mut leaned, groups: &mut groups };
            refining::refine(&pieces, &mut join, &tools)
        });
        let payloads: Vec<&[u8]> = given.iter().map(|one| &one.payload[..]).collect();
        let codecs: Vec<u8> = given.iter().map(|one| one.codec.number()).collect();
        Ok(Refined {
            places: column(py, pack_u32(given.iter().map(|one| one.at as u32))),
            codecs: column(py, codecs),
            leans_on: column(py, pack_ids(given.iter().map(|one| one.leans_on))),
            lengths: column(py, pack_u32(given.iter().map(|one| one.payload.len() as u32))),
            checksums: column(py, pack_u64(given.iter().map(|one| one.checksum.0))),
            payloads: column(py, payloads.concat()),
        })
    }
}
