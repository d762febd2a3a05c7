//! The ways on which requests come from the kernel, and on which those that are not answered here
//! go to the code that knows all cases.

pub mod device;
pub mod line;
pub mod pace;
pub mod reads;
pub mod returns;
pub mod ring;
pub mod serve;
pub mod service;
pub mod stand_ins;
pub mod syncs;
