//! Stage 2: selects the cuts among the candidates.

use super::gf2::{Field, WINDOW};
use super::path::{Path, available_paths};
use super::stage1::{CutCandidate, Filter, Scan, Tables};
use super::{scalar, simd};

/// Limit for the largest chunk of any volume, because a complete chunk is held in memory.
const MAX_BYTES_LIMIT: usize = 16 << 20;

#[derive(Clone, Copy, Debug)]
pub struct Parameters {
    pub polynomial: u32,
    pub bits: u32,
    pub pattern: u32,
    pub regression: u32,
    pub min_bytes: usize,
    pub max_bytes: usize,
}

impl Parameters {
    fn validate(&self) -> Result<Field, String> {
        let field = Field::new(self.polynomial).ok_or_else(|| {
            format!("polynomial {:#x} is not irreducible of degree 16", self.polynomial)
        })?;
        let check = |good: bool, message: String| if good { Ok(()) } else { Err(message) };
        check((1..=16).contains(&self.bits), format!("bits must be 1 to 16, not {}", self.bits))?;
        check(
            self.pattern <= 0xffff,
            format!("pattern must fit 16 bits, not {:#x}", self.pattern),
        )?;
        check(
            self.regression < self.bits,
            format!("regression must be less than bits ({}), not {}", self.bits, self.regression),
        )?;
        check(
            self.min_bytes >= WINDOW,
            format!("min_bytes must be at least the window of 64, not {}", self.min_bytes),
        )?;
        check(
            (self.min_bytes..=MAX_BYTES_LIMIT).contains(&self.max_bytes),
            format!(
                "max_bytes must be from min_bytes ({}) to {MAX_BYTES_LIMIT}, not {}",
                self.min_bytes, self.max_bytes
            ),
        )?;
        Ok(field)
    }
}

pub struct Chunker {
    parameters: Parameters,
    tables: Tables,
    filter: Filter,
    path: Path,
    scan: Scan,
    /// Number of positions that stage 1 scans at once.
    block: usize,
}

/// Scanning positions after a cut is wasted work, so short chunks use short blocks.
fn block_positions(bits: u32) -> usize {
    // Measured: 15 bits and more gain from the large block, 14 and fewer from the medium one.
    if bits > 14 { simd::BLOCK } else { simd::MEDIUM }
}

impl Chunker {
    /// Uses the fastest path if `path` is None. The error names the wrong parameter.
    pub fn new(parameters: Parameters, path: Option<&str>) -> Result<Chunker, String> {
        let field = parameters.validate()?;
        let paths = available_paths();
        let chosen = match path {
            None => paths.last(),
            Some(name) => paths.iter().find(|path| path.name() == name),
        };
        let (path, scan) =
            chosen.and_then(|&path| Some((path, path.scan()?))).ok_or_else(|| {
                let names: Vec<_> = paths.iter().map(|path| path.name()).collect();
                format!("path {path:?} is not one of those available here: {}", names.join(", "))
            })?;
        let bits = parameters.bits - parameters.regression;
        Ok(Chunker {
            parameters,
            tables: Tables::new(field),
            filter: Filter::new(bits, parameters.pattern as u16),
            path,
            scan,
            block: block_positions(parameters.bits),
        })
    }

    pub fn path(&self) -> Path {
        self.path
    }

    pub fn max_bytes(&self) -> usize {
        self.parameters.max_bytes
    }

    /// Number of low bits of the pattern that a fingerprint matches, at most `bits`.
    fn matched_bits(&self, value: u16) -> u32 {
        let difference = u32::from(value) ^ self.parameters.pattern;
        difference.trailing_zeros().min(self.parameters.bits)
    }

    /// End of the chunk that begins at `start`. None if it depends on bytes after `data`, or if
    /// nothing is left.
    pub fn next_cut(
        &self,
        data: &[u8],
        start: usize,
        last: bool,
        scratch: &mut Scratch,
    ) -> Option<usize> {
        let Parameters { bits, min_bytes, max_bytes, .. } = self.parameters;
        let limit = data.len().min(start + max_bytes);
        let mut relaxed: Option<(u32, usize)> = None;
        // A cut at the end e is a match at position e - 1.
        let mut position = start + min_bytes - 1;
        while position < limit {
            let block_end = limit.min(position + self.block);
            scratch.0.clear();
            (self.scan)(&self.tables, self.filter, data, position, block_end, &mut scratch.0);
            for candidate in &scratch.0 {
                let matched = self.matched_bits(candidate.value);
                if matched == bits {
                    return Some(candidate.position + 1);
                }
                if relaxed.is_none_or(|(best, _)| matched >= best) {
                    relaxed = Some((matched, candidate.position + 1));
                }
            }
            position = block_end;
        }
        if limit == start + max_bytes {
            Some(relaxed.map_or(limit, |(_, end)| end))
        } else {
            (last && start < data.len()).then_some(data.len())
        }
    }

    /// Returns whether a chunk from `start` may end at `end`, and does unless a full match
    /// precedes.
    pub fn ends_at_full_match(&self, data: &[u8], start: usize, end: usize) -> bool {
        let Parameters { bits, min_bytes, max_bytes, .. } = self.parameters;
        let is_possible = (min_bytes..=max_bytes).contains(&(end - start)) && end <= data.len();
        is_possible && {
            let window = &data[end - WINDOW..end];
            self.matched_bits(scalar::fingerprint(&self.tables, window)) == bits
        }
    }

    /// Every candidate of `data` as (end, matched low bits), independent of the sizes.
    pub fn candidates(&self, data: &[u8]) -> Vec<(usize, u32)> {
        let mut found = Vec::new();
        if data.len() >= WINDOW {
            (self.scan)(&self.tables, self.filter, data, WINDOW - 1, data.len(), &mut found);
        }
        found.iter().map(|c| (c.position + 1, self.matched_bits(c.value))).collect()
    }
}

/// Memory for the candidates of one block, reused from cut to cut.
#[derive(Default)]
pub struct Scratch(Vec<CutCandidate>);
