//! Content-defined chunking: regression chunking (seed 003, 4.3) in two stages (SS-CDC, seed 000).
//!
//! Stage 1 finds the candidate positions, stage 2 selects the cuts. `docs/design/chunking.md` has
//! the definition that both implement.

mod followers;
mod gf2;
mod noise;
mod path;
mod scalar;
mod select;
mod simd;
mod stage1;

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(avx512)]
mod avx512;

pub use followers::{Followers, KnownChunk, KnownChunks};
pub use path::{Path, available_paths};
pub use select::{Chunker, Parameters, Scratch};
