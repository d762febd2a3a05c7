//! Directories of a volume, many at once.

pub mod candidates;
pub mod deleted;
pub mod listing;
pub mod stub_references;
pub mod stub_usage;
pub mod walk;
