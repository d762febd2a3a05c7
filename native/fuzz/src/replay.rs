//! Replays the inputs of a corpus, and random changes of them for a while.

use std::time::{Duration, Instant};

use super::targets::Target;

/// xorshift64*: the same inputs each time.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 32) as usize % end.max(1)
    }
}

/// Replays all inputs, then changed inputs, the same each time. Returns the number of changes.
pub fn replay(target: Target, inputs: &[Vec<u8>], time: Duration) -> u64 {
    inputs.iter().for_each(|input| target(input));
    let end = Instant::now() + time;
    let mut random = Random(0x9E37_79B9_7F4A_7C15);
    let mut runs = 0;
    while Instant::now() < end {
        for _ in 0..64 {
            target(&changed(inputs, &mut random));
        }
        runs += 64;
    }
    runs
}

fn changed(inputs: &[Vec<u8>], random: &mut Random) -> Vec<u8> {
    const VALUES: [u8; 6] = [0, 1, 0x7F, 0x80, 0xFE, 0xFF];
    let mut data = match inputs {
        [] => Vec::new(),
        _ => inputs[random.below(inputs.len())].clone(),
    };
    for _ in 0..=random.below(6) {
        let at = random.below(data.len());
        match random.below(6) {
            0 => data.truncate(at),
            1 => data.extend((0..random.below(64)).map(|n| n as u8)),
            2 if !data.is_empty() => data[at] = VALUES[random.below(VALUES.len())],
            3 if !data.is_empty() => {
                let (from, length) = (random.below(data.len()), random.below(32));
                let piece: Vec<u8> = data[from..].iter().copied().take(length).collect();
                data.splice(at..at, piece);
            }
            _ if !data.is_empty() => data[at] ^= 1 << random.below(8),
            _ => data.push(random.below(256) as u8),
        }
    }
    data
}
