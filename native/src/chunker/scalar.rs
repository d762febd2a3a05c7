//! Stage 1 without vector instructions: the rolling loop in four lanes.
//!
//! One lane is bound by the latency of its table look-up; four lanes at once, each over a quarter
//! of the range, fill the pipeline.

use super::gf2::WINDOW;
use super::stage1::{Candidate, Filter, Tables};

const LANES: usize = 4;

/// Below this many positions a lane's warm-up of 64 bytes costs more than lanes gain.
const LANE_POSITIONS_MIN: usize = 128;

/// Appends the candidates at positions `from..to` of `data` (`from` >= 63) in order.
pub fn scan(
    tables: &Tables,
    filter: Filter,
    data: &[u8],
    from: usize,
    to: usize,
    out: &mut Vec<Candidate>,
) {
    let positions = to - from;
    if positions < LANES * LANE_POSITIONS_MIN {
        return scan_lane(tables, filter, data, from, to, out);
    }
    let step = positions / LANES;
    let starts: [usize; LANES] = std::array::from_fn(|lane| from + lane * step);
    let mut lanes = starts.map(|start| Lane::new(tables, data, start, step));
    let mut found: [Vec<Candidate>; LANES] = Default::default();
    for offset in 0..step {
        for (lane, start) in starts.iter().enumerate() {
            let value = lanes[lane].value;
            if filter.matches(value) {
                found[lane].push(Candidate { position: start + offset, value });
            }
            lanes[lane].advance(tables, offset);
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
    out: &mut Vec<Candidate>,
) {
    if from >= to {
        return;
    }
    let mut lane = Lane::new(tables, data, from, to - from);
    for offset in 0..to - from {
        if filter.matches(lane.value) {
            out.push(Candidate { position: from + offset, value: lane.value });
        }
        lane.advance(tables, offset);
    }
}

struct Lane<'a> {
    value: u16,
    leaving: &'a [u8],
    entering: &'a [u8],
}

impl<'a> Lane<'a> {
    /// A lane whose value is the fingerprint at `start`.
    fn new(tables: &Tables, data: &'a [u8], start: usize, positions: usize) -> Lane<'a> {
        let window = start + 1 - WINDOW;
        let mut value = 0;
        for &byte in &data[window..=start] {
            value = shift_in(tables, value, byte);
        }
        Lane {
            value,
            leaving: &data[window..window + positions],
            // One byte less than positions: the last value needs no successor.
            entering: &data[start + 1..start + positions],
        }
    }

    /// Moves to the position after `offset`; at the last one the value is spent.
    #[inline(always)]
    fn advance(&mut self, tables: &Tables, offset: usize) {
        if let (Some(&entering), Some(&leaving)) =
            (self.entering.get(offset), self.leaving.get(offset))
        {
            self.value =
                shift_in(tables, self.value, entering) ^ tables.rolling.leave[usize::from(leaving)];
        }
    }
}

#[inline(always)]
fn shift_in(tables: &Tables, value: u16, byte: u8) -> u16 {
    value << 8 ^ u16::from(byte) ^ tables.rolling.overflow[usize::from(value >> 8)]
}
