//! The messages of FUSE, as `linux/fuse.h` has them.

pub mod abi;
pub mod handshake;
pub mod message;
pub mod opcode;
