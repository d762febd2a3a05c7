//! Ingest: read files, split them into chunks, and find the new chunks.

pub mod chunks;
pub mod examination;
pub mod file_reader;
pub mod judgement;
pub mod new_chunks;
pub mod small_files;
