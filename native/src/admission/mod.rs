//! What stays plain because it would save too little: which files were judged so, and notes of their
//! chunks (docs/design/format.md, "Saved notes"). All of it is derived: a loss costs one more read.

pub mod join;
pub mod ledger;
pub mod notes;
