//! Ceph's library, found where a volume uses it, and trains of reads by it.
//!
//! Only reads: each change is made by Python, which passes a fail point after it.

pub mod chunk_reads;
pub mod connection;
mod library;
pub mod memory;
