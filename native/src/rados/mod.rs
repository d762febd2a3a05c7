//! Ceph's library, found where a volume uses it, and trains of reads by it; how stubs are read
//! from a cluster, and from what this host has kept of it.
//!
//! Only reads: each change is made by Python, which passes a fail point after it.

pub mod chunk_numbers;
pub mod chunk_reads;
pub mod cluster_content;
pub mod connection;
pub mod failures;
pub mod file_recipes;
pub mod frame_cache;
mod library;
pub mod memory;
