//! Replaces `crate::mount` of the native crate.

#[path = "../../src/mount/counted.rs"]
pub mod counted;
