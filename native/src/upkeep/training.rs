//! Dictionaries for the types of chunks that there are, by what the chunks contain.
//!
//! Samples are grouped by the pairs of bytes in them (k-means), and a dictionary is trained for each
//! group (COVER, Liao et al., as zstd has it). Then each sample goes to the dictionary that makes
//! least of it, and each group is trained again.

use std::ffi::c_void;

use zstd_safe::zstd_sys;

use super::refining::TRIAL_LEVEL;
use crate::codec::compressibility::incompressible;
use crate::codec::dictionary::{Compressing, compress};
use crate::codec::encode;
use crate::threads::pool;

/// Dimensions of the space in which samples are grouped.
const PAIRS: usize = 512;
const ROUNDS: usize = 8;
const STRAY_ROUNDS: usize = 4;

/// Of a sample; the rest of a longer one adds little.
const SAMPLE_BYTES: usize = 64 << 10;
const SAMPLE_BYTES_MIN: usize = 64;

/// zstd needs some samples more than it says.
const SAMPLES_MIN: usize = 16;

/// So many bytes of a type for each byte of its dictionary, at least.
const RAW_PER_BYTE: f64 = 64.0;

const BYTES_MIN: usize = 1 << 10;

/// One sample of a group in so many is not trained on, and judges what was.
const JUDGES: usize = 4;

/// Of fewer, too few would be left to train on.
const GROUP_MIN: usize = SAMPLES_MIN.div_ceil(JUDGES - 1) * JUDGES;

/// A dictionary must save so many times its own size, reckoned up from the samples: it is stored
/// twice.
const GAIN_MIN: f64 = 2.0;

/// What is wanted of a training.
#[derive(Clone, Copy)]
pub struct TrainingGoal<'a> {
    /// Dictionaries that there are already: another one must save more than these do.
    pub known: &'a [Vec<u8>],
    pub count: usize,
    pub bytes_max: usize,
    pub level: i32,
    /// How many bytes there are for each byte of the samples.
    pub scale: f64,
    /// What all dictionaries together are to save, so reckoned up.
    pub gain_bytes_min: f64,
    pub threads: usize,
}

/// The dictionaries that are worth it, the best ones first.
pub fn train(mut samples: Vec<Vec<u8>>, wanted: TrainingGoal<'_>) -> Vec<Vec<u8>> {
    // What is packed already has nothing in common.
    samples.retain(|sample| sample.len() >= SAMPLE_BYTES_MIN && !incompressible(sample));
    samples.iter_mut().for_each(|sample| sample.truncate(SAMPLE_BYTES));
    let total: usize = samples.iter().map(Vec::len).sum();
    if samples.len() < GROUP_MIN {
        return Vec::new();
    }
    let count = wanted.count.clamp(1, samples.len() / GROUP_MIN);
    let groups = grouped(&samples, count);
    let (samples, groups, others) = with_judges(samples, &groups);
    let judging: usize = others.iter().map(Vec::len).sum();
    let scale = wanted.scale * total as f64 / judging as f64;
    let first = trained(&samples, &groups, wanted);
    let sizes = sizes_without(&samples, wanted);
    let Some((groups, _)) = assigned(&samples, &first, &sizes, wanted) else { return Vec::new() };
    let second = trained(&samples, &groups, wanted);
    let sizes = sizes_without(&others, wanted);
    let Some((_, gains)) = assigned(&others, &second, &sizes, wanted) else { return Vec::new() };
    let mut found: Vec<_> = second
        .into_iter()
        .zip(gains)
        .filter(|(one, gain)| gain * scale > GAIN_MIN * one.len() as f64)
        .collect();
    let gain: f64 = found.iter().map(|(_, gain)| gain * scale).sum();
    if gain < wanted.gain_bytes_min {
        return Vec::new();
    }
    found.sort_by(|(_, one), (_, other)| other.total_cmp(one));
    found.into_iter().map(|(one, _)| one).collect()
}

/// The numbers of the samples of each group.
type Groups = Vec<Vec<usize>>;

/// How often each pair of bytes is in a sample, by the square root, of length one.
fn point(sample: &[u8]) -> Vec<f32> {
    let mut counts = vec![0f32; PAIRS];
    for pair in sample.windows(2) {
        let hash = (u32::from(pair[0]) << 8 | u32::from(pair[1])).wrapping_mul(0x9E37_79B1);
        counts[(hash >> 23) as usize] += 1.0;
    }
    let total: f32 = counts.iter().sum();
    counts.iter().map(|count| (count / total.max(1.0)).sqrt()).collect()
}

fn distance(one: &[f32], other: &[f32]) -> f32 {
    one.iter().zip(other).map(|(a, b)| (a - b) * (a - b)).sum()
}

fn nearest(point: &[f32], centres: &[Vec<f32>]) -> (usize, f32) {
    let distances = centres.iter().map(|centre| distance(point, centre)).enumerate();
    distances.min_by(|(_, one), (_, other)| one.total_cmp(other)).unwrap_or_default()
}

/// Samples that are alike, together; in each group those next to its middle first. The last group
/// has those that are like too few others.
fn grouped(samples: &[Vec<u8>], count: usize) -> Groups {
    let points: Vec<_> = samples.iter().map(|sample| point(sample)).collect();
    let mut members: Vec<usize> = (0..points.len()).collect();
    let mut strays = Vec::new();
    let mut groups = Groups::new();
    // Strays are far from all others, and take the places of kinds.
    for _ in 0..STRAY_ROUNDS {
        groups = near_centres(&points, &members, count);
        let few = join_small(&points, &mut groups);
        if few.is_empty() {
            break;
        }
        members.retain(|number| !few.contains(number));
        strays.extend(few);
    }
    groups.push(strays);
    groups
}

/// Some of the points by the centre that is nearest.
fn near_centres(points: &[Vec<f32>], members: &[usize], count: usize) -> Groups {
    // The first one, then whatever is farthest from all before.
    let mut centres: Vec<_> =
        members.iter().take(1).map(|&number| points[number].clone()).collect();
    while centres.len() < count.min(members.len()) {
        let far = members.iter().map(|&number| (number, nearest(&points[number], &centres).1));
        let Some((at, _)) = far.max_by(|(_, one), (_, other)| one.total_cmp(other)) else { break };
        centres.push(points[at].clone());
    }
    let mut groups = Groups::new();
    for _ in 0..ROUNDS {
        groups = vec![Vec::new(); centres.len()];
        for &number in members {
            groups[nearest(&points[number], &centres).0].push(number);
        }
        for (centre, group) in centres.iter_mut().zip(&groups) {
            if !group.is_empty() {
                *centre = middle(points, group);
            }
        }
    }
    groups.retain(|group| !group.is_empty());
    groups
}

fn middle(points: &[Vec<f32>], group: &[usize]) -> Vec<f32> {
    let mut sum = vec![0f32; PAIRS];
    for &number in group {
        sum.iter_mut().zip(&points[number]).for_each(|(sum, value)| *sum += value);
    }
    sum.iter().map(|sum| sum / group.len() as f32).collect()
}

/// Put groups that are too small for a dictionary to those that they are no farther from than these
/// are wide: one kind had come to lie in two. Takes out those of other kinds, and returns them.
fn join_small(points: &[Vec<f32>], groups: &mut Groups) -> Vec<usize> {
    let mut strays = Vec::new();
    while let Some(at) = groups.iter().position(|group| group.len() < GROUP_MIN) {
        let small = groups.swap_remove(at);
        let centre = middle(points, &small);
        let home = groups.iter_mut().find(|group| {
            let other = middle(points, group);
            let apart = group.iter().map(|&number| distance(&points[number], &other)).sum::<f32>();
            distance(&centre, &other) <= apart / group.len() as f32
        });
        home.unwrap_or(&mut strays).extend(small);
    }
    for group in groups {
        let centre = middle(points, group);
        let place = |&number: &usize| distance(&points[number], &centre);
        group.sort_by(|one, other| place(one).total_cmp(&place(other)));
    }
    strays
}

/// Groups without their judges, which come last. Each group has some, in whatever order samples lie.
fn with_judges(mut samples: Vec<Vec<u8>>, groups: &Groups) -> (Vec<Vec<u8>>, Groups, Vec<Vec<u8>>) {
    let (mut kept, mut left, mut judges) = (Vec::new(), Groups::new(), Vec::new());
    for group in groups {
        let mut own = Vec::new();
        for (place, &number) in group.iter().enumerate() {
            let sample = std::mem::take(&mut samples[number]);
            if place % JUDGES == JUDGES - 1 {
                judges.push(sample);
            } else {
                own.push(kept.len());
                kept.push(sample);
            }
        }
        left.push(own);
    }
    (kept, left, judges)
}

fn trained(samples: &[Vec<u8>], groups: &Groups, wanted: TrainingGoal<'_>) -> Vec<Vec<u8>> {
    let made = pool::map(groups.len(), wanted.threads.saturating_sub(1), |at| {
        let own: Vec<&[u8]> = groups[at].iter().map(|&number| &samples[number][..]).collect();
        dictionary_of(&own, wanted)
    });
    made.into_iter().flatten().collect()
}

/// A dictionary for some samples; None where these are too few, or too much alike.
fn dictionary_of(samples: &[&[u8]], wanted: TrainingGoal<'_>) -> Option<Vec<u8>> {
    if samples.len() < SAMPLES_MIN {
        return None;
    }
    let sizes: Vec<usize> = samples.iter().map(|sample| sample.len()).collect();
    let buffer = samples.concat();
    let share = 1.0 - 1.0 / JUDGES as f64;
    let most = (buffer.len() as f64 / share * wanted.scale / RAW_PER_BYTE) as usize;
    let mut out = vec![0; wanted.bytes_max.min(most).max(BYTES_MIN)];
    let parameters = zstd_sys::ZDICT_fastCover_params_t {
        k: u32::try_from(out.len() / 32).unwrap_or_default().clamp(64, 1024),
        d: 8,
        f: 20,
        steps: 0,
        nbThreads: 1,
        splitPoint: 1.0,
        accel: 1,
        shrinkDict: 0,
        shrinkDictMaxRegression: 0,
        zParams: zstd_sys::ZDICT_params_t {
            compressionLevel: wanted.level,
            notificationLevel: 0,
            dictID: 0,
        },
    };
    // SAFETY: all three buffers have the lengths that are stated, and live for the call.
    let length = unsafe {
        zstd_sys::ZDICT_trainFromBuffer_fastCover(
            out.as_mut_ptr().cast::<c_void>(),
            out.len(),
            buffer.as_ptr().cast::<c_void>(),
            sizes.as_ptr(),
            u32::try_from(sizes.len()).ok()?,
            parameters,
        )
    };
    // An error is a number from the upper end.
    if length > out.len() {
        return None;
    }
    out.truncate(length);
    zstd_safe::get_dict_id_from_dict(&out)?;
    Some(out)
}

fn ready(dictionaries: &[Vec<u8>]) -> Vec<Compressing> {
    dictionaries.iter().filter_map(|one| Compressing::of(one, TRIAL_LEVEL)).collect()
}

/// What is made of each sample without any new dictionary: alone, or with a known one.
fn sizes_without(samples: &[Vec<u8>], wanted: TrainingGoal<'_>) -> Vec<usize> {
    let known = ready(wanted.known);
    pool::map(samples.len(), wanted.threads.saturating_sub(1), |number| {
        let sample = &samples[number];
        let mut out = vec![0; zstd_safe::compress_bound(sample.len())];
        let alone = encode::compress(sample, &mut out, TRIAL_LEVEL).ok().flatten();
        let with = least(sample, &known).map(|(size, _)| size);
        let found = alone.into_iter().chain(with).chain([sample.len()]).min();
        found.unwrap_or_default()
    })
}

/// Each sample with the dictionary that makes least of it, if that is less than `sizes` say; and
/// what each dictionary saves of these. None where there is none.
fn assigned(
    samples: &[Vec<u8>],
    dictionaries: &[Vec<u8>],
    sizes: &[usize],
    wanted: TrainingGoal<'_>,
) -> Option<(Groups, Vec<f64>)> {
    let ready = Some(ready(dictionaries)).filter(|one| one.len() == dictionaries.len())?;
    let helpers = wanted.threads.saturating_sub(1);
    let best = pool::map(samples.len(), helpers, |number| least(&samples[number], &ready));
    let mut groups = vec![Vec::new(); ready.len()];
    let mut gains = vec![0f64; ready.len()];
    for (number, found) in best.into_iter().enumerate() {
        if let Some((size, place)) = found.filter(|(size, _)| *size < sizes[number]) {
            groups[place].push(number);
            gains[place] += (sizes[number] - size) as f64;
        }
    }
    Some((groups, gains)).filter(|(groups, _)| !groups.is_empty())
}

/// What the dictionary that makes least of a sample makes of it, and the place of that one.
fn least(sample: &[u8], ready: &[Compressing]) -> Option<(usize, usize)> {
    let mut out = vec![0; zstd_safe::compress_bound(sample.len())];
    let all = ready.iter().enumerate();
    let sizes =
        all.filter_map(|(place, one)| Some((compress(sample, one, &mut out).ok()??, place)));
    sizes.min()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::upkeep::sketch::mix;

    /// Words of a kind in another order each.
    fn sample(kind: u64, number: u64) -> Vec<u8> {
        let word = |at: u64| {
            let letters = (mix(kind << 32 | at)).to_le_bytes();
            letters.map(|letter| b'a' + letter % 16).into_iter().chain([b' '])
        };
        (0..300).flat_map(|at| word(mix(kind << 48 | number << 16 | at) % 300)).collect()
    }

    fn helped(samples: Vec<Vec<u8>>) -> usize {
        let wanted = TrainingGoal {
            known: &[],
            count: 8,
            bytes_max: 112 << 10,
            level: 19,
            scale: 1.0,
            gain_bytes_min: 1.0,
            threads: 2,
        };
        let sizes = sizes_without(&samples, wanted);
        let found = train(samples.clone(), wanted);
        let groups = assigned(&samples, &found, &sizes, wanted).map(|found| found.0);
        groups.unwrap_or_default().iter().map(Vec::len).sum()
    }

    #[test]
    fn each_kind_has_judges_in_whatever_order_samples_lie() {
        let by_turns = (0..40).flat_map(|number| [sample(0, number), sample(1, number)]);
        let one_after_the_other = (0..80).map(|place| sample(place / 40, place));
        let every_fourth = (0..160).map(|place| sample((place % 4 == 3).into(), place));
        let all: [Vec<_>; 3] =
            [by_turns.collect(), one_after_the_other.collect(), every_fourth.collect()];
        for samples in all {
            let count = samples.len();
            assert_eq!(helped(samples), count);
        }
    }
}
