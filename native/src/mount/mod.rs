//! The mount: native code that answers the kernel's requests.
//!
//! `protocol` has the messages, `inodes` the inodes that the kernel knows, and `requests` an answer
//! for each kind of request. `pages` finds pages with newer bytes in the kernel, `reserved_blocks`
//! manages space that only some users may use, and `session` has the transports. `callers` finds
//! the users of requests, and `write_times` records their recent writes.

pub mod callers;
pub mod counted;
pub mod inodes;
pub mod pages;
pub mod protocol;
pub mod requests;
pub mod reserved_blocks;
pub mod session;
pub mod write_times;
