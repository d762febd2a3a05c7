//! What jobs that look after a store keep of its records in memory.

pub mod file_needs;
pub mod follow_merges;
pub mod join;
pub mod mark_set;
pub mod record_census;
