//! The inodes that the kernel knows, and their descriptors.

pub mod change_times;
pub mod changes;
pub mod data_file;
pub mod generations;
pub mod given;
pub mod handle;
pub mod lent;
pub mod pins;
pub mod shard;
pub mod table;
pub mod watched;
