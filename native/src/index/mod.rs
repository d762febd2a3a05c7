//! The index in little RAM (seed 003, 4.4): a table of signatures over the redirection tables.
//!
//! Whatever the table says is only a suggestion: a chunk is known when its entry in a redirection
//! table has its whole fingerprint, and a state that lets more files name it.

pub mod chunks;
pub mod log;
pub mod numbers;
pub mod plane;
pub mod snapshot;
pub mod suggest;
pub mod table;
