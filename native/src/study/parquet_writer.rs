//! Writing flat tables as Parquet, without the GIL and without an object for each item.

use std::fs::File;
use std::io::{Error, ErrorKind, Result};
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use parquet::basic::{Compression, ConvertedType, Repetition, Type as Physical, ZstdLevel};
use parquet::data_type::{ByteArray, ByteArrayType, DataType, Int32Type, Int64Type};
use parquet::errors::{ParquetError, Result as ParquetResult};
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::types::{Type, TypePtr};

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

    fn physical(self) -> Physical {
        match self {
            Kind::U16 | Kind::U32 => Physical::INT32,
            Kind::U64 | Kind::I64 => Physical::INT64,
            Kind::Bytes | Kind::Text => Physical::BYTE_ARRAY,
        }
    }

    fn converted(self) -> ConvertedType {
        match self {
            Kind::U16 => ConvertedType::UINT_16,
            Kind::U32 => ConvertedType::UINT_32,
            Kind::U64 => ConvertedType::UINT_64,
            Kind::Text => ConvertedType::UTF8,
            Kind::I64 | Kind::Bytes => ConvertedType::NONE,
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

/// Writes a table of `rows` rows. `InvalidInput` where a column has not as many.
pub fn write(path: &Path, mut columns: Vec<Column>, rows: usize) -> Result<()> {
    let mut groups = Vec::new();
    let mut left = rows;
    // A table without rows has a group without rows: not every reader takes one without groups.
    while left > 0 || groups.is_empty() {
        let count = left.min(ROWS_PER_GROUP);
        left -= count;
        let group = columns.iter_mut().map(|column| {
            let items = column.split_off(count).ok_or_else(|| wrong(column.name, rows))?;
            Ok((column.kind, items))
        });
        groups.push(group.collect::<Result<Vec<_>>>()?);
    }
    if let Some(column) = columns.iter().find(|column| !column.items.is_empty()) {
        return Err(wrong(column.name, rows));
    }
    write_groups(File::create(path)?, &columns, &groups).map_err(io_error)
}

fn wrong(name: &str, rows: usize) -> Error {
    Error::new(ErrorKind::InvalidInput, format!("column {name} has not {rows} items"))
}

fn io_error(error: ParquetError) -> Error {
    match error {
        ParquetError::External(cause) => match cause.downcast::<Error>() {
            Ok(cause) => *cause,
            Err(other) => Error::other(other),
        },
        other => Error::other(other),
    }
}

type Group<'a> = Vec<(Kind, &'a [u8])>;

fn write_groups(file: File, columns: &[Column], groups: &[Group]) -> ParquetResult<()> {
    // The fingerprints and paths here are too many and too different for dictionaries, and the
    // sums look at all rows, so that statistics would keep nobody from reading any.
    let properties = WriterProperties::builder()
        .set_compression(Compression::ZSTD(ZstdLevel::try_new(LEVEL)?))
        .set_dictionary_enabled(false)
        .set_statistics_enabled(EnabledStatistics::None)
        .set_created_by("dedupd".to_owned())
        .build();
    let mut writer = SerializedFileWriter::new(file, schema(columns)?, Arc::new(properties))?;
    for group in groups {
        let mut out = writer.next_row_group()?;
        for &(kind, items) in group {
            match kind {
                Kind::U16 => put::<Int32Type>(&mut out, numbers(items, u16::from_le_bytes))?,
                Kind::U32 => put::<Int32Type>(&mut out, numbers(items, i32::from_le_bytes))?,
                Kind::U64 | Kind::I64 => {
                    put::<Int64Type>(&mut out, numbers(items, i64::from_le_bytes))?
                }
                Kind::Bytes | Kind::Text => put::<ByteArrayType>(&mut out, byte_arrays(items))?,
            }
        }
        out.close()?;
    }
    writer.close()?;
    Ok(())
}

fn schema(columns: &[Column]) -> ParquetResult<TypePtr> {
    let fields = columns.iter().map(|column| {
        Type::primitive_type_builder(column.name, column.kind.physical())
            .with_repetition(Repetition::REQUIRED)
            .with_converted_type(column.kind.converted())
            .build()
            .map(Arc::new)
    });
    let fields = fields.collect::<ParquetResult<Vec<_>>>()?;
    Type::group_type_builder("schema").with_fields(fields).build().map(Arc::new)
}

fn put<T: DataType>(
    group: &mut SerializedRowGroupWriter<File>,
    values: Vec<T::T>,
) -> ParquetResult<()> {
    let Some(mut column) = group.next_column()? else {
        return Err(ParquetError::General("more columns than the schema has".to_owned()));
    };
    column.typed::<T>().write_batch(&values, None, None)?;
    column.close()
}

fn numbers<const WIDTH: usize, N, T: From<N>>(
    items: &[u8],
    decode: fn([u8; WIDTH]) -> N,
) -> Vec<T> {
    let whole = items.chunks_exact(WIDTH).filter_map(|item| item.first_chunk());
    whole.map(|item| decode(*item).into()).collect()
}

fn byte_arrays(items: &[u8]) -> Vec<ByteArray> {
    let whole = Bytes::copy_from_slice(items);
    let mut at = 0;
    let mut arrays = Vec::new();
    while let Some(length) = whole[at..].first_chunk::<4>() {
        let end = at + 4 + u32::from_le_bytes(*length) as usize;
        arrays.push(whole.slice(at + 4..end).into());
        at = end;
    }
    arrays
}
