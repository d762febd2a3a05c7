//! Directories of a volume, many at once.

pub mod candidates;
pub mod stub_references;
pub mod stub_sizes;
pub mod walk;
