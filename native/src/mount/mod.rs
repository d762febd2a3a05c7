//! The mount: the kernel's requests, answered below the interpreter.
//!
//! `protocol` has the messages, `inodes` the inodes that the kernel knows, `pages` pages in
//! which the kernel has newer bytes, `requests` an answer for each kind of request,
//! `reserved_blocks` the space that is not every user's, `session` the ways on which requests come
//! and answers go, `callers` the
//! users who make them, and `write_times` what users have written to of late.

pub mod callers;
pub mod counted;
pub mod inodes;
pub mod pages;
pub mod protocol;
pub mod requests;
pub mod reserved_blocks;
pub mod session;
pub mod write_times;
