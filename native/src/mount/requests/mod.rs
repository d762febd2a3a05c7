//! An answer for each kind of request: one system call below, mostly, and its result.

pub mod attributes;
pub mod data;
pub mod directories;
pub mod dispatch;
pub mod effects;
pub mod entries;
pub mod extended;
pub mod names;
pub mod readers;
pub mod reading;
pub mod stubs;
pub mod touched;
pub mod tree;
pub mod volume;
