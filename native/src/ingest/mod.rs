//! Files on their way into the store: read, cut, told apart from what the store has.

pub mod chunks;
pub mod examination;
pub mod file_reader;
pub mod judgement;
pub mod new_chunks;
pub mod small_files;
