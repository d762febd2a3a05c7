//! Writing flat tables as Parquet: all columns required, plain encoding, Zstandard. What needs no
//! more than that is written several times faster than through a database, and without the GIL.
//!
//! The format is that of <https://parquet.apache.org/docs/file-format/>; its headers are structures
//! of Thrift's compact protocol, whose fields are numbered in `parquet.thrift`.

use std::fs::File;
use std::io::{Error, ErrorKind, Result, Write};
use std::path::Path;

/// What a column's items are. All numbers are little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    U16,
    U32,
    U64,
    I64,
    /// Each item with its length in front, a u32.
    Bytes,
    /// As `Bytes`, and UTF-8.
    Text,
}

pub struct Column<'a> {
    pub name: &'a str,
    pub kind: Kind,
    pub items: &'a [u8],
}

/// What readers take at once, and hold in memory; as many as DuckDB puts there.
const ROWS_PER_GROUP: usize = 122_880;
/// The fastest: most bytes are those of fingerprints, which no level makes smaller.
const LEVEL: i32 = 1;
const MAGIC: &[u8; 4] = b"PAR1";

// Of `parquet.thrift`.
const TYPE_INT32: i64 = 1;
const TYPE_INT64: i64 = 2;
const TYPE_BYTE_ARRAY: i64 = 6;
const UTF8: i64 = 0;
const UINT_16: i64 = 12;
const UINT_32: i64 = 13;
const UINT_64: i64 = 14;
const REQUIRED: i64 = 0;
const DATA_PAGE: i64 = 0;
const PLAIN: i64 = 0;
const RLE: i64 = 3;
const ZSTD: i64 = 6;

impl Kind {
    /// Bytes of an item; None where each has its own length.
    fn width(self) -> Option<usize> {
        match self {
            Kind::U16 => Some(2),
            Kind::U32 => Some(4),
            Kind::U64 | Kind::I64 => Some(8),
            Kind::Bytes | Kind::Text => None,
        }
    }

    fn physical(self) -> i64 {
        match self {
            Kind::U16 | Kind::U32 => TYPE_INT32,
            Kind::U64 | Kind::I64 => TYPE_INT64,
            Kind::Bytes | Kind::Text => TYPE_BYTE_ARRAY,
        }
    }

    fn converted(self) -> Option<i64> {
        match self {
            Kind::U16 => Some(UINT_16),
            Kind::U32 => Some(UINT_32),
            Kind::U64 => Some(UINT_64),
            Kind::Text => Some(UTF8),
            Kind::I64 | Kind::Bytes => None,
        }
    }
}

impl<'a> Column<'a> {
    /// Takes the next `rows` items off.
    fn split_off(&mut self, rows: usize) -> Option<&'a [u8]> {
        let length = match self.kind.width() {
            Some(width) => rows.checked_mul(width)?,
            None => (0..rows).try_fold(0usize, |at, _| {
                let length = self.items.get(at..)?.first_chunk::<4>()?;
                at.checked_add(4 + u32::from_le_bytes(*length) as usize)
            })?,
        };
        let (head, tail) = self.items.split_at_checked(length)?;
        self.items = tail;
        Some(head)
    }
}

/// Where a column of a row group is.
struct Chunk {
    offset: usize,
    raw: usize,
    stored: usize,
}

/// Writes a table of `rows` rows. `InvalidInput` where a column has not as many.
pub fn write(path: &Path, mut columns: Vec<Column>, rows: usize) -> Result<()> {
    let mut file = File::create(path)?;
    let mut at = MAGIC.len();
    file.write_all(MAGIC)?;
    let mut groups = Vec::new();
    let mut left = rows;
    // A table without rows has a group without rows: not every reader takes one without groups.
    while left > 0 || groups.is_empty() {
        let count = left.min(ROWS_PER_GROUP);
        left -= count;
        let mut chunks = Vec::with_capacity(columns.len());
        for column in &mut columns {
            let items = column.split_off(count).ok_or_else(|| wrong(column.name, rows))?;
            let (page, raw) = page(column.kind, items, count)?;
            file.write_all(&page)?;
            chunks.push(Chunk { offset: at, raw, stored: page.len() });
            at += page.len();
        }
        groups.push((count, chunks));
    }
    if let Some(column) = columns.iter().find(|column| !column.items.is_empty()) {
        return Err(wrong(column.name, rows));
    }
    let footer = footer(&columns, &groups, rows);
    file.write_all(&footer)?;
    file.write_all(&(footer.len() as u32).to_le_bytes())?;
    file.write_all(MAGIC)
}

fn wrong(name: &str, rows: usize) -> Error {
    Error::new(ErrorKind::InvalidInput, format!("column {name} has not {rows} items"))
}

/// A page with its header, and what the two take without compression.
fn page(kind: Kind, items: &[u8], count: usize) -> Result<(Vec<u8>, usize)> {
    let widened: Vec<u8>;
    let items = if kind == Kind::U16 {
        widened = items.chunks_exact(2).flat_map(|item| [item[0], item[1], 0, 0]).collect();
        &widened
    } else {
        items
    };
    let mut stored = vec![0; zstd_safe::compress_bound(items.len())];
    let length = zstd_safe::compress(&mut stored[..], items, LEVEL)
        .map_err(|code| Error::other(zstd_safe::get_error_name(code)))?;
    stored.truncate(length);
    let mut header = Thrift::default();
    header.number(1, I32, DATA_PAGE);
    header.number(2, I32, items.len() as i64);
    header.number(3, I32, stored.len() as i64);
    header.structure(5, |page| {
        page.number(1, I32, count as i64);
        page.number(2, I32, PLAIN);
        page.number(3, I32, RLE);
        page.number(4, I32, RLE);
    });
    let mut out = header.end();
    let raw = out.len() + items.len();
    out.append(&mut stored);
    Ok((out, raw))
}

fn footer(columns: &[Column], groups: &[(usize, Vec<Chunk>)], rows: usize) -> Vec<u8> {
    let mut file = Thrift::default();
    file.number(1, I32, 1);
    file.list(2, STRUCT, columns.len() + 1);
    file.element(|root| {
        root.binary(4, b"schema");
        root.number(5, I32, columns.len() as i64);
    });
    for column in columns {
        file.element(|schema| {
            schema.number(1, I32, column.kind.physical());
            schema.number(3, I32, REQUIRED);
            schema.binary(4, column.name.as_bytes());
            if let Some(converted) = column.kind.converted() {
                schema.number(6, I32, converted);
            }
        });
    }
    file.number(3, I64, rows as i64);
    file.list(4, STRUCT, groups.len());
    for (count, chunks) in groups {
        file.element(|group| {
            group.list(1, STRUCT, chunks.len());
            for (column, chunk) in columns.iter().zip(chunks) {
                group.element(|out| column_chunk(out, column, chunk, *count));
            }
            group.number(2, I64, chunks.iter().map(|chunk| chunk.raw as i64).sum());
            group.number(3, I64, *count as i64);
        });
    }
    file.binary(6, b"dedupd");
    file.end()
}

fn column_chunk(out: &mut Thrift, column: &Column, chunk: &Chunk, count: usize) {
    out.number(2, I64, chunk.offset as i64);
    out.structure(3, |meta| {
        meta.number(1, I32, column.kind.physical());
        meta.list(2, I32, 2);
        meta.item(PLAIN);
        meta.item(RLE);
        meta.list(3, BINARY, 1);
        meta.bytes(column.name.as_bytes());
        meta.number(4, I32, ZSTD);
        meta.number(5, I64, count as i64);
        meta.number(6, I64, chunk.raw as i64);
        meta.number(7, I64, chunk.stored as i64);
        meta.number(9, I64, chunk.offset as i64);
    });
}

const I32: u8 = 5;
const I64: u8 = 6;
const BINARY: u8 = 8;
const LIST: u8 = 9;
const STRUCT: u8 = 12;

/// A structure in Thrift's compact protocol. Fields come in the order of their numbers.
#[derive(Default)]
struct Thrift {
    out: Vec<u8>,
    last: u8,
}

impl Thrift {
    /// No structure here has fields more than 15 apart.
    fn field(&mut self, number: u8, kind: u8) {
        self.out.push((number - self.last) << 4 | kind);
        self.last = number;
    }

    fn number(&mut self, field: u8, kind: u8, value: i64) {
        self.field(field, kind);
        self.item(value);
    }

    /// A number without a field, in a list.
    fn item(&mut self, value: i64) {
        self.varint((value << 1 ^ value >> 63) as u64);
    }

    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.out.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.out.push(value as u8);
    }

    fn binary(&mut self, field: u8, value: &[u8]) {
        self.field(field, BINARY);
        self.bytes(value);
    }

    fn bytes(&mut self, value: &[u8]) {
        self.varint(value.len() as u64);
        self.out.extend_from_slice(value);
    }

    fn list(&mut self, field: u8, kind: u8, count: usize) {
        const LONG: u8 = 15;
        self.field(field, LIST);
        match u8::try_from(count) {
            Ok(count) if count < LONG => self.out.push(count << 4 | kind),
            _ => {
                self.out.push(LONG << 4 | kind);
                self.varint(count as u64);
            }
        }
    }

    fn structure(&mut self, field: u8, fill: impl FnOnce(&mut Thrift)) {
        self.field(field, STRUCT);
        self.element(fill);
    }

    /// A structure without a field, in a list.
    fn element(&mut self, fill: impl FnOnce(&mut Thrift)) {
        let last = std::mem::take(&mut self.last);
        fill(self);
        self.out.push(0);
        self.last = last;
    }

    fn end(mut self) -> Vec<u8> {
        self.out.push(0);
        self.out
    }
}
