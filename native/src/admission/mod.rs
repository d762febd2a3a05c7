//! Files that stay plain because they would save too little, and notes of their chunks
//! (docs/design/format.md, "Saved notes"). All of this is derived: a loss costs one more read.

pub mod join;
pub mod ledger;
pub mod notes;
