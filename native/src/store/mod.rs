//! Containers and their tables: records written, read and checked.

pub mod bases;
pub mod blocks_ahead;
pub mod bounded;
pub mod chunk_cache;
pub mod container_check;
pub mod content;
pub mod dead_payloads;
pub mod header_check;
pub mod header_scan;
pub mod recipes;
pub mod record_check;
pub mod record_reader;
pub mod record_writer;
pub mod stream_frames;
pub mod stub_bytes;
pub mod table_states;
pub mod why;
