//! One machine: system calls, files, directories, leases, rights.

pub mod attributes;
pub mod calls;
pub mod confinement;
pub mod effects;
pub mod extents;
pub mod file_systems;
pub mod file_user;
pub mod files;
pub mod handle_forms;
pub mod leases;
pub mod open_guard;
pub mod reads;
pub mod room;
