//! Complete recipes of file versions, with a cache of recently read ones.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, Weak};

use crate::format::cluster::file_recipe::{Entry, RecipePart, Version};
use crate::format::ids::{ChunkKey, FingerprintCheck, RecordId};
use crate::format::recipe::{Node, Row};
use crate::format::stub::{DIRECT, StubHead};
use crate::rados::chunk_numbers::ChunkNumbers;
use crate::store::bounded::Bounded;
use crate::store::recipes::{Span, content_digest};
use crate::store::why::Why;
use crate::threads::lock::locked;

/// Limit for kept recipes, with the numbers of their chunks.
const KEPT_BYTES: usize = 64 << 20;
/// Limit for one recipe. Longer ones are kept only while an open stub holds them.
const RECIPE_BYTES_MAX: usize = KEPT_BYTES / 2;
/// Recipes that are known to be too long. Further ones are noted only if they are held.
const LONG_MAX: usize = 1024;
/// Memory for a chunk in a recipe, with its number and its fingerprint.
const ROW_BYTES: usize = 160;

/// Replaces the id of a recipe in a stub.
const RECIPE_NUMBER: RecordId = RecordId(1);

struct Chunk {
    start: u64,
    key: ChunkKey,
}

/// The recipe of a file version, with numbers for its chunks.
pub struct FileRecipe {
    length: u64,
    rows: Vec<Chunk>,
    numbers: Arc<ChunkNumbers>,
}

impl Drop for FileRecipe {
    fn drop(&mut self) {
        self.numbers.give_back(self.rows.iter().map(|row| row.key.id.0));
    }
}

impl FileRecipe {
    /// Returns None if the lengths of the entries do not match.
    fn of(length: u64, entries: &[Entry], numbers: &Arc<ChunkNumbers>) -> Option<FileRecipe> {
        let mut end = 0;
        for entry in entries {
            if entry.offset < end || entry.length == 0 {
                return None;
            }
            end = entry.offset.checked_add(u64::from(entry.length))?;
        }
        if end > length {
            return None;
        }
        let taken = numbers.take(entries.iter().map(|entry| &entry.fingerprint));
        let rows = entries.iter().zip(taken).map(|(entry, number)| Chunk {
            start: entry.offset,
            key: ChunkKey {
                id: RecordId(number),
                length: entry.length,
                check: FingerprintCheck::of(&entry.fingerprint),
            },
        });
        Some(FileRecipe { length, rows: rows.collect(), numbers: Arc::clone(numbers) })
    }

    /// All of it, as one leaf.
    pub fn leaf(&self) -> Node {
        let spans = self.spans(&(0..self.length));
        let fingerprint = |span: &Span| {
            let number = span.chunk.map(|key| key.id.0);
            number.and_then(|number| self.numbers.fingerprint(number)).unwrap_or_default()
        };
        let fingerprints: Vec<_> = spans.iter().map(fingerprint).collect();
        let length = |span: &Span| span.end - span.start;
        let content = content_digest(fingerprints.iter().zip(spans.iter().map(length)));
        let row = |span: &Span| Row {
            id: span.chunk.map_or(RecordId::HOLE, |key| key.id),
            length: length(span),
            fingerprint_check: span.chunk.map_or(FingerprintCheck(0), |key| key.check),
        };
        Node::of_rows(spans.iter().map(row).collect(), content)
    }

    /// The chunks and holes in a range.
    fn spans(&self, range: &Range<u64>) -> Vec<Span> {
        let mut spans = Vec::new();
        let mut done = range.start;
        let first = self.rows.partition_point(|row| row.end() <= range.start);
        for row in &self.rows[first..] {
            if row.start >= range.end {
                break;
            }
            if row.start > done {
                spans.push(Span { start: done, end: row.start, chunk: None });
            }
            done = row.end();
            spans.push(Span { start: row.start, end: done, chunk: Some(row.key) });
        }
        if done < range.end {
            spans.push(Span { start: done, end: range.end, chunk: None });
        }
        spans
    }
}

impl Chunk {
    fn end(&self) -> u64 {
        self.start + u64::from(self.key.length)
    }
}

/// Fetches a part of a version's recipe.
pub type FetchPart<'a> = dyn Fn(&Version, u32) -> Result<RecipePart, Why> + 'a;

/// The recipes that stubs name.
pub struct FileRecipes {
    numbers: Arc<ChunkNumbers>,
    kept: Mutex<Bounded<Version, Arc<FileRecipe>>>,
    /// Recipes that are too long, held or not.
    long: Mutex<HashMap<Version, Weak<FileRecipe>>>,
}

impl FileRecipes {
    pub fn new(numbers: Arc<ChunkNumbers>) -> FileRecipes {
        FileRecipes { numbers, kept: Mutex::new(Bounded::new(KEPT_BYTES)), long: Mutex::default() }
    }

    /// The chunks and holes of a stub in a range that it covers. Without `part`, uses only kept
    /// recipes.
    pub fn spans(
        &self,
        stub: &StubHead,
        range: &Range<u64>,
        part: Option<&FetchPart<'_>>,
    ) -> Result<Vec<Span>, Why> {
        let recipe = self.recipe(stub, part, false)?;
        let is_meant = recipe.length >= stub.covered && range.end <= stub.covered;
        if is_meant { Ok(recipe.spans(range)) } else { Err(Why::NotMeant) }
    }

    /// The recipe of a stub of any length, which is kept as long as the caller holds it.
    pub fn hold(&self, stub: &StubHead, part: &FetchPart<'_>) -> Result<Arc<FileRecipe>, Why> {
        self.recipe(stub, Some(part), true)
    }

    fn recipe(
        &self,
        stub: &StubHead,
        part: Option<&FetchPart<'_>>,
        is_held: bool,
    ) -> Result<Arc<FileRecipe>, Why> {
        if stub.recipe != RECIPE_NUMBER || stub.flags & DIRECT != 0 {
            return Err(Why::NotMeant);
        }
        if let Some(known) = locked(&self.kept).get(&stub.digest) {
            return Ok(known);
        }
        let long = locked(&self.long).get(&stub.digest).map(Weak::upgrade);
        match (long, part) {
            (Some(Some(known)), _) => Ok(known),
            (Some(None), _) if !is_held => Err(Why::TooLong),
            (_, None) => Err(Why::NotInMemory),
            (_, Some(part)) => self.read(&stub.digest, part, is_held),
        }
    }

    fn read(
        &self,
        version: &Version,
        part: &FetchPart<'_>,
        is_held: bool,
    ) -> Result<Arc<FileRecipe>, Why> {
        let head = part(version, 0)?;
        let mut entries = head.entries;
        let is_long = |entries: &[Entry]| {
            size_of::<FileRecipe>() + entries.len() * ROW_BYTES > RECIPE_BYTES_MAX
        };
        for number in 1..head.parts {
            if !is_held && is_long(&entries) {
                break;
            }
            entries.extend(part(version, number)?.entries);
        }
        if !is_held && is_long(&entries) {
            self.note_long(version, Weak::new());
            return Err(Why::TooLong);
        }
        let recipe = FileRecipe::of(head.length, &entries, &self.numbers).ok_or(Why::Damaged)?;
        let recipe = Arc::new(recipe);
        if is_long(&entries) {
            self.note_long(version, Arc::downgrade(&recipe));
        } else {
            let bytes = size_of::<FileRecipe>() + entries.len() * ROW_BYTES;
            let gone = locked(&self.kept).keep(*version, Arc::clone(&recipe), bytes);
            drop(gone);
        }
        Ok(recipe)
    }

    fn note_long(&self, version: &Version, recipe: Weak<FileRecipe>) {
        let mut long = locked(&self.long);
        if long.len() >= LONG_MAX {
            long.retain(|_, recipe| recipe.strong_count() > 0);
        }
        long.insert(*version, recipe);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STUB: StubHead = StubHead {
        flags: 0,
        recipe: RECIPE_NUMBER,
        digest: [7; 16],
        covered: 100,
        mtime_ns: 0,
        binding: 0,
        local: 0,
    };

    fn entry(offset: u64, length: u32, name: u8) -> Entry {
        Entry { offset, length, fingerprint: [name; 32] }
    }

    fn parts(
        length: u64,
        all: Vec<Vec<(u64, u32, u8)>>,
    ) -> impl Fn(&Version, u32) -> Result<RecipePart, Why> {
        move |_, part| {
            let entries = all.get(part as usize).ok_or(Why::Damaged)?;
            let entries = entries.iter().map(|&(start, length, name)| entry(start, length, name));
            Ok(RecipePart { parts: all.len() as u32, length, entries: entries.collect() })
        }
    }

    fn found(recipes: &FileRecipes, range: Range<u64>) -> Vec<(u64, u64, u64)> {
        let spans = recipes.spans(&STUB, &range, None).unwrap_or_default();
        let number = |span: &Span| span.chunk.map_or(0, |key| key.id.0);
        spans.iter().map(|span| (span.start, span.end, number(span))).collect()
    }

    #[test]
    fn spans_are_the_chunks_of_all_parts_and_the_holes_between() {
        let numbers = Arc::new(ChunkNumbers::new(0));
        let recipes = FileRecipes::new(Arc::clone(&numbers));
        let fetch = parts(100, vec![vec![(10, 20, 1), (30, 5, 2)], vec![(50, 10, 1)]]);
        assert!(recipes.spans(&STUB, &(0..1), None).is_err());
        assert!(recipes.spans(&STUB, &(0..1), Some(&fetch)).is_ok());
        assert_eq!(
            found(&recipes, 0..100),
            [(0, 10, 0), (10, 30, 1), (30, 35, 2), (35, 50, 0), (50, 60, 1), (60, 100, 0)]
        );
        assert_eq!(found(&recipes, 12..13), [(10, 30, 1)]);
        assert_eq!(found(&recipes, 29..31), [(10, 30, 1), (30, 35, 2)]);
        assert_eq!(found(&recipes, 36..49), [(36, 49, 0)]);
        assert_eq!(found(&recipes, 99..101), []);
        assert_eq!(numbers.count(), 2);
        drop(recipes);
        assert_eq!(numbers.count(), 0);
    }

    #[test]
    fn a_long_recipe_is_there_as_long_as_it_is_held() {
        let numbers = Arc::new(ChunkNumbers::new(0));
        let recipes = FileRecipes::new(Arc::clone(&numbers));
        let rows = (RECIPE_BYTES_MAX / ROW_BYTES + 1) as u64;
        let all: Vec<_> = (0..rows).map(|at| (at, 1, 1)).collect();
        let fetch = parts(rows, vec![all]);
        let nothing = |_: &Version, _| Err(Why::NotOpen);
        let read = |part: Option<&FetchPart<'_>>| recipes.spans(&STUB, &(5..6), part).map(|_| ());
        assert_eq!(read(Some(&fetch)), Err(Why::TooLong));
        assert_eq!(read(Some(&nothing)), Err(Why::TooLong));
        let held = recipes.hold(&STUB, &fetch).map_err(|_| ()).unwrap();
        assert_eq!(read(None), Ok(()));
        drop(held);
        assert_eq!(read(Some(&nothing)), Err(Why::TooLong));
        assert_eq!(numbers.count(), 0);
    }

    #[test]
    fn what_does_not_add_up_is_left_alone() {
        let lone = |all: Vec<(u64, u32, u8)>| parts(100, vec![all]);
        for wrong in [
            lone(vec![(10, 20, 1), (29, 5, 2)]),
            lone(vec![(10, 0, 1)]),
            lone(vec![(90, 11, 1)]),
            parts(99, vec![vec![(0, 10, 1)]]),
        ] {
            let recipes = FileRecipes::new(Arc::new(ChunkNumbers::new(0)));
            assert!(recipes.spans(&STUB, &(0..1), Some(&wrong)).is_err());
        }
        let recipes = FileRecipes::new(Arc::new(ChunkNumbers::new(0)));
        let right = lone(vec![(0, 100, 1)]);
        let direct = StubHead { flags: DIRECT, ..STUB };
        assert!(recipes.spans(&direct, &(0..1), Some(&right)).is_err());
        let other = StubHead { recipe: RecordId(2), ..STUB };
        assert!(recipes.spans(&other, &(0..1), Some(&right)).is_err());
        assert!(recipes.spans(&STUB, &(0..1), Some(&right)).is_ok());
    }
}
