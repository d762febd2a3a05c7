//! The ways on which requests come from the kernel, and on which those that are not answered here
//! go to the code that knows all cases.

pub mod answers;
pub mod crew;
pub mod device;
pub mod entry;
pub mod line;
pub mod pace;
pub mod reads;
pub mod returns;
pub mod ring;
pub mod seat;
pub mod serve;
pub mod service;
pub mod shared;
pub mod stand_ins;
pub mod syncs;
pub mod turn;
