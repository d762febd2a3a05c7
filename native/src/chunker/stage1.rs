//! The interface of all implementations of stage 1: from tables to candidates.

use super::gf2::{Field, Rolling, Step};

/// A position whose fingerprint matches the shortest suffix of the pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CutCandidate {
    /// Index of the last byte of the window; the cut is after it.
    pub position: usize,
    /// The fingerprint.
    pub value: u16,
}

/// Matches the low bits of a fingerprint with a pattern.
#[derive(Clone, Copy, Debug)]
pub struct Filter {
    pub mask: u16,
    pub pattern: u16,
}

impl Filter {
    pub fn new(bits: u32, pattern: u16) -> Filter {
        let mask = ((1u32 << bits) - 1) as u16;
        Filter { mask, pattern: pattern & mask }
    }

    #[inline(always)]
    pub fn matches(self, value: u16) -> bool {
        value & self.mask == self.pattern
    }
}

pub struct Tables {
    pub rolling: Rolling,
    pub step: Step,
}

impl Tables {
    pub fn new(field: Field) -> Tables {
        Tables { rolling: Rolling::new(field), step: Step::new(field) }
    }
}

/// Appends the candidates at positions `from..to` of `data` in order.
///
/// Needs `63 <= from <= to <= data.len()`.
pub type Scan = fn(&Tables, Filter, &[u8], usize, usize, &mut Vec<CutCandidate>);
