//! Checks the pages of an LMDB file for the properties that LMDB relies on (`mdb.c`, 0.9). LMDB has
//! no checksums, and ends the process if it reads a malformed page.

const HEADER_BYTES: usize = 16;
const NODE_BYTES: usize = 8;
const METAS: u64 = 2;
const MAGIC: u32 = 0xBEEF_C0DE;
const VERSION: u32 = 1;
const NO_PAGE: u64 = u64::MAX;
const DEPTH_MAX: u16 = 32;

const BRANCH: u16 = 1;
const LEAF: u16 = 2;
const OVERFLOW: u16 = 4;
const META: u16 = 8;
const INTEGER_KEYS: u16 = 8;
/// Flag of a node: its value is in separate pages.
const BIG: u16 = 1;

fn bytes<const N: usize>(data: &[u8], at: usize) -> Option<[u8; N]> {
    data.get(at..)?.first_chunk().copied()
}

fn u16_at(data: &[u8], at: usize) -> Option<u16> {
    bytes(data, at).map(u16::from_ne_bytes)
}

fn u32_at(data: &[u8], at: usize) -> Option<u32> {
    bytes(data, at).map(u32::from_ne_bytes)
}

fn u64_at(data: &[u8], at: usize) -> Option<u64> {
    bytes(data, at).map(u64::from_ne_bytes)
}

/// A tree, as stored in a meta page.
struct Tree {
    flags: u16,
    depth: u16,
    counts: Counts,
    root: u64,
}

#[derive(Default, PartialEq, Eq)]
struct Counts {
    branches: u64,
    leaves: u64,
    overflows: u64,
    entries: u64,
}

struct Meta {
    page_bytes: usize,
    free: Tree,
    main: Tree,
    last_page: u64,
    transaction: u64,
}

fn tree(data: &[u8], at: usize) -> Option<Tree> {
    Some(Tree {
        flags: u16_at(data, at + 4)?,
        depth: u16_at(data, at + 6)?,
        counts: Counts {
            branches: u64_at(data, at + 8)?,
            leaves: u64_at(data, at + 16)?,
            overflows: u64_at(data, at + 24)?,
            entries: u64_at(data, at + 32)?,
        },
        root: u64_at(data, at + 40)?,
    })
}

fn meta(page: &[u8]) -> Option<Meta> {
    let at = HEADER_BYTES;
    let is_meta =
        u16_at(page, 10)? == META && u32_at(page, at)? == MAGIC && u32_at(page, at + 4)? == VERSION;
    is_meta.then_some(Meta {
        page_bytes: u32_at(page, at + 24)? as usize,
        free: tree(page, at + 24)?,
        main: tree(page, at + 72)?,
        last_page: u64_at(page, at + 120)?,
        transaction: u64_at(page, at + 128)?,
    })
}

/// A walk over all pages of the last transaction.
struct Walk<'a> {
    data: &'a [u8],
    page_bytes: usize,
    /// By number: true for pages that were visited.
    met: Vec<bool>,
}

/// Returns whether LMDB can read and write a file with these bytes.
pub fn is_sound(data: &[u8]) -> bool {
    check(data).is_some()
}

fn check(data: &[u8]) -> Option<()> {
    let first = meta(data)?;
    let page_bytes = first.page_bytes;
    let is_usual = page_bytes.is_power_of_two() && (512..=1 << 16).contains(&page_bytes);
    let second = meta(data.get(page_bytes..).filter(|_| is_usual)?)?;
    if second.page_bytes != page_bytes {
        return None;
    }
    let now = if second.transaction > first.transaction { second } else { first };
    let pages = now.last_page.checked_add(1)?;
    if pages < METAS || pages > (data.len() / page_bytes) as u64 {
        return None;
    }
    let mut met = vec![false; pages as usize];
    met[..METAS as usize].fill(true);
    let mut walk = Walk { data, page_bytes, met };
    if now.main.flags != 0 || now.free.flags & INTEGER_KEYS == 0 {
        return None;
    }
    let mut lists = Vec::new();
    walk.tree(&now.main, |_, _| Some(()))?;
    walk.tree(&now.free, |key, value| {
        let transaction = u64::from_ne_bytes(key.try_into().ok()?);
        lists.push(value.to_vec());
        (transaction <= now.transaction).then_some(())
    })?;
    // A page that is both free and in use would be overwritten.
    lists.iter().try_for_each(|list| walk.free(list))
}

impl<'a> Walk<'a> {
    /// The bytes of `count` pages from `number` on. None if another part has one of them.
    fn take(&mut self, number: u64, count: u64) -> Option<&'a [u8]> {
        let end = number.checked_add(count)?;
        let met = self.met.get_mut(usize::try_from(number).ok()?..usize::try_from(end).ok()?)?;
        if met.iter().any(|&one| one) {
            return None;
        }
        met.fill(true);
        let start = number as usize * self.page_bytes;
        self.data.get(start..start + count as usize * self.page_bytes)
    }

    fn tree(
        &mut self,
        tree: &Tree,
        mut entry: impl FnMut(&[u8], &[u8]) -> Option<()>,
    ) -> Option<()> {
        let mut counts = Counts::default();
        if tree.root == NO_PAGE {
            return (tree.depth == 0 && tree.counts == counts).then_some(());
        }
        if !(1..=DEPTH_MAX).contains(&tree.depth) {
            return None;
        }
        let is_free = tree.flags & INTEGER_KEYS != 0;
        let mut last = None;
        let mut rest = vec![(tree.root, tree.depth)];
        while let Some((number, depth)) = rest.pop() {
            let page = self.take(number, 1)?;
            let is_leaf = depth == 1;
            let kind = if is_leaf { LEAF } else { BRANCH };
            if u64_at(page, 0)? != number || u16_at(page, 10)? != kind {
                return None;
            }
            let nodes = nodes(page, is_leaf)?;
            if !is_leaf {
                // LMDB relies on two, except in the tree of free pages.
                if nodes.len() < if is_free { 1 } else { 2 } {
                    return None;
                }
                counts.branches += 1;
                rest.extend(nodes.iter().rev().map(|one| (one.child(), depth - 1)));
                continue;
            }
            counts.leaves += 1;
            for one in &nodes {
                let order = if is_free {
                    u64_at(one.key, 0)?.to_be_bytes().to_vec()
                } else {
                    one.key.to_vec()
                };
                if last.replace(order.clone()).is_some_and(|last| last >= order) {
                    return None;
                }
                counts.entries += 1;
                let value = if one.flags & BIG == 0 {
                    one.value
                } else {
                    let number = u64_at(one.value, 0)?;
                    let count = (HEADER_BYTES - 1 + one.length) / self.page_bytes + 1;
                    counts.overflows += count as u64;
                    let pages = self.take(number, count as u64)?;
                    let is_right = u64_at(pages, 0)? == number
                        && u16_at(pages, 10)? == OVERFLOW
                        && u32_at(pages, 12)? as usize == count;
                    pages.get(HEADER_BYTES..HEADER_BYTES + one.length).filter(|_| is_right)?
                };
                entry(one.key, value)?;
            }
        }
        (counts == tree.counts).then_some(())
    }

    /// Marks free pages, as an entry of their tree lists them: the number, then the last page
    /// first.
    fn free(&mut self, list: &[u8]) -> Option<()> {
        let count = usize::try_from(u64_at(list, 0)?).ok()?;
        let numbers = list.get(8..8usize.checked_add(count.checked_mul(8)?)?)?;
        let mut last = NO_PAGE;
        for number in numbers.chunks_exact(8) {
            let number = u64_at(number, 0)?;
            if number >= last {
                return None;
            }
            last = number;
            self.take(number, 1)?;
        }
        Some(())
    }
}

struct Node<'a> {
    /// In a branch, with the flags, the number of the page below.
    length: usize,
    flags: u16,
    key: &'a [u8],
    /// The value, or the number of its first page.
    value: &'a [u8],
}

impl Node<'_> {
    fn child(&self) -> u64 {
        self.length as u64 | u64::from(self.flags) << 32
    }
}

/// The nodes of a page, in order. None if they do not fill the used parts of the page.
fn nodes(page: &[u8], is_leaf: bool) -> Option<Vec<Node<'_>>> {
    let (lower, upper) = (usize::from(u16_at(page, 12)?), usize::from(u16_at(page, 14)?));
    if lower <= HEADER_BYTES || lower % 2 != 0 || lower > upper || upper > page.len() {
        return None;
    }
    let mut found = Vec::with_capacity((lower - HEADER_BYTES) / 2);
    let mut places = Vec::with_capacity(found.capacity());
    for at in (HEADER_BYTES..lower).step_by(2) {
        let start = usize::from(u16_at(page, at)?);
        let head = page.get(start..)?;
        let length = usize::from(u16_at(head, 0)?) | usize::from(u16_at(head, 2)?) << 16;
        let flags = u16_at(head, 4)?;
        let key_end = NODE_BYTES + usize::from(u16_at(head, 6)?);
        let end = match (is_leaf, flags) {
            (false, _) => key_end,
            (true, 0) => key_end.checked_add(length)?,
            (true, BIG) => key_end + 8,
            _ => return None,
        };
        let (key, value) = (head.get(NODE_BYTES..key_end)?, head.get(key_end..end)?);
        places.push((start, start + end.next_multiple_of(2)));
        found.push(Node { length, flags, key, value });
    }
    places.sort_unstable();
    let ends = places.iter().try_fold(upper, |at, &(start, end)| (start == at).then_some(end));
    (ends == Some(page.len())).then_some(found)
}
