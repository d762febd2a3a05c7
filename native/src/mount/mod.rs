//! The mount: the kernel's requests, answered below the interpreter.
//!
//! `protocol` has the messages, `inodes` the inodes that the kernel knows, `requests` an answer for
//! each kind of request, and `session` the ways on which requests come and answers go.

pub mod inodes;
pub mod protocol;
pub mod requests;
pub mod session;
