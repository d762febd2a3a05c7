//! The module `dedupd_core.native.store`, part by part.

pub mod chunk_cache;
pub mod records;
pub mod stub_bytes;
pub mod table_map;
