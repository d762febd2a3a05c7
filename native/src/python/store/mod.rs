//! The parts of the module `dedupd_core.native.store`.

pub mod bases;
pub mod chunk_cache;
pub mod records;
pub mod stream_frames;
pub mod stub_bytes;
pub mod table_map;
