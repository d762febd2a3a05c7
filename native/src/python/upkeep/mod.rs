//! The parts of the module `dedupd_core.native.upkeep`.

pub mod marks;
pub mod needs;
pub mod refine;
pub mod usage;
