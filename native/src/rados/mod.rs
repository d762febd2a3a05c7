//! Ceph's library, loaded if a volume uses it, and trains of reads; reads of stubs from a cluster,
//! and from the frames that this host has kept.
//!
//! It only reads. Python makes all changes, each followed by a fail point.

pub mod chunk_numbers;
pub mod chunk_reads;
pub mod cluster_content;
pub mod connection;
pub mod failures;
pub mod file_recipes;
pub mod frame_cache;
mod library;
pub mod memory;
