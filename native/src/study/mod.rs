//! What a study does to the files of a tree.

pub mod reads;
pub mod walk;
