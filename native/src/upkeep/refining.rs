//! Records that are given other payloads: each is tried as the difference to one that is alike, and
//! with a dictionary, and at a higher level; the smallest wins.

use std::collections::HashSet;
use std::sync::Mutex;

use xxhash_rust::xxh3::xxh3_64;

use super::mark_set::Marks;
use super::similar::Similar;
use super::sketch::Sketch;
use super::sketching::Payload;
use crate::codec::compressibility::incompressible;
use crate::codec::delta::{self, RAW_BYTES_MAX};
use crate::codec::dictionary::{self, Compressing, Dictionary};
use crate::codec::encode;
use crate::fingerprint::Algorithm;
use crate::format::ids::{Checksum, Fingerprint, RecordId};
use crate::format::record_header::{CODEC_DELTA, CODEC_DICTIONARY, CODEC_RAW, CODEC_ZSTD};
use crate::store::bases::Bases;
use crate::store::record_reader::{BaseBytes, Reads};
use crate::threads::lock::{locked, unlocked};
use crate::threads::pool;

/// Of zstd: what is worth it is decided at this level, which costs a tenth of the last one.
pub const TRIAL_LEVEL: i32 = 3;

/// Raw bytes of the chunks that are in memory at once.
const RAW_BYTES_AT_ONCE: usize = 16 << 20;

/// Of a chunk, by which one of several dictionaries is chosen.
const CHOICE_BYTES: usize = 8 << 10;

/// The part of a payload that a dictionary must save of it.
const DICTIONARY_SAVING_MIN: f64 = 0.02;

/// A difference that is smaller than so much of what else there is at the trial's level is so at the
/// last level, too: nothing else is tried there.
const CLEAR: f64 = 0.6;

/// A record as it is stored.
#[derive(Clone, Copy)]
pub struct Piece<'a> {
    pub id: RecordId,
    pub payload: Payload<'a>,
    pub fingerprint: &'a Fingerprint,
    pub sketch: Sketch,
}

/// A new payload for one of the pieces.
pub struct Given {
    pub at: usize,
    pub codec: u8,
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
    fn delta_max(&self, stored: usize) -> usize {
        (stored as f64 * (1.0 - self.saving_min)).floor() as usize
    }
}

/// A dictionary that may be used.
pub struct Usable {
    pub id: RecordId,
    trial: Compressing,
    last: Compressing,
    decoding: Dictionary,
}

impl Usable {
    /// None where the raw bytes of the record are no dictionary.
    pub fn of(id: RecordId, raw: &[u8], level: i32) -> Option<Usable> {
        let decoding = Dictionary::of(raw)?;
        let (trial, last) = (Compressing::of(raw, TRIAL_LEVEL)?, Compressing::of(raw, level)?);
        Some(Usable { id, trial, last, decoding })
    }
}

/// What records are refined with.
pub struct Tools<'a> {
    pub bases: &'a Bases,
    pub dictionaries: &'a [Usable],
    /// Records that hold dictionaries: these stay as they are.
    pub kept: &'a HashSet<RecordId>,
    pub options: Options,
}

/// What is known of a piece before anything is decided.
#[derive(Default)]
struct Trial {
    /// None where it was not needed, or is not what the fingerprint says.
    raw: Option<Vec<u8>>,
    /// The place of the best dictionary, and the bytes that it makes of the piece.
    dictionary: Option<(usize, usize)>,
    /// What the piece is to lean on, and the bytes of the difference.
    delta: Option<(RecordId, usize)>,
    /// The difference, where no other level is to come.
    made: Vec<u8>,
}

/// The pieces that get other payloads. Those that are no difference to another stand for what is
/// like them.
pub fn refine(
    pieces: &[Piece<'_>],
    similar: &mut Similar,
    leaned: &mut Marks,
    tools: &Tools<'_>,
) -> Vec<Given> {
    let mut given = Vec::new();
    let mut first = 0;
    while first < pieces.len() {
        let mut raw_bytes = 0;
        let count = pieces[first..].iter().take_while(|piece| {
            raw_bytes += piece.payload.raw_length;
            raw_bytes <= RAW_BYTES_AT_ONCE
        });
        let end = first + count.count().max(1);
        let mut made = tools.refine(&pieces[first..end], similar, leaned);
        made.iter_mut().for_each(|one| one.at += first);
        given.extend(made);
        first = end;
    }
    given
}

impl Tools<'_> {
    fn refine(
        &self,
        pieces: &[Piece<'_>],
        similar: &mut Similar,
        leaned: &mut Marks,
    ) -> Vec<Given> {
        let helpers = self.options.threads.saturating_sub(1);
        let trials: Vec<_> = pieces.iter().map(|_| Mutex::new(Trial::default())).collect();
        if self.options.level.is_some() {
            pool::for_each(pieces.len(), helpers, |at| {
                *locked(&trials[at]) = self.look(&pieces[at]);
            });
        }
        let mut trials: Vec<Trial> = trials.into_iter().map(unlocked).collect();
        let mut out = Vec::new();
        for (piece, trial) in pieces.iter().zip(&mut trials) {
            if self.may_change(piece) {
                self.lean(piece, trial, similar, leaned, &mut out);
            }
        }
        let made: Vec<_> = pieces.iter().map(|_| Mutex::new(None)).collect();
        pool::for_each(pieces.len(), helpers, |at| {
            *locked(&made[at]) = self.payload(&pieces[at], &trials[at]);
        });
        let made = made.into_iter().map(unlocked).enumerate();
        made.filter_map(|(at, one)| one.map(|one| Given { at, ..one })).collect()
    }

    fn may_change(&self, piece: &Piece<'_>) -> bool {
        piece.payload.codec <= CODEC_DICTIONARY
            && piece.payload.raw_length <= RAW_BYTES_MAX
            && !self.kept.contains(&piece.id)
    }

    /// The raw bytes, and which dictionary fits best.
    fn look(&self, piece: &Piece<'_>) -> Trial {
        let mut trial = Trial::default();
        if !self.may_change(piece) {
            return trial;
        }
        let Some(raw) = self.raw(piece) else { return trial };
        // What is packed already has no use of a dictionary.
        if piece.payload.codec != CODEC_RAW || !incompressible(&raw) {
            trial.dictionary = self.choose(&raw);
        }
        trial.raw = Some(raw);
        trial
    }

    fn raw(&self, piece: &Piece<'_>) -> Option<Vec<u8>> {
        let raw = piece.payload.raw(self.bases)?;
        (self.options.algorithm.digest(&raw) == *piece.fingerprint).then_some(raw)
    }

    /// The dictionary that makes least of the midst of a chunk, and what it makes of the whole.
    fn choose(&self, raw: &[u8]) -> Option<(usize, usize)> {
        let start = raw.len().saturating_sub(CHOICE_BYTES) / 2;
        let midst = &raw[start..raw.len().min(start + CHOICE_BYTES)];
        let mut out = vec![0; zstd_safe::compress_bound(raw.len())];
        let size = |bytes: &[u8], one: &Usable, out: &mut [u8]| {
            dictionary::compress(bytes, &one.trial, out).ok().flatten()
        };
        let all = self.dictionaries.iter().enumerate();
        let sizes = all.filter_map(|(at, one)| Some((size(midst, one, &mut out)?, at)));
        let (_, best) = sizes.min()?;
        Some((best, size(raw, &self.dictionaries[best], &mut out)?))
    }

    /// Decides whether a piece is to be the difference to another one.
    fn lean(
        &self,
        piece: &Piece<'_>,
        trial: &mut Trial,
        similar: &mut Similar,
        leaned: &mut Marks,
        out: &mut Vec<u8>,
    ) {
        if piece.payload.codec == CODEC_DELTA {
            if self.options.level.is_some() {
                trial.delta = Some((piece.payload.leans_on, piece.payload.stored.len()));
            }
            return;
        }
        // What others lean on is no difference, ever.
        let base =
            if leaned.contains(piece.id) { None } else { similar.choose(piece.id, &piece.sketch) };
        let found = base.and_then(|base| Some((base, self.try_delta(piece, base, trial, out)?)));
        match found {
            Some((base, stored)) if leaned.set(base, true) => {
                similar.chosen(base);
                trial.delta = Some((base, stored));
            }
            _ => similar.stand(piece.id, &piece.sketch, leaned),
        }
    }

    /// The bytes of the difference to `base`; None where it would not save enough, or where either
    /// has other bytes than those of its fingerprint.
    fn try_delta(
        &self,
        piece: &Piece<'_>,
        base: RecordId,
        trial: &mut Trial,
        out: &mut Vec<u8>,
    ) -> Option<usize> {
        if trial.raw.is_none() {
            trial.raw = Some(self.raw(piece)?);
        }
        let raw = trial.raw.as_deref()?;
        let (base, fingerprint) = self.bases.with_fingerprint(base, Reads::Uncached)?;
        let other = trial.dictionary.map_or(usize::MAX, |(_, stored)| stored);
        out.resize(self.options.delta_max(piece.payload.stored.len().min(other)), 0);
        let stored = delta::compress(raw, &base, out, TRIAL_LEVEL).ok()??;
        if self.options.algorithm.digest(&base) != fingerprint {
            return None;
        }
        if self.options.level.is_none() {
            trial.made = out[..stored].to_vec();
        }
        Some(stored)
    }

    /// The new payload of a piece; None where it keeps its own.
    fn payload(&self, piece: &Piece<'_>, trial: &Trial) -> Option<Given> {
        let raw = trial.raw.as_deref()?;
        let own = piece.payload.stored.len();
        let Some(level) = self.options.level else {
            let (base, _) = trial.delta?;
            return decoded_delta(raw, base, &self.bases.raw(base, Reads::Uncached)?, &trial.made);
        };
        let other = trial.dictionary.map_or(own, |(_, stored)| stored.min(own));
        let is_clear =
            trial.delta.is_some_and(|(_, stored)| (stored as f64) < CLEAR * other as f64);
        let alone = if is_clear { None } else { self.alone(piece, raw, trial, level) };
        let Some((base, _)) = trial.delta else { return alone };
        let stored = alone.as_ref().map_or(own, |one| one.payload.len());
        // A difference takes a second record to read; what is one already does so anyway.
        let stored_max = if piece.payload.codec == CODEC_DELTA {
            stored.saturating_sub(1)
        } else {
            self.options.delta_max(stored)
        };
        self.delta(raw, base, stored_max, level).or(alone)
    }

    /// The smaller payload of a piece that leans on no other chunk.
    fn alone(&self, piece: &Piece<'_>, raw: &[u8], trial: &Trial, level: i32) -> Option<Given> {
        let own = piece.payload.stored.len();
        if piece.payload.codec == CODEC_DICTIONARY
            || piece.payload.codec == CODEC_RAW && incompressible(raw)
        {
            return None;
        }
        let stored_max = (own as f64 * (1.0 - DICTIONARY_SAVING_MIN)) as usize;
        let found = trial.dictionary.filter(|(_, stored)| *stored <= own);
        if let Some((place, _)) = found
            && let Some(given) = self.with_dictionary(raw, &self.dictionaries[place], stored_max)
        {
            return Some(given);
        }
        let mut out = vec![0; own.saturating_sub(1)];
        let stored = encode::compress(raw, &mut out, level).ok()??;
        let mut back = vec![0; raw.len()];
        encode::decode(&out[..stored], CODEC_ZSTD, &mut back).ok()?;
        given(CODEC_ZSTD, RecordId::HOLE, &out[..stored], &back, raw)
    }

    fn with_dictionary(&self, raw: &[u8], used: &Usable, stored_max: usize) -> Option<Given> {
        let mut out = vec![0; stored_max];
        let stored = dictionary::compress(raw, &used.last, &mut out).ok()??;
        let mut back = vec![0; raw.len()];
        dictionary::decode(&out[..stored], &used.decoding, &mut back).ok()?;
        given(CODEC_DICTIONARY, used.id, &out[..stored], &back, raw)
    }

    fn delta(&self, raw: &[u8], base: RecordId, stored_max: usize, level: i32) -> Option<Given> {
        let (bytes, fingerprint) = self.bases.with_fingerprint(base, Reads::Uncached)?;
        if self.options.algorithm.digest(&bytes) != fingerprint {
            return None;
        }
        let mut out = vec![0; stored_max];
        let stored = delta::compress(raw, &bytes, &mut out, level).ok()??;
        decoded_delta(raw, base, &bytes, &out[..stored])
    }
}

fn decoded_delta(raw: &[u8], base: RecordId, bytes: &[u8], payload: &[u8]) -> Option<Given> {
    let mut back = vec![0; raw.len()];
    delta::decode(payload, bytes, &mut back).ok()?;
    given(CODEC_DELTA, base, payload, &back, raw)
}

/// What is about to take the place of the only payload was decoded once: None where it gave other
/// bytes.
fn given(codec: u8, leans_on: RecordId, payload: &[u8], back: &[u8], raw: &[u8]) -> Option<Given> {
    let checksum = Checksum(xxh3_64(payload));
    let payload = payload.to_vec();
    (back == raw).then_some(Given { at: 0, codec, leans_on, payload, checksum })
}
