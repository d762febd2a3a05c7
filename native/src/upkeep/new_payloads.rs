//! The new payloads of pieces: as a difference, with a dictionary, or alone, each decoded once.

use std::ops::RangeInclusive;
use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_64;

use super::refining::{
    Piece, PreparedDictionary, RefineInputs, RefinedPayload, TRIAL_LEVEL, Trial,
};
use super::sketching::Payload;
use crate::codec::compressibility::incompressible;
use crate::codec::delta;
use crate::codec::dictionary;
use crate::codec::encode;
use crate::format::codec::Codec;
use crate::format::ids::{Checksum, RecordId};
use crate::store::record_reader::CacheUse;

/// The part of a payload that a dictionary must save of it.
const DICTIONARY_SAVING_MIN: f64 = 0.02;

/// A difference that is smaller than so much of what else there is at the trial's level is so at the
/// last level, too: nothing else is tried there.
const CLEAR: f64 = 0.6;

/// Where zstd looks for matches in a binary tree, putting the base into it takes ten times as long as
/// all at the level before, for a difference that is 1 to 3 % smaller.
const TREE_LEVELS: RangeInclusive<i32> = 11..=12;

/// So small a part of the raw bytes, that difference is not worth the time.
const SMALL: usize = 4;

impl RefineInputs<'_> {
    /// The payload of a piece by itself, whatever it has now.
    pub(super) fn whole(&self, piece: &Piece<'_>, trial: &Trial) -> Option<RefinedPayload> {
        let raw = trial.raw.as_deref()?;
        let (codec, leans_on) = (Codec::Raw, RecordId::HOLE);
        let payload = Payload { codec, leans_on, stored: raw, ..piece.payload };
        let whole = Piece { payload, ..*piece };
        let level = self.options.level.unwrap_or(TRIAL_LEVEL);
        let made = self.alone(&whole, raw, self.dictionary(piece, trial), level);
        made.or_else(|| given(codec, leans_on, raw, raw, raw))
    }

    /// The new payload of a piece; None where it keeps its own.
    pub(super) fn payload(&self, piece: &Piece<'_>, trial: &Trial) -> Option<RefinedPayload> {
        let raw = trial.raw.as_deref()?;
        if trial.leaves {
            return self.left(raw, trial);
        }
        let own = piece.payload.stored.len();
        let Some(level) = self.options.level else {
            let (base, _) = trial.delta?;
            return decoded_delta(raw, base, trial.base.as_deref()?, &trial.made);
        };
        let other = trial.dictionary.flatten().map_or(own, |(_, stored)| stored.min(own));
        let alone = if trial.delta.is_some_and(|(_, stored)| is_clear(stored, other)) {
            None
        } else {
            self.alone(piece, raw, self.dictionary(piece, trial), level)
        };
        let Some((base, _)) = trial.delta else { return alone };
        let stored = alone.as_ref().map_or(own, |one| one.payload.len());
        // A difference takes a second record to read; what is one already does so anyway.
        let stored_max = if piece.payload.codec == Codec::Delta {
            stored.saturating_sub(1)
        } else {
            self.options.delta_max(stored)
        };
        self.delta(raw, base, trial, stored_max, level).or(alone)
    }

    /// The difference of a piece to what it leans on from now on, larger than before or not.
    fn left(&self, raw: &[u8], trial: &Trial) -> Option<RefinedPayload> {
        let (base, _) = trial.delta?;
        let level = self.options.level.unwrap_or(TRIAL_LEVEL);
        self.delta(raw, base, trial, raw.len(), level)
    }

    /// The smaller payload of a piece that leans on no other chunk.
    fn alone(
        &self,
        piece: &Piece<'_>,
        raw: &[u8],
        dictionary: Option<(usize, usize)>,
        level: i32,
    ) -> Option<RefinedPayload> {
        let own = piece.payload.stored.len();
        if piece.payload.codec == Codec::Dictionary
            || piece.payload.codec == Codec::Raw && incompressible(raw)
        {
            return None;
        }
        let stored_max = (own as f64 * (1.0 - DICTIONARY_SAVING_MIN)) as usize;
        let found = dictionary.filter(|(_, stored)| *stored <= own);
        let with = |(place, _)| self.with_dictionary(raw, &self.dictionaries[place], stored_max);
        if let Some(given) = found.and_then(with) {
            return Some(given);
        }
        let mut out = vec![0; own.saturating_sub(1)];
        let stored = encode::compress(raw, &mut out, level).ok()??;
        let mut back = vec![0; raw.len()];
        encode::decode(&out[..stored], Codec::Zstd, &mut back).ok()?;
        given(Codec::Zstd, RecordId::HOLE, &out[..stored], &back, raw)
    }

    fn with_dictionary(
        &self,
        raw: &[u8],
        used: &PreparedDictionary,
        stored_max: usize,
    ) -> Option<RefinedPayload> {
        let mut out = vec![0; stored_max];
        let stored = dictionary::compress(raw, &used.last, &mut out).ok()??;
        let mut back = vec![0; raw.len()];
        dictionary::decode(&out[..stored], &used.decoding, &mut back).ok()?;
        given(Codec::Dictionary, used.id, &out[..stored], &back, raw)
    }

    fn delta(
        &self,
        raw: &[u8],
        base: RecordId,
        trial: &Trial,
        stored_max: usize,
        level: i32,
    ) -> Option<RefinedPayload> {
        let bytes = match &trial.base {
            Some(bytes) => Arc::clone(bytes),
            None => {
                let (bytes, fingerprint) =
                    self.bases.with_fingerprint(base, CacheUse::Uncached).ok()?;
                (self.options.algorithm.digest(&bytes) == fingerprint).then_some(bytes)?
            }
        };
        let is_small = trial.delta.is_some_and(|(_, stored)| stored <= raw.len() / SMALL);
        let level =
            if is_small && TREE_LEVELS.contains(&level) { TREE_LEVELS.start() - 1 } else { level };
        let mut out = vec![0; stored_max];
        let stored = delta::compress(raw, &bytes, &mut out, level).ok()??;
        decoded_delta(raw, base, &bytes, &out[..stored])
    }
}

/// Whether nothing but a difference of so many bytes needs to be tried, in the place of `other` bytes.
fn is_clear(stored: usize, other: usize) -> bool {
    (stored as f64) < CLEAR * other as f64
}

fn decoded_delta(
    raw: &[u8],
    base: RecordId,
    bytes: &[u8],
    payload: &[u8],
) -> Option<RefinedPayload> {
    let mut back = vec![0; raw.len()];
    delta::decode(payload, bytes, &mut back).ok()?;
    given(Codec::Delta, base, payload, &back, raw)
}

/// What is about to take the place of the only payload was decoded once: None where it gave other
/// bytes.
fn given(
    codec: Codec,
    leans_on: RecordId,
    payload: &[u8],
    back: &[u8],
    raw: &[u8],
) -> Option<RefinedPayload> {
    let checksum = Checksum(xxh3_64(payload));
    let payload = payload.to_vec();
    (back == raw).then_some(RefinedPayload { at: 0, codec, leans_on, payload, checksum })
}
