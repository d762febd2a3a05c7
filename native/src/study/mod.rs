//! What a study does to the files of a tree.

pub mod content_types;
pub mod parquet_writer;
pub mod reads;
pub mod walk;
