//! The memory of the jobs that look after a store: marks, needs, references.

pub mod file_needs;
pub mod follow_merges;
pub mod groups;
pub mod join;
mod leaving;
pub mod mark_set;
mod new_payloads;
pub mod recipe_nodes;
pub mod record_census;
pub mod refining;
pub mod similar;
pub mod sketch;
pub mod sketching;
pub mod training;
pub mod usage;
