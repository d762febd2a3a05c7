//! Differences that leave a base which nothing but them needs: the first of them stands alone, and the
//! others lean on that one.

use super::groups::{Decision, Groups};
use super::refining::{Join, Piece, RefineInputs, TRIAL_LEVEL, Trial};
use super::sketch::{Sketch, in_domain, sketch};
use crate::codec::delta;
use crate::format::ids::RecordId;
use crate::format::record_header::RECORD_HEADER_BYTES;
use crate::store::record_reader::CacheUse;

/// The part of a base and of the differences to it that must be saved where these leave it. The
/// container is written again anyway, and what stands alone is read faster.
const LEAVING_SAVING_MIN: f64 = 0.005;

impl RefineInputs<'_> {
    /// Has a difference leave a base that only its group needs, where that saves space; None where it
    /// stays, or is of no group.
    pub(super) fn leave(
        &self,
        piece: &Piece<'_>,
        trial: &mut Trial,
        join: &mut Join<'_>,
        out: &mut Vec<u8>,
    ) -> Option<()> {
        let group = join.groups.group(piece.id)?;
        match group.decision {
            Decision::Stays => None,
            Decision::LeansOn(other) => self.follow(piece, trial, other, join.groups),
            Decision::Open => {
                group.decision = Decision::Stays;
                let base = group.base;
                let others = group.members.iter().copied().filter(|&one| one != piece.id);
                let others: Vec<_> = others.collect();
                join.similar.avoid(base);
                if self.lead(piece, trial, base, &others, join, out).is_none() {
                    join.similar.allow(base);
                    return None;
                }
                let group = join.groups.group(piece.id)?;
                group.decision = Decision::LeansOn(piece.id);
                Some(())
            }
        }
    }

    /// Gives the first of a group a payload without its base.
    fn lead(
        &self,
        piece: &Piece<'_>,
        trial: &mut Trial,
        base: RecordId,
        others: &[RecordId],
        join: &mut Join<'_>,
        out: &mut Vec<u8>,
    ) -> Option<()> {
        if trial.raw.is_none() {
            trial.raw = Some(self.raw(piece)?);
        }
        let (base_raw, base_entry) = self.bases.with_entry(base, CacheUse::Uncached).ok()?;
        let sketch = if piece.sketch == Sketch::default() {
            in_domain(sketch(trial.raw.as_deref()?), self.domain)
        } else {
            piece.sketch
        };
        let mut before = piece.payload.stored.len() + base_entry.stored_length as usize;
        before += RECORD_HEADER_BYTES; // that of the base
        let given = self.whole(piece, trial)?;
        let (bases, own) = (join.similar.choose(piece.id, &sketch), given.payload.len());
        let found = match others {
            [] => self.best_delta(piece, &bases, own, join.groups, trial, out),
            _ => None,
        };
        if let Some((new, stored)) = found.filter(|&(new, _)| join.leaned.set(new)) {
            join.groups.keep(new);
            join.similar.chosen(new);
            trial.delta = Some((new, stored));
            trial.leaves = true;
            return Some(());
        }
        let mut after = given.payload.len();
        for &other in others {
            let (raw, _) = self.bases.of_any(other, CacheUse::Uncached).ok()?;
            out.resize(zstd_safe::compress_bound(raw.len()), 0);
            before += delta::compress(&raw, &base_raw, out, TRIAL_LEVEL).ok()??;
            after += delta::compress(&raw, trial.raw.as_deref()?, out, TRIAL_LEVEL).ok()??;
        }
        if after as f64 > (1.0 - LEAVING_SAVING_MIN) * before as f64 {
            return None;
        }
        if !others.is_empty() && !join.leaned.set(piece.id) {
            return None;
        }
        trial.given = Some(given);
        join.groups.stand_alone(piece.id);
        join.similar.stand(piece.id, &sketch);
        Some(())
    }

    /// Has another one of a group lean on the first one.
    fn follow(
        &self,
        piece: &Piece<'_>,
        trial: &mut Trial,
        first: RecordId,
        groups: &Groups,
    ) -> Option<()> {
        let base = self.base(piece, first, groups)?;
        if trial.raw.is_none() {
            trial.raw = Some(self.raw(piece)?);
        }
        trial.delta = Some((first, 0));
        trial.base = Some(base);
        trial.leaves = true;
        Some(())
    }
}
