//! Decides which files save space: the bytes added to the store against the freed blocks.

use std::collections::HashSet;

use super::new_chunks::{Place, Placed};
use crate::format::ids::hash_of;
use crate::format::recipe;
use crate::format::record_header::{RECORD_HEADER_BYTES, record_bytes};
use crate::format::table_entry::ENTRY_BYTES;

/// Replaces the id of a chunk that is not stored: no recipe may name it.
pub const NOT_STORED: u64 = u64::MAX;

/// A recipe, and its second copy.
const RECIPE_COPIES: usize = 2;

/// How a part of a file is judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Its chunks are stored if this saves space.
    Judge,
    Store,
    Leave,
    /// The first part of a file that continues: as `Judge`, with as many freed bytes as its chunks
    /// have that are not zeros.
    Begin,
}

impl Mode {
    pub fn of(number: u8) -> Option<Mode> {
        [Mode::Judge, Mode::Store, Mode::Leave, Mode::Begin].get(usize::from(number)).copied()
    }
}

/// A part of a file, which is a segment of a buffer: how it is judged, and the bytes of blocks that
/// it would free.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    pub mode: Mode,
    pub freed: u64,
}

/// Results for one kind of new chunks: for those to be compressed, or for those stored as they are.
pub struct Encoded<'a> {
    /// The id of each chunk that the store has received since, else 0.
    pub later: [&'a [u64]; 2],
    /// Bytes of their payloads.
    pub stored: [&'a [u32]; 2],
}

/// The decisions for the new chunks of a buffer.
pub struct Judgement {
    /// Whether each part is selected.
    pub taken: Vec<bool>,
    /// The bytes that each part would add to the store.
    pub costs: Vec<u64>,
    /// The number of chunks that only this part has.
    pub unique: Vec<u32>,
    /// The bytes of these chunks.
    pub fresh: Vec<u64>,
    /// The bytes of the chunks of each part, without zeros.
    pub solid: Vec<u64>,
    /// The bytes of new chunks that the store has received since.
    pub later_bytes: u64,
    /// Which of the new chunks are to be stored.
    pub kept: [Vec<bool>; 2],
    later: [Vec<u64>; 2],
}

/// Returns whether freeing `freed` bytes of blocks for `cost` bytes in the store saves at least the
/// fraction `min` of them.
pub fn pays(freed: u64, cost: u64, min: f64) -> bool {
    min <= 0.0 || (freed > cost && (freed - cost) as f64 >= freed as f64 * min)
}

/// Returns the fraction of `freed` that a file saves. Also estimates how many of its `unique`
/// chunks the store would need to have already for a saving of `min`.
pub fn verdict(freed: u64, cost: u64, unique: u32, min: f64) -> (f64, u16) {
    let saving = 1.0 - cost as f64 / freed.max(1) as f64;
    let each = (cost as f64 / f64::from(unique.max(1))).max(1.0);
    let missing = (freed as f64 * (min - saving) / each).ceil();
    (saving, missing.clamp(1.0, f64::from(u16::MAX)) as u16)
}

fn later_bytes(placed: &Placed, later: &[&[u64]; 2]) -> u64 {
    let groups = placed.new.iter().zip(later);
    let found = groups.flat_map(|(new, ids)| new.chunks.iter().zip(*ids));
    found.filter(|(_, id)| **id != 0).map(|(chunk, _)| (chunk.end - chunk.start) as u64).sum()
}

/// The size of a recipe of `rows` rows, with its copy.
fn recipe_bytes(rows: usize) -> u64 {
    let one =
        RECORD_HEADER_BYTES + ENTRY_BYTES + recipe::header::BYTES + rows * recipe::fields::BYTES;
    (RECIPE_COPIES * one) as u64
}

/// Decides for each part in order. Parts that share a chunk divide its cost; a chunk of `wanted`
/// has other owners, and costs nothing. `salt` is that of the domain in which the chunks were
/// noted. Returns None if the columns do not fit.
pub fn judge(
    placed: &Placed,
    parts: &[Part],
    encoded: &Encoded<'_>,
    wanted: &HashSet<u64>,
    salt: u64,
    min: f64,
) -> Option<Judgement> {
    let lengths = [0, 1].map(|group: usize| placed.new[group].chunks.len());
    let fits = (0..2).all(|group| {
        encoded.later[group].len() == lengths[group]
            && encoded.stored[group].len() == lengths[group]
    });
    if !fits || parts.len() != placed.counts.len() {
        return None;
    }
    let owners = owners(placed);
    let mut kept = lengths.map(|length| vec![false; length]);
    let mut judgement = Judgement {
        taken: Vec::with_capacity(parts.len()),
        costs: Vec::with_capacity(parts.len()),
        unique: Vec::with_capacity(parts.len()),
        fresh: Vec::with_capacity(parts.len()),
        solid: Vec::with_capacity(parts.len()),
        later_bytes: later_bytes(placed, &encoded.later),
        kept: Default::default(),
        later: encoded.later.map(<[u64]>::to_vec),
    };
    let mut first = 0;
    each_part(placed, |number, new, rows| {
        let part = parts[number];
        let solid = placed.solid[first..first + rows].iter().map(|&length| u64::from(length)).sum();
        first += rows;
        let mut cost = if rows > 1 || solid == 0 { recipe_bytes(rows) } else { 0 };
        let (mut unique, mut fresh) = (0, 0);
        for &(group, at) in new {
            if encoded.later[group][at] != 0 || kept[group][at] {
                continue;
            }
            unique += 1;
            let chunk = &placed.new[group].chunks[at];
            fresh += (chunk.end - chunk.start) as u64;
            let fingerprint = &chunk.fingerprint;
            if wanted.is_empty() || !wanted.contains(&(hash_of(fingerprint) ^ salt)) {
                let stored = record_bytes(encoded.stored[group][at].into()) + ENTRY_BYTES as u64;
                cost += stored / u64::from(owners[group][at]);
            }
        }
        let is_taken = match part.mode {
            Mode::Judge => pays(part.freed, cost, min),
            Mode::Store => true,
            Mode::Leave => false,
            Mode::Begin => pays(solid, cost, min),
        };
        if is_taken {
            for &(group, at) in new {
                kept[group][at] = encoded.later[group][at] == 0;
            }
        }
        judgement.taken.push(is_taken);
        judgement.costs.push(cost);
        judgement.unique.push(unique);
        judgement.fresh.push(fresh);
        judgement.solid.push(solid);
    });
    judgement.kept = kept;
    Some(judgement)
}

/// Returns the number of parts that have each new chunk.
fn owners(placed: &Placed) -> [Vec<u32>; 2] {
    let mut owners = [0, 1].map(|group: usize| vec![0; placed.new[group].chunks.len()]);
    each_part(placed, |_, new, _| {
        for &(group, at) in new {
            owners[group][at] += 1;
        }
    });
    owners
}

/// Calls `visit` with the number of each part, its distinct new chunks, and the largest number of
/// rows that its recipe can have.
fn each_part(placed: &Placed, mut visit: impl FnMut(usize, &[(usize, usize)], usize)) {
    let mut first = 0;
    let mut new = Vec::new();
    for (number, &count) in placed.counts.iter().enumerate() {
        let places = &placed.places[first..first + count];
        first += count;
        new.clear();
        new.extend(places.iter().filter_map(|place| match *place {
            Place::New { group, at } => Some((group, at as usize)),
            Place::Known(_) => None,
        }));
        if new.len() > 1 {
            new.sort_unstable();
            new.dedup();
        }
        visit(number, &new, count);
    }
}

impl Judgement {
    /// Returns the id of each chunk; the ids of stored chunks start with one of `firsts`.
    pub fn ids(&self, placed: &Placed, firsts: [u64; 2]) -> Vec<u64> {
        let of_new = [0, 1].map(|group: usize| {
            let mut next = firsts[group];
            let each = self.kept[group].iter().zip(&self.later[group]).map(|(&kept, &later)| {
                if kept {
                    next += 1;
                    next - 1
                } else if later != 0 {
                    later
                } else {
                    NOT_STORED
                }
            });
            each.collect::<Vec<u64>>()
        });
        let id = |place: &Place| match *place {
            Place::Known(id) => id,
            Place::New { group, at } => of_new[group][at as usize],
        };
        placed.places.iter().map(id).collect()
    }

    /// Returns the first bytes of the fingerprints of the distinct new chunks of a part.
    pub fn prefixes<'a>(
        &'a self,
        placed: &'a Placed,
        chunks: std::ops::Range<usize>,
    ) -> impl Iterator<Item = u64> + 'a {
        placed.places[chunks].iter().filter_map(|place| match *place {
            Place::New { group, at } if self.later[group][at as usize] == 0 => {
                Some(hash_of(&placed.new[group].chunks[at as usize].fingerprint))
            }
            _ => None,
        })
    }

    /// Returns the first bytes of the fingerprints of the stored chunks.
    pub fn stored<'a>(&'a self, placed: &'a Placed) -> impl Iterator<Item = u64> + 'a {
        (0..2).flat_map(move |group| {
            let chunks = placed.new[group].chunks.iter().zip(&self.kept[group]);
            chunks.filter(|(_, kept)| **kept).map(|(chunk, _)| hash_of(&chunk.fingerprint))
        })
    }
}
