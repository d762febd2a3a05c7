//! The index in little RAM, over the redirection tables: a table of signatures (seed 003, 4.4), or
//! chains of Bloom filters (seed 002, chapter 4).
//!
//! Their answers are only suggestions. A chunk is known if its entry in a redirection table has the
//! same fingerprint, and a state that allows more references.

pub mod bloom;
pub mod chunks;
pub mod fingerprint_map;
pub mod group;
pub mod hooks;
mod in_hand;
mod intake;
pub mod lists;
pub mod log;
mod memory;
mod moves;
pub mod numbers;
pub mod snapshot;
pub mod suggest;
pub mod table;
