//! The module `dedupd_core.native.upkeep`, part by part.

pub mod marks;
pub mod needs;
pub mod refine;
pub mod usage;
