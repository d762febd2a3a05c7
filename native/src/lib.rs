//! Native kernel of dedupd: chunking, fingerprints, payload encoding, the index, and
//! system calls. Everything but `python` is plain Rust.

pub mod ahead;
pub mod candidates;
pub mod check;
pub mod chunker;
pub mod commits;
pub mod crew;
pub mod encode;
pub mod entries;
pub mod extents;
pub mod filelist;
pub mod files;
pub mod fingerprint;
pub mod follow;
pub mod index;
pub mod join;
pub mod known;
pub mod leaf;
pub mod map;
pub mod marks;
pub mod needs;
pub mod parquet;
pub mod pieces;
pub mod place;
pub mod process;
pub mod records;
pub mod seal;
pub mod sizes;
pub mod states;
pub mod stub;
pub mod stubs;
pub mod study;
pub mod sys;
pub mod tree;
pub mod types;
pub mod watchdog;
pub mod window;

mod parallel;
mod probe;

pub use probe::incompressible;

#[cfg(feature = "python")]
mod python;
