//! The Python module `dedupd.native`; its contract is `dedupd/native.pyi`.

mod check;
mod chunker;
mod codec;
mod commits;
mod entries;
mod files;
mod index;
mod input;
mod join;
mod known;
mod map;
mod marks;
mod needs;
mod output;
mod parquet;
mod pieces;
mod records;
mod seal;
mod states;
mod stub;
mod stubs;
mod study;
mod sys;
mod tree;

use pyo3::prelude::*;

#[pymodule]
fn native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("HASH_BYTES", crate::fingerprint::HASH_BYTES)?;
    module.add("CorruptPayload", module.py().get_type::<codec::CorruptPayload>())?;
    module.add_class::<check::CheckedRecords>()?;
    module.add_class::<chunker::Chunker>()?;
    module.add_class::<chunker::Chunks>()?;
    module.add_class::<codec::Encoded>()?;
    module.add_class::<commits::Commits>()?;
    module.add_class::<map::FingerprintMap>()?;
    module.add_class::<index::BloomIndex>()?;
    module.add_class::<index::TableIndex>()?;
    module.add_class::<join::Join>()?;
    module.add_class::<known::KnownRecords>()?;
    module.add_class::<stubs::StubCounter>()?;
    module.add_class::<marks::MarkSet>()?;
    module.add_class::<needs::NeedSet>()?;
    module.add_function(wrap_pyfunction!(marks::misfits, module)?)?;
    module.add_function(wrap_pyfunction!(marks::scan_stubs, module)?)?;
    module.add_function(wrap_pyfunction!(needs::more_than, module)?)?;
    module.add_function(wrap_pyfunction!(needs::longest, module)?)?;
    module.add_function(wrap_pyfunction!(needs::digest_needed, module)?)?;
    module.add_function(wrap_pyfunction!(chunker::simd_paths, module)?)?;
    module.add_function(wrap_pyfunction!(chunker::fingerprint, module)?)?;
    module.add_function(wrap_pyfunction!(chunker::fingerprints, module)?)?;
    module.add_function(wrap_pyfunction!(chunker::xxh3_64, module)?)?;
    module.add_function(wrap_pyfunction!(chunker::is_zero, module)?)?;
    module.add_function(wrap_pyfunction!(codec::incompressible, module)?)?;
    module.add_function(wrap_pyfunction!(codec::encode, module)?)?;
    module.add_function(wrap_pyfunction!(codec::decode, module)?)?;
    module.add_function(wrap_pyfunction!(records::read_chunks, module)?)?;
    module.add_function(wrap_pyfunction!(seal::seal, module)?)?;
    module.add_function(wrap_pyfunction!(states::table_states, module)?)?;
    module.add_function(wrap_pyfunction!(states::weigh_table, module)?)?;
    module.add_function(wrap_pyfunction!(check::check_records, module)?)?;
    module.add_function(wrap_pyfunction!(pieces::pass_records, module)?)?;
    module.add_function(wrap_pyfunction!(pieces::headers_agree, module)?)?;
    module.add_function(wrap_pyfunction!(stub::exchange_attribute, module)?)?;
    module.add_function(wrap_pyfunction!(stub::punch_and_settle, module)?)?;
    module.add_function(wrap_pyfunction!(entries::look_up, module)?)?;
    module.add_function(wrap_pyfunction!(files::scan_directory, module)?)?;
    module.add_function(wrap_pyfunction!(tree::find_candidates, module)?)?;
    module.add_function(wrap_pyfunction!(tree::unpack_files, module)?)?;
    module.add_function(wrap_pyfunction!(tree::stub_sizes, module)?)?;
    module.add_function(wrap_pyfunction!(files::read_files, module)?)?;
    module.add_class::<study::TreeWalk>()?;
    module.add_class::<study::FoundFiles>()?;
    module.add_function(wrap_pyfunction!(study::read_packed, module)?)?;
    module.add_function(wrap_pyfunction!(study::file_type, module)?)?;
    module.add_function(wrap_pyfunction!(parquet::write_parquet, module)?)?;
    module.add_function(wrap_pyfunction!(sys::punch_hole, module)?)?;
    module.add_function(wrap_pyfunction!(sys::fallocate_keep_size, module)?)?;
    module.add_function(wrap_pyfunction!(sys::syncfs, module)?)?;
    module.add_function(wrap_pyfunction!(sys::renameat2, module)?)?;
    module.add_function(wrap_pyfunction!(sys::name_to_handle, module)?)?;
    module.add_function(wrap_pyfunction!(sys::open_by_handle, module)?)?;
    module.add_function(wrap_pyfunction!(sys::fgetxattr, module)?)?;
    module.add_function(wrap_pyfunction!(sys::interrupt_reads, module)?)?;
    Ok(())
}
