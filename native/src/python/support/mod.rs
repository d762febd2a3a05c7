//! What the functions and classes of all submodules have in common.

pub mod calls;
pub mod door;
pub mod entries;
pub mod input;
pub mod output;
pub mod threads;
