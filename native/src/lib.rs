//! Native kernel of dedupd: chunking, fingerprints, payload encoding, the index, and system calls.
//! All code except `python` is plain Rust.
//!
//! A folder may use only the folders above it in this list.

#![deny(clippy::undocumented_unsafe_blocks)]

#[cfg(test)]
extern crate self as native;

pub mod format;

pub mod system;

pub mod threads;

pub mod chunker;
pub mod codec;
pub mod fingerprint;

pub mod admission;

pub mod index;
pub mod ingest;
pub mod store;

pub mod rados;

pub mod stub;

pub mod upkeep;

pub mod commit;
pub mod mount;
pub mod study;
pub mod tree;

#[cfg(feature = "python")]
mod python;

/// Replays what fuzzing has found, with the targets of `native/fuzz`.
#[cfg(test)]
mod fuzzing;
