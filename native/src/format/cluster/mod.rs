//! Layouts of a store in a cluster (docs/design/format.md, "The store in a cluster").

pub mod chunk_frame;
pub mod file_recipe;
pub mod kept_frame;
