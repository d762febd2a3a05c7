//! Plain files made stubs.

pub mod batch;
pub mod requests;
pub mod steps;
