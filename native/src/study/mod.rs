//! The work of a study on the files of a tree.

pub mod reads;
pub mod walk;
