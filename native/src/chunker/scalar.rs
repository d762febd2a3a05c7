//! Stage 1 without vector instructions: the rolling loop in four lanes.
//!
//! The latency of the table look-up limits one lane. Four lanes at once, each over a quarter of the
//! range, fill the pipeline.

use super::gf2::WINDOW;
use super::stage1::{CutCandidate, Filter, Tables};

const LANES: usize = 4;

/// With fewer positions, a lane's warm-up of 64 bytes costs more than lanes save.
const LANE_POSITIONS_MIN: usize = 128;

/// Appends the candidates at positions `from..to` of `data` (`from` >= 63) in order.
pub fn scan(
    tables: &Tables,
    filter: Filter,
    data: &[u8],
    from: usize,
    to: usize,
    out: &mut Vec<CutCandidate>,
) {
    let step = (to - from) / LANES;
    if step < LANE_POSITIONS_MIN {
        return scan_lane(tables, filter, data, from, to, out);
    }
    let starts: [usize; LANES] = std::array::from_fn(|lane| from + lane * step);
    let mut values = starts.map(|start| fingerprint(tables, &data[start + 1 - WINDOW..=start]));
    let mut found: [Vec<CutCandidate>; LANES] = Default::default();
    let mut look = |lane: usize, position: usize, value: u16| {
        if filter.matches(value) {
            found[lane].push(CutCandidate { position, value });
        }
    };
    for lane in 0..LANES {
        look(lane, starts[lane], values[lane]);
    }
    // Slices of equal length let the compiler omit the bounds checks of `offset`.
    let entering = starts.map(|start| &data[start + 1..start + step]);
    let leaving = starts.map(|start| &data[start + 1 - WINDOW..start + step - WINDOW]);
    let ([e0, e1, e2, e3], [l0, l1, l2, l3]) = (entering, leaving);
    let bytes = e0.iter().zip(l0).zip(e1.iter().zip(l1));
    let bytes = bytes.zip(e2.iter().zip(l2).zip(e3.iter().zip(l3)));
    for (offset, ((b0, b1), (b2, b3))) in bytes.enumerate() {
        for (lane, (&entering, &leaving)) in [b0, b1, b2, b3].into_iter().enumerate() {
            values[lane] = roll(tables, values[lane], entering, leaving);
            look(lane, starts[lane] + 1 + offset, values[lane]);
        }
    }
    for list in &found {
        out.extend_from_slice(list);
    }
    scan_lane(tables, filter, data, starts[LANES - 1] + step, to, out);
}

fn scan_lane(
    tables: &Tables,
    filter: Filter,
    data: &[u8],
    from: usize,
    to: usize,
    out: &mut Vec<CutCandidate>,
) {
    if from >= to {
        return;
    }
    let mut value = fingerprint(tables, &data[from + 1 - WINDOW..=from]);
    let leaving = &data[from + 1 - WINDOW..];
    for position in from..to {
        if filter.matches(value) {
            out.push(CutCandidate { position, value });
        }
        if position + 1 < to {
            value = roll(tables, value, data[position + 1], leaving[position - from]);
        }
    }
}

pub fn fingerprint(tables: &Tables, window: &[u8]) -> u16 {
    window.iter().fold(0, |value, &byte| shift_in(tables, value, byte))
}

#[inline(always)]
fn roll(tables: &Tables, value: u16, entering: u8, leaving: u8) -> u16 {
    shift_in(tables, value, entering) ^ tables.rolling.leave[usize::from(leaving)]
}

#[inline(always)]
fn shift_in(tables: &Tables, value: u16, byte: u8) -> u16 {
    value << 8 ^ u16::from(byte) ^ tables.rolling.overflow[usize::from(value >> 8)]
}
