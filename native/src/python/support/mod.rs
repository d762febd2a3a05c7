//! Conversions of arguments, results and errors, for all submodules.

pub mod calls;
pub mod door;
pub mod entries;
pub mod input;
pub mod output;
pub mod threads;
