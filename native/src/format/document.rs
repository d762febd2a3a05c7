//! Compares the layouts with the tables of docs/design/format.md.

use super::cluster::{chunk_frame, file_recipe, kept_frame};
use super::codec::{CODECS, Codec};
use super::record_header::{RECORD_ALIGN_BYTES, RecordKind};
use super::table_entry::State;
use super::{
    deletion, recipe, record_header, saved_index, saved_notes, stream, stub, table_entry, table_map,
};

const TEXT: &str = include_str!("../../../docs/design/format.md");

/// The cells of the table below a heading.
fn rows(heading: &str) -> Vec<Vec<&'static str>> {
    let (_, section) = TEXT.split_once(&format!("### {heading}\n")).expect(heading);
    let table = section.lines().skip_while(|line| !line.starts_with('|'));
    let lines = table.take_while(|line| line.starts_with('|')).skip(2);
    lines.map(|line| line.trim_matches('|').split('|').map(str::trim).collect()).collect()
}

type Fields = &'static [(&'static str, usize, usize)];

/// Compares offset and size of every field of a table, except reserved ones. `renamed` has the
/// names of the document that differ from those of the code.
fn compare(heading: &str, fields: Fields, renamed: &[(&str, &str)]) {
    let is_named = |field: &str| !field.starts_with("reserved");
    let name = |field: &str| {
        let lower = field.to_lowercase();
        renamed.iter().find(|(own, _)| *own == lower).map_or(lower, |(_, name)| (*name).to_owned())
    };
    let coded: Vec<(String, usize, usize)> = fields
        .iter()
        .map(|&(field, start, size)| (name(field), start, size))
        .filter(|(field, ..)| is_named(field))
        .collect();
    let documented: Vec<(String, usize, usize)> = rows(heading)
        .iter()
        .map(|row| {
            let number = |at: usize| row[at].parse().expect(heading);
            (row[2].trim_matches('`').to_owned(), number(0), number(1))
        })
        .filter(|(field, ..)| is_named(field))
        .collect();
    assert_eq!(coded, documented, "{heading}");
}

#[test]
fn every_layout_is_that_of_the_document() {
    compare("Record header (80 bytes)", record_header::fields::FIELDS, &[]);
    compare("Table header (64 bytes)", table_entry::header::FIELDS, &[]);
    compare("Table map block (16 bytes)", table_map::block::FIELDS, &[]);
    compare("Table entry (64 bytes)", table_entry::fields::FIELDS, &[]);
    compare("Deletion (136 bytes)", deletion::head::FIELDS, &[]);
    compare("Recipe node header (40 bytes)", recipe::header::FIELDS, &[]);
    compare("Recipe entry (16 bytes)", recipe::fields::FIELDS, &[]);
    compare("Stub attribute (64 bytes)", stub::fields::FIELDS, &[]);
    compare("Chunk frame (32 bytes)", chunk_frame::fields::FIELDS, &[]);
    compare("Recipe part (96 bytes)", file_recipe::fields::FIELDS, &[]);
    compare("Chunk entry (44 bytes)", file_recipe::entry::FIELDS, &[]);
    compare("Kept frame (48 bytes)", kept_frame::fields::FIELDS, &[]);
    compare("Frame header (32 bytes)", stream::header::FIELDS, &[]);
    compare("Judged file (16 bytes)", saved_notes::judged::FIELDS, &[]);
    compare("Note (16 bytes)", saved_notes::note::FIELDS, &[]);
    let header = saved_index::header::FIELDS;
    let table = [("parts", "groups"), ("runs", "planes"), ("left_over", "stashed")];
    compare("Saved table header (64 bytes)", header, &table);
    let chains = [
        ("group_bits", "reserved"),
        ("parts", "partitions"),
        ("runs", "chains"),
        ("left_over", "buffered"),
    ];
    compare("Saved chains header (64 bytes)", header, &chains);
}

/// Checks that the row of a field has each of `numbers`, followed by its name.
fn has_numbers(heading: &str, field: &str, numbers: &[(u8, &str)]) {
    let rows = rows(heading);
    let row = rows.iter().find(|row| row[2] == format!("`{field}`")).expect(field);
    let said: Vec<&str> = row[3].split(", ").collect();
    let coded: Vec<String> =
        numbers.iter().map(|(number, name)| format!("{number} {name}")).collect();
    assert_eq!(said, coded, "{heading}: {field}");
}

#[test]
fn numbers_have_the_names_of_the_document() {
    let kinds = [
        (RecordKind::DATA.0, "data"),
        (RecordKind::FORWARD.0, "forward"),
        (RecordKind::TOMBSTONE.0, "tombstone"),
        (RecordKind::COPY.0, "copy"),
    ];
    has_numbers("Record header (80 bytes)", "kind", &kinds);
    let codecs = CODECS.map(|codec| {
        let name = match codec {
            Codec::Raw => "raw",
            Codec::Zstd => "zstd",
            Codec::Delta => "delta",
            Codec::Dictionary => "dictionary",
            Codec::Unknown(_) => unreachable!(),
        };
        (codec.number(), name)
    });
    has_numbers("Record header (80 bytes)", "codec", &codecs);
    let states = [
        (State::LIVE.0, "live"),
        (State::ORPHANED.0, "orphaned"),
        (State::MERGED.0, "merged"),
        (State::QUARANTINED.0, "quarantined"),
        (State::TOMBSTONE.0, "tombstone"),
    ];
    has_numbers("Table entry (64 bytes)", "state", &states);
    let flags = [
        (stub::COMMITTING, "committing"),
        (stub::RESTORING, "restoring"),
        (stub::DIRECT, "direct"),
        (stub::WRITTEN, "written"),
        (stub::PARTIAL, "partial"),
    ];
    has_numbers("Stub attribute (64 bytes)", "flags", &flags);
    assert!(TEXT.contains(&format!("each beginning at a multiple of {RECORD_ALIGN_BYTES}")));
}

#[test]
fn sizes_of_saved_indexes_are_those_of_the_document() {
    use saved_index::{
        BLOCK_BITS, BLOCK_ROWS, CHAIN_BLOCKS, CHAIN_PAGES, PAGE_ROWS, bucket, page_entry, stamp,
        stashed, unit,
    };
    let said = [
        format!("a stamp of {} bytes", stamp::BYTES),
        format!("for each stashed entry {} bytes", stashed::BYTES),
        format!("A plane has {} bytes for each bucket", bucket::BYTES),
        format!("block of 4,096 record numbers the upper {} bits", 64 - BLOCK_BITS),
        format!("units of {} KiB", unit::BYTES >> 10),
        format!("chains of {} units each", CHAIN_BLOCKS + CHAIN_PAGES),
        format!("A chain has {CHAIN_BLOCKS} blocks of filters, then up to {CHAIN_PAGES} pages"),
        format!("A page has {PAGE_ROWS} entries of {} bytes", page_entry::BYTES),
        format!("A block has {BLOCK_ROWS} rows of {CHAIN_PAGES} bits"),
    ];
    let text = TEXT.split_whitespace().collect::<Vec<_>>().join(" ");
    for sentence in said {
        assert!(text.contains(&sentence), "{sentence}");
    }
}
