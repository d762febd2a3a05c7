//! Which files pay: what each would add to the store, beside the blocks that it would give up.

use std::collections::HashSet;

use super::new_chunks::{Place, Placed};
use crate::format::ids::hash_of;
use crate::format::recipe;
use crate::format::record_header::{RECORD_HEADER_BYTES, record_bytes};
use crate::format::table_entry::ENTRY_BYTES;

/// In place of the id of a chunk that is not stored: no recipe may name it.
pub const NOT_STORED: u64 = u64::MAX;

/// A recipe, and its second copy.
const RECIPE_COPIES: usize = 2;

/// How a part of a file is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Its chunks are stored if that pays.
    Judge,
    Store,
    Leave,
    /// The first part of a file that goes on: as `Judge`, and it would give up as many bytes as its
    /// chunks have that are not zeros.
    Begin,
}

impl Mode {
    pub fn of(number: u8) -> Option<Mode> {
        [Mode::Judge, Mode::Store, Mode::Leave, Mode::Begin].get(usize::from(number)).copied()
    }
}

/// A part of a file that is in a buffer as a segment: how it is taken, and the bytes of the blocks
/// that it would give up.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    pub mode: Mode,
    pub freed: u64,
}

/// What has become known of the new chunks, of those to be compressed and those as they are.
pub struct Encoded<'a> {
    /// The ids of those that the store has got meanwhile, else 0.
    pub later: [&'a [u64]; 2],
    /// Bytes of their payloads.
    pub stored: [&'a [u32]; 2],
}

/// What to do with the new chunks of a buffer.
pub struct Judgement {
    /// Whether each part is taken.
    pub taken: Vec<bool>,
    /// What each would add to the store, in bytes.
    pub costs: Vec<u64>,
    /// How many chunks of each nobody else has.
    pub unique: Vec<u32>,
    /// The bytes of these.
    pub fresh: Vec<u64>,
    /// The bytes of chunks of each that are not zeros.
    pub solid: Vec<u64>,
    /// The bytes of new chunks that the store has got meanwhile.
    pub later_bytes: u64,
    /// Which of the new chunks are to be stored.
    pub kept: [Vec<bool>; 2],
    later: [Vec<u64>; 2],
}

/// Whether giving up `freed` bytes of blocks for `cost` bytes in the store saves the fraction `min` of
/// them.
pub fn pays(freed: u64, cost: u64, min: f64) -> bool {
    min <= 0.0 || (freed > cost && (freed - cost) as f64 >= freed as f64 * min)
}

/// The fraction of `freed` that a file saves, and about how many of its `unique` chunks would have to
/// be in the store already for it to save the fraction `min`.
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

/// A recipe of so many rows, with its copy.
fn recipe_bytes(rows: usize) -> u64 {
    let one =
        RECORD_HEADER_BYTES + ENTRY_BYTES + recipe::header::BYTES + rows * recipe::fields::BYTES;
    (RECIPE_COPIES * one) as u64
}

/// Decides, part by part, in their order. The cost of a chunk that several parts have is divided among
/// them; one of `wanted` has other owners, and costs nothing. `salt` is that of the domain in which
/// the chunks were noted. None where the columns do not fit.
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

/// How many parts have each new chunk.
fn owners(placed: &Placed) -> [Vec<u32>; 2] {
    let mut owners = [0, 1].map(|group: usize| vec![0; placed.new[group].chunks.len()]);
    each_part(placed, |_, new, _| {
        for &(group, at) in new {
            owners[group][at] += 1;
        }
    });
    owners
}

/// Calls `visit` with the number of each part, its new chunks, each once, and how many rows its recipe
/// has at most.
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
    /// The id of each chunk, where those that are stored begin with one of `firsts`.
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

    /// The first bytes of the fingerprints of the new chunks of a part, each once.
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

    /// The first bytes of the fingerprints of the chunks that are stored.
    pub fn stored<'a>(&'a self, placed: &'a Placed) -> impl Iterator<Item = u64> + 'a {
        (0..2).flat_map(move |group| {
            let chunks = placed.new[group].chunks.iter().zip(&self.kept[group]);
            chunks.filter(|(_, kept)| **kept).map(|(chunk, _)| hash_of(&chunk.fingerprint))
        })
    }
}
