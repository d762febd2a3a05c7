//! Plain files made stubs.

pub mod batch;
pub mod steps;
