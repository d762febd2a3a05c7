//! Commits: plain files become stubs.

pub mod batch;
pub mod requests;
pub mod steps;
