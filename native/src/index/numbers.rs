//! Record numbers of 32 bits for ids of 64 bits: a block of numbers per 4,096 used ordinals.

use std::collections::HashMap;

use crate::format::ids::RecordId;
use crate::format::saved_index::BLOCK_BITS;

const BLOCKS_MAX: usize = 1 << (32 - BLOCK_BITS);

#[derive(Default)]
pub struct Numbers {
    /// The upper bits of the ids of each block.
    blocks: Vec<u64>,
    by_id: HashMap<u64, u32>,
    last: Option<(u64, u32)>,
}

impl Numbers {
    /// Creates them from `blocks`. None if a block occurs twice, or there are too many.
    pub fn from_blocks(blocks: Vec<u64>) -> Option<Numbers> {
        let by_id: HashMap<u64, u32> = blocks.iter().copied().zip(0..).collect();
        let is_valid = by_id.len() == blocks.len() && blocks.len() <= BLOCKS_MAX;
        is_valid.then_some(Numbers { blocks, by_id, last: None })
    }

    pub fn blocks(&self) -> &[u64] {
        &self.blocks
    }

    pub fn bytes(&self) -> usize {
        self.blocks.capacity() * 8 + self.by_id.capacity() * 17
    }

    /// The number of an id; assigns one if it has none. None if no number is left.
    pub fn number(&mut self, id: RecordId) -> Option<u32> {
        let key = id.0 >> BLOCK_BITS;
        let block = match self.last {
            Some((last, block)) if last == key => block,
            _ => self.block(key)?,
        };
        self.last = Some((key, block));
        Some(block << BLOCK_BITS | (id.ordinal() & ((1 << BLOCK_BITS) - 1)))
    }

    fn block(&mut self, key: u64) -> Option<u32> {
        if let Some(&block) = self.by_id.get(&key) {
            return Some(block);
        }
        if self.blocks.len() == BLOCKS_MAX {
            return None;
        }
        let block = self.blocks.len() as u32;
        self.blocks.push(key);
        self.by_id.insert(key, block);
        Some(block)
    }

    /// The id of an assigned number; None for others.
    pub fn id(&self, number: u32) -> Option<RecordId> {
        let key = self.blocks.get((number >> BLOCK_BITS) as usize)?;
        Some(RecordId(key << BLOCK_BITS | u64::from(number & ((1 << BLOCK_BITS) - 1))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::ids::ContainerNumber;

    #[test]
    fn a_number_leads_back_to_its_id() {
        let mut numbers = Numbers::default();
        let ids = [(1, 0), (1, 4095), (1, 4096), (7, 5), (u32::MAX, u32::MAX), (1, 1)];
        let ids =
            ids.map(|(container, ordinal)| RecordId::new(ContainerNumber(container), ordinal));
        for id in ids {
            let number = numbers.number(id);
            assert_eq!(number.and_then(|number| numbers.id(number)), Some(id));
        }
        assert_eq!(numbers.blocks().len(), 4);
    }

    #[test]
    fn a_number_that_was_not_given_out_is_no_id() {
        assert_eq!(Numbers::default().id(0), None);
    }
}
