//! Records that are given other payloads: each is tried as the difference to one that is alike, and
//! with a dictionary, and at a higher level; the smallest wins.

use std::collections::HashSet;
use std::sync::Arc;

use super::groups::Groups;
use super::mark_set::Marks;
use super::similar::Similar;
use super::sketch::Sketch;
use super::sketching::Payload;
use crate::codec::compressibility::incompressible;
use crate::codec::delta::{self, RAW_BYTES_MAX};
use crate::codec::dictionary::{self, Compressing, Dictionary};
use crate::fingerprint::Algorithm;
use crate::format::codec::Codec;
use crate::format::ids::{Checksum, Fingerprint, RecordId};
use crate::store::bases::Bases;
use crate::store::record_reader::CacheUse;
use crate::threads::pool;

/// Of zstd: what is worth it is decided at this level, which costs a tenth of the last one.
pub const TRIAL_LEVEL: i32 = 3;

/// Raw bytes of the chunks that are in memory at once.
const RAW_BYTES_AT_ONCE: usize = 16 << 20;

/// Of a chunk, by which one of several dictionaries is chosen.
const CHOICE_BYTES: usize = 8 << 10;

/// A difference that is smaller than so much of what the piece takes now is taken without a dictionary
/// being tried: one makes a quarter less of it.
const CLEAR_OF_PLAIN: f64 = 0.45;

/// A difference that is smaller than so much of a payload is taken before another is tried.
const GOOD: f64 = 0.5;

/// A record as it is stored.
#[derive(Clone, Copy)]
pub struct Piece<'a> {
    pub id: RecordId,
    pub payload: Payload<'a>,
    pub fingerprint: &'a Fingerprint,
    pub sketch: Sketch,
    /// A run of the same mode has looked at it: it stays as it is, and may be leaned on.
    pub is_settled: bool,
}

/// A new payload for one of the pieces.
#[derive(Clone)]
pub struct RefinedPayload {
    pub at: usize,
    pub codec: Codec,
    /// A hole where it leans on none.
    pub leans_on: RecordId,
    pub payload: Vec<u8>,
    pub checksum: Checksum,
}

/// How records are refined.
#[derive(Clone, Copy)]
pub struct Options {
    /// Of zstd, for whatever gets a new payload; None for differences alone, at the trial's level.
    pub level: Option<i32>,
    /// The part of the payload that a difference has to save of what else there is.
    pub saving_min: f64,
    pub algorithm: Algorithm,
    pub threads: usize,
}

impl Options {
    /// The most bytes of a difference in the place of a payload of so many.
    pub(super) fn delta_max(&self, stored: usize) -> usize {
        (stored as f64 * (1.0 - self.saving_min)).floor() as usize
    }
}

/// A dictionary that may be used.
pub struct PreparedDictionary {
    pub id: RecordId,
    trial: Compressing,
    pub(super) last: Compressing,
    pub(super) decoding: Dictionary,
}

impl PreparedDictionary {
    /// None where the raw bytes of the record are no dictionary.
    pub fn of(id: RecordId, raw: &[u8], level: i32) -> Option<PreparedDictionary> {
        let decoding = Dictionary::of(raw)?;
        let (trial, last) = (Compressing::of(raw, TRIAL_LEVEL)?, Compressing::of(raw, level)?);
        Some(PreparedDictionary { id, trial, last, decoding })
    }
}

/// What records are refined with.
pub struct RefineInputs<'a> {
    pub bases: &'a Bases,
    pub dictionaries: &'a [PreparedDictionary],
    /// Records that hold dictionaries: these stay as they are.
    pub kept: &'a HashSet<RecordId>,
    /// Of the pieces, and of all that they may lean on.
    pub domain: u64,
    pub options: Options,
}

/// What is known of a piece before anything is decided.
#[derive(Default)]
pub(super) struct Trial {
    /// None where it was not needed, or is not what the fingerprint says.
    pub(super) raw: Option<Vec<u8>>,
    /// Where it is known: the place of the best dictionary, and the bytes that it makes of the piece.
    pub(super) dictionary: Option<Option<(usize, usize)>>,
    /// What the piece is to lean on, and the bytes of the difference.
    pub(super) delta: Option<(RecordId, usize)>,
    /// The difference, where no other level is to come.
    pub(super) made: Vec<u8>,
    /// The bytes of that one.
    pub(super) base: Option<Arc<Vec<u8>>>,
    /// Whether it leaves its base for the one in `delta`.
    pub(super) leaves: bool,
    /// Its new payload, where that had to be known before others were looked at.
    pub(super) given: Option<RefinedPayload>,
}

/// What is known of all pieces, and of those before.
pub struct Join<'a> {
    pub similar: &'a mut Similar,
    /// The records that others lean on.
    pub leaned: &'a mut Marks,
    pub groups: &'a mut Groups,
}

/// The pieces that get other payloads. Those that are no difference to another stand for what is
/// like them.
pub fn refine(
    pieces: &[Piece<'_>],
    join: &mut Join<'_>,
    tools: &RefineInputs<'_>,
) -> Vec<RefinedPayload> {
    let mut given = Vec::new();
    let mut first = 0;
    while first < pieces.len() {
        let mut raw_bytes = 0;
        let count = pieces[first..].iter().take_while(|piece| {
            raw_bytes += piece.payload.raw_length;
            raw_bytes <= RAW_BYTES_AT_ONCE
        });
        let end = first + count.count().max(1);
        let mut made = tools.refine(&pieces[first..end], join);
        made.iter_mut().for_each(|one| one.at += first);
        given.extend(made);
        first = end;
    }
    given
}

impl RefineInputs<'_> {
    fn refine(&self, pieces: &[Piece<'_>], join: &mut Join<'_>) -> Vec<RefinedPayload> {
        let helpers = self.options.threads.saturating_sub(1);
        let mut trials = pool::map(pieces.len(), helpers, |at| {
            let is_wanted = self.options.level.is_some() && self.may_change(&pieces[at]);
            let raw = is_wanted.then(|| self.raw(&pieces[at])).flatten();
            Trial { raw, ..Trial::default() }
        });
        let mut out = Vec::new();
        for (piece, trial) in pieces.iter().zip(&mut trials) {
            if self.may_change(piece) {
                self.lean(piece, trial, join, &mut out);
            } else if piece.is_settled && piece.payload.codec != Codec::Delta {
                self.stand(piece, join);
            }
        }
        let made = pool::map(pieces.len(), helpers, |at| {
            let new = trials[at].given.clone();
            new.or_else(|| self.payload(&pieces[at], &trials[at]))
        });
        let made = made.into_iter().enumerate();
        made.filter_map(|(at, one)| one.map(|one| RefinedPayload { at, ..one })).collect()
    }

    fn may_change(&self, piece: &Piece<'_>) -> bool {
        !piece.is_settled && self.is_chunk(piece)
    }

    fn is_chunk(&self, piece: &Piece<'_>) -> bool {
        piece.payload.codec.is_known()
            && piece.payload.raw_length <= RAW_BYTES_MAX
            && !self.kept.contains(&piece.id)
    }

    fn stand(&self, piece: &Piece<'_>, join: &mut Join<'_>) {
        if self.is_chunk(piece) {
            join.similar.stand(piece.id, &piece.sketch);
        }
    }

    /// Which dictionary fits best, and what it makes of the piece. That takes as long as compressing
    /// it twice, so it is asked only where it matters.
    pub(super) fn dictionary(&self, piece: &Piece<'_>, trial: &Trial) -> Option<(usize, usize)> {
        if let Some(known) = trial.dictionary {
            return known;
        }
        let raw = trial.raw.as_deref().filter(|_| !self.dictionaries.is_empty())?;
        // What is packed already has no use of one.
        let is_packed = piece.payload.codec == Codec::Raw && incompressible(raw);
        if is_packed { None } else { self.choose(raw) }
    }

    pub(super) fn raw(&self, piece: &Piece<'_>) -> Option<Vec<u8>> {
        let raw = piece.payload.raw(self.bases)?;
        (self.options.algorithm.digest(&raw) == *piece.fingerprint).then_some(raw)
    }

    /// The dictionary that makes least of the midst of a chunk, and what it makes of the whole.
    fn choose(&self, raw: &[u8]) -> Option<(usize, usize)> {
        let start = raw.len().saturating_sub(CHOICE_BYTES) / 2;
        let midst = &raw[start..raw.len().min(start + CHOICE_BYTES)];
        let mut out = vec![0; zstd_safe::compress_bound(raw.len())];
        let size = |bytes: &[u8], one: &PreparedDictionary, out: &mut [u8]| {
            dictionary::compress(bytes, &one.trial, out).ok().flatten()
        };
        let all = self.dictionaries.iter().enumerate();
        let sizes = all.filter_map(|(at, one)| Some((size(midst, one, &mut out)?, at)));
        let (_, best) = sizes.min()?;
        Some((best, size(raw, &self.dictionaries[best], &mut out)?))
    }

    /// Decides whether a piece is to be the difference to another one.
    fn lean(&self, piece: &Piece<'_>, trial: &mut Trial, join: &mut Join<'_>, out: &mut Vec<u8>) {
        if piece.payload.codec == Codec::Delta {
            if self.leave(piece, trial, join, out).is_some() {
                return;
            }
            if self.options.level.is_some() {
                trial.delta = Some((piece.payload.leans_on, piece.payload.stored.len()));
            }
            return;
        }
        // What others lean on is no difference, ever.
        let is_base = join.leaned.contains(piece.id);
        let bases = if is_base { Vec::new() } else { join.similar.choose(piece.id, &piece.sketch) };
        let own = piece.payload.stored.len();
        let mut found = self.best_delta(piece, &bases, own, join.groups, trial, out);
        let in_doubt = found.filter(|&(_, stored)| stored as f64 >= CLEAR_OF_PLAIN * own as f64);
        if let Some((_, stored)) = in_doubt {
            trial.dictionary = Some(self.dictionary(piece, trial));
            let other = trial.dictionary.flatten().map_or(own, |(_, other)| other);
            found = found.filter(|_| stored <= self.options.delta_max(other));
        }
        match found {
            Some((base, stored)) if join.leaned.set(base) => {
                join.groups.keep(base);
                join.similar.chosen(base);
                trial.delta = Some((base, stored));
            }
            _ => self.stand(piece, join),
        }
    }

    /// The bytes of a record that a piece may lean on, which are those of its fingerprint.
    pub(super) fn base(
        &self,
        piece: &Piece<'_>,
        id: RecordId,
        groups: &Groups,
    ) -> Option<Arc<Vec<u8>>> {
        let reads = CacheUse::Uncached;
        let found = self.bases.with_fingerprint(id, reads).ok().or_else(|| {
            // In this container it is a base as soon as the generation is that is being made.
            let is_here = id.container() == piece.id.container() && groups.stands_alone(id);
            let (raw, fingerprint) = is_here.then(|| self.bases.of_any(id, reads))?.ok()?;
            Some((Arc::new(raw), fingerprint))
        });
        let (raw, fingerprint) = found?;
        (self.options.algorithm.digest(&raw) == fingerprint).then_some(raw)
    }

    /// The smallest of the differences to some records, with its bytes; None where none saves enough
    /// in the place of a payload of `stored` bytes.
    pub(super) fn best_delta(
        &self,
        piece: &Piece<'_>,
        bases: &[RecordId],
        stored: usize,
        groups: &Groups,
        trial: &mut Trial,
        out: &mut Vec<u8>,
    ) -> Option<(RecordId, usize)> {
        let mut found: Option<(RecordId, usize)> = None;
        for &base in bases {
            let most =
                found.map_or(self.options.delta_max(stored), |(_, least)| least.saturating_sub(1));
            if let Some(size) = self.try_delta(piece, base, most, groups, trial, out) {
                found = Some((base, size));
            }
            if found.is_some_and(|(_, size)| (size as f64) < GOOD * stored as f64) {
                break;
            }
        }
        found
    }

    /// The bytes of the difference to `base`; None where there would be more than `most`, or where
    /// either has other bytes than those of its fingerprint.
    fn try_delta(
        &self,
        piece: &Piece<'_>,
        base: RecordId,
        most: usize,
        groups: &Groups,
        trial: &mut Trial,
        out: &mut Vec<u8>,
    ) -> Option<usize> {
        if trial.raw.is_none() {
            trial.raw = Some(self.raw(piece)?);
        }
        let raw = trial.raw.as_deref()?;
        let base = self.base(piece, base, groups)?;
        out.resize(most, 0);
        let stored = delta::compress(raw, &base, out, TRIAL_LEVEL).ok()??;
        trial.base = Some(base);
        if self.options.level.is_none() {
            trial.made = out[..stored].to_vec();
        }
        Some(stored)
    }
}
