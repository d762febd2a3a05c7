//! Properties of the formats, with random values. Decoding its bytes returns the same value, and a
//! decoder accepts only bytes that its encoder writes.
//!
//! Random bytes fail at the checksum, so half of the inputs are sealed with the magic and the
//! correct checksum. All other fields of such an input are random.

use proptest::collection::vec;
use proptest::prelude::*;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use super::cluster::chunk_frame::{self, ChunkFrame};
use super::cluster::file_recipe::RecipePart;
use super::cluster::kept_frame::{self, Row as KeptRow};
use super::codec::{CODECS, Codec};
use super::deletion::{self, Log};
use super::ids::{Checksum, ContainerNumber, Fingerprint, FingerprintCheck, RecordId};
use super::recipe::{self, Node};
use super::record_header::{self, RECORD_HEADER_BYTES, RecordHeader, RecordKind};
use super::saved_index::{self, Header, Owner, SAVED_CHAINS, SAVED_TABLE};
use super::saved_notes::{self, Judged, Note};
use super::stream;
use super::stub::{self, STUB_BYTES, StubHead, is_settled_stub, stub_head};
use super::suffix::suffix;
use super::table_entry::{self, ENTRY_BYTES, State, TableEntry, seed_in, set_state};
use super::table_map::TableMap;

/// Numbers with any count of bits, so edges are as frequent as the middle.
fn number() -> impl Strategy<Value = u64> {
    (any::<u64>(), 0..64_u32).prop_map(|(number, shift)| number >> shift)
}

fn codec() -> impl Strategy<Value = Codec> {
    any::<u8>().prop_map(Codec::from)
}

prop_compose! {
    fn record_header_of()(
        ordinal: u32, kind: u8, codec in codec(), lengths: (u32, u32), hint: u32,
        fingerprint: Fingerprint, target in number(), checksum: u64, collected: u16,
    ) -> RecordHeader {
        RecordHeader {
            // A header cannot have more collected records before it than its ordinal.
            ordinal: ordinal.max(u32::from(collected)),
            kind: RecordKind(kind % 5),
            codec,
            raw_length: lengths.0,
            stored_length: lengths.1,
            hint,
            fingerprint,
            target,
            checksum: Checksum(checksum),
            collected,
        }
    }
}

prop_compose! {
    fn table_entry_of()(
        fingerprint: Fingerprint, offset in number(), target in number(), lengths: (u32, u32),
        hint: u32, state: u8, codec in codec(),
    ) -> TableEntry {
        TableEntry {
            fingerprint,
            offset,
            target: RecordId(target),
            stored_length: lengths.0,
            raw_length: lengths.1,
            hint,
            state: State(state),
            codec,
        }
    }
}

fn written(header: &RecordHeader, seed: u64) -> [u8; RECORD_HEADER_BYTES] {
    let mut bytes = [0; RECORD_HEADER_BYTES];
    header.write(&mut bytes, seed);
    bytes
}

/// A node of these rows, as written by `dedupd_core/format/recipe.py`.
fn node(level: u8, length: u64, rows: &[(u64, u64)]) -> Vec<u8> {
    let mut head = [0; recipe::header::BYTES];
    recipe::header::MAGIC.put(&mut head, b"DDRP");
    recipe::header::FORMAT.put(&mut head, &[1]);
    recipe::header::LEVEL.put(&mut head, &[level]);
    recipe::header::COUNT.put(&mut head, &(rows.len() as u32).to_le_bytes());
    recipe::header::LENGTH.put(&mut head, &length.to_le_bytes());
    let rows = rows.iter().flat_map(|(id, word)| [id.to_le_bytes(), word.to_le_bytes()]);
    head.into_iter().chain(rows.flatten()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    // --- codecs and ids ---

    #[test]
    fn a_codec_is_its_number(number: u8) {
        let codec = Codec::from(number);
        prop_assert_eq!(codec.number(), number);
        prop_assert_eq!(CODECS.contains(&codec), codec.is_known());
        prop_assert!(!(codec.leans() && codec.stands_alone()));
        prop_assert!(codec.is_known() || !codec.may_be_base());
    }

    #[test]
    fn an_id_is_its_container_and_ordinal(container: u32, ordinal: u32) {
        let id = RecordId::new(ContainerNumber(container), ordinal);
        prop_assert_eq!((id.container().0, id.ordinal()), (container, ordinal));
        prop_assert_eq!(id.is_hole(), container == 0 && ordinal == 0);
        prop_assert_eq!(id.place(), ordinal as usize);
        prop_assert_eq!(RecordId(id.0 >> 1).plus(5).0, (id.0 >> 1) + 5);
    }

    // --- containers and tables ---

    #[test]
    fn a_record_header_comes_back(header in record_header_of(), seed: u64) {
        let bytes = written(&header, seed);
        let back = RecordHeader::sound(&bytes, seed).unwrap();
        prop_assert_eq!(written(&back, seed), bytes);
        prop_assert_eq!(back.kind, header.kind);
        prop_assert_eq!(back.codec, header.codec);
        prop_assert_eq!(
            (back.ordinal, back.raw_length, back.stored_length, back.hint, back.collected),
            (header.ordinal, header.raw_length, header.stored_length, header.hint, header.collected)
        );
        prop_assert_eq!((back.fingerprint, back.target), (header.fingerprint, header.target));
        prop_assert_eq!(back.checksum, header.checksum);
        let entry = header.table_entry(1 << 40);
        prop_assert!(back.agrees_with(&entry, header.ordinal));
    }

    #[test]
    fn a_changed_record_header_is_refused(
        header in record_header_of(), seed: u64, at in 0..RECORD_HEADER_BYTES,
        change in 1..=u8::MAX,
    ) {
        let mut bytes = written(&header, seed);
        bytes[at] ^= change;
        prop_assert!(RecordHeader::sound(&bytes, seed).is_none());
    }

    #[test]
    fn what_is_taken_for_a_record_header_is_one(
        mut bytes: [u8; RECORD_HEADER_BYTES], seed: u64, collected in 0..9_u8, sealed: bool,
    ) {
        use record_header::fields;
        if sealed {
            fields::MAGIC.put(&mut bytes, b"DDRC");
            fields::COLLECTED.put(&mut bytes, &[collected, 0]);
            let check = xxh3_64_with_seed(&bytes[..fields::HEADER_CHECKSUM.start], seed);
            fields::HEADER_CHECKSUM.put(&mut bytes, &check.to_le_bytes());
        }
        let found = RecordHeader::sound(&bytes, seed);
        let is_possible = u32::from(collected) <= fields::ORDINAL.u32(&bytes);
        prop_assert_eq!(found.is_some(), sealed && is_possible);
        if let Some(found) = found {
            prop_assert_eq!(written(&found, seed), bytes);
            // No later use of a header panics.
            let _ = (found.next_ordinal(), found.leans_on(), found.table_entry(u64::MAX));
            if let Some(before) = found.before() {
                prop_assert_eq!(before.next_ordinal(), found.ordinal);
            }
        }
    }

    #[test]
    fn a_table_entry_comes_back(entry in table_entry_of(), seed: u64, state: u8) {
        let bytes = entry.to_bytes(seed);
        let back = TableEntry::sound(&bytes, seed).unwrap();
        prop_assert_eq!(back.to_bytes(seed), bytes);
        prop_assert_eq!(
            (back.fingerprint, back.offset, back.target, back.state, back.codec),
            (entry.fingerprint, entry.offset, entry.target, entry.state, entry.codec)
        );
        prop_assert_eq!(
            (back.stored_length, back.raw_length, back.hint),
            (entry.stored_length, entry.raw_length, entry.hint)
        );
        let (mut changed, state) = (bytes, State(state));
        set_state(&mut changed, state, seed);
        prop_assert_eq!(changed, TableEntry { state, ..entry }.to_bytes(seed));
    }

    #[test]
    fn what_is_taken_for_a_table_entry_is_one(
        mut bytes: [u8; ENTRY_BYTES], seed: u64, sealed: bool,
    ) {
        use table_entry::fields;
        if sealed {
            let check = xxh3_64_with_seed(&bytes[..fields::CHECK.start], seed) as u16;
            fields::CHECK.put(&mut bytes, &check.to_le_bytes());
        }
        let found = TableEntry::sound(&bytes, seed);
        prop_assert!(found.is_some() || !sealed);
        if let Some(found) = found {
            prop_assert_eq!(found.to_bytes(seed), bytes);
        }
    }

    #[test]
    fn the_seed_of_a_table_is_that_of_its_own_container(
        mut bytes: [u8; 64], volume_id: [u8; 16], container: u32, format in 0..5_u16,
        of_other: bool,
    ) {
        use table_entry::header;
        header::MAGIC.put(&mut bytes, b"DEDUPDIR");
        header::FORMAT.put(&mut bytes, &format.to_le_bytes());
        header::CONTAINER.put(&mut bytes, &container.to_le_bytes());
        if format == 1 {
            bytes[header::VOLUME_CHECK.start..header::SEED.end()].copy_from_slice(&volume_id);
        } else {
            header::VOLUME_CHECK.put(&mut bytes, &xxh3_64(&volume_id).to_le_bytes());
        }
        let check = xxh3_64(&bytes[..header::CHECKSUM.start]);
        header::CHECKSUM.put(&mut bytes, &check.to_le_bytes());
        let asked = ContainerNumber(container ^ u32::from(of_other));
        let found = seed_in(&bytes, &volume_id, asked);
        prop_assert_eq!(found.is_some(), (1..=3).contains(&format) && !of_other);
        if let (Some(found), 2 | 3) = (found, format) {
            prop_assert_eq!(found, header::SEED.u64(&bytes));
        }
        bytes[11] ^= 1;
        prop_assert!(seed_in(&bytes, &volume_id, asked).is_none());
    }

    #[test]
    fn a_table_map_comes_back(gaps in vec((0..200_u32, 1..90_u32), 1..8), seed: u64) {
        let mut rows: Vec<(u32, u32)> = Vec::new();
        for (gap, count) in gaps {
            let first = rows.last().map_or(0, |&(_, end)| end) + gap;
            rows.push((first, first + count));
        }
        let map = TableMap::without(&rows, seed);
        let bytes = map.to_bytes();
        let back = TableMap::of(&bytes, seed).unwrap();
        prop_assert_eq!(back.to_bytes(), bytes);
        let end = rows.last().unwrap().1;
        let mut place = 0;
        for ordinal in 0..end + 300 {
            let is_left_out = rows.iter().any(|&(first, end)| (first..end).contains(&ordinal));
            prop_assert_eq!(back.places_below(ordinal), place);
            prop_assert_eq!(back.place(ordinal), (!is_left_out).then_some(place));
            place += u32::from(!is_left_out);
        }
        prop_assert_eq!(back.left_out(), rows.iter().map(|(first, end)| end - first).sum::<u32>());
    }

    #[test]
    fn a_table_map_of_random_bytes_is_refused(bytes in vec(any::<u8>(), 16..200), seed: u64) {
        prop_assert!(TableMap::of(&bytes, seed).is_none());
    }

    // --- stubs and recipes ---

    #[test]
    fn a_stub_attribute_comes_back(
        flags in 0..32_u8, recipe in number(), digest: [u8; 16], covered in number(), mtime_ns: i64,
        binding: u64, local in number(), seed: u64,
    ) {
        let recipe = RecordId(recipe);
        let head = StubHead { flags, recipe, digest, covered, mtime_ns, binding, local };
        let bytes = head.to_bytes(seed);
        let back = stub_head(&bytes, seed).unwrap();
        prop_assert_eq!(
            (back.flags, back.recipe, back.digest, back.covered),
            (flags, recipe, digest, covered)
        );
        prop_assert_eq!((back.mtime_ns, back.binding, back.local), (mtime_ns, binding, local));
        prop_assert_eq!(back.to_bytes(seed), bytes);
        let size = covered.min(i64::MAX as u64) as i64;
        let is_settled = flags & !stub::DIRECT == 0 && local == 0 && covered <= i64::MAX as u64;
        prop_assert_eq!(is_settled_stub(&bytes, size, seed), is_settled);
        if let (Some(longer), true) = (size.checked_add(1), is_settled) {
            prop_assert!(!is_settled_stub(&bytes, longer, seed));
        }
    }

    #[test]
    fn what_is_taken_for_a_stub_attribute_is_one(
        mut bytes in vec(any::<u8>(), STUB_BYTES - 1..=STUB_BYTES + 1), seed: u64,
        flags in 0..64_u8, sealed: bool,
    ) {
        use stub::fields;
        if sealed {
            bytes.resize(STUB_BYTES, 0);
            bytes[..4].copy_from_slice(&[2, flags, 0, 0]);
            fields::CHECK.put(&mut bytes, &[0; 4]);
            let check = xxh3_64_with_seed(&bytes, seed) as u32;
            fields::CHECK.put(&mut bytes, &check.to_le_bytes());
        }
        let found = stub_head(&bytes, seed);
        prop_assert_eq!(found.is_some(), sealed && flags < 32);
        if let Some(found) = found {
            prop_assert_eq!(&found.to_bytes(seed)[..], &bytes[..]);
        }
    }

    #[test]
    fn a_leaf_comes_back(
        rows in vec((0..3_u64, 1..=u32::MAX, any::<u32>()), 1..40), missing in 0..2_u64,
        range in (number(), number()),
    ) {
        // A row of a chunk has its length in the lower half, its check above; a hole only a length.
        let word = |&(id, length, check): &(u64, u32, u32)| match id {
            0 => u64::from(length),
            _ => u64::from(length) | u64::from(check) << 32,
        };
        let words: Vec<_> = rows.iter().map(|row| (row.0, word(row))).collect();
        let length = rows.iter().map(|row| u64::from(row.1)).sum::<u64>();
        let payload = node(0, length - missing, &words);
        let found = Node::of(&payload);
        prop_assert_eq!(found.is_some(), missing == 0);
        let (level, stated, decoded) = recipe::rows_of(&payload).unwrap();
        prop_assert_eq!((level, stated), (0, length - missing));
        for (row, &(id, length, check)) in decoded.zip(&rows) {
            prop_assert_eq!((row.id.0, row.length), (id, u64::from(length)));
            prop_assert!(id == 0 || row.fingerprint_check == FingerprintCheck(check));
        }
        if let Some(found) = found {
            let (start, end) = (range.0 % length, range.1 % length + 1);
            let asked = start..end;
            let touched = found.rows_in(&asked).map(|(at, row)| (at, row.length));
            let touched: Vec<_> = touched.collect();
            let mut expected = Vec::new();
            let mut at = 0;
            for row in &rows {
                let own = u64::from(row.1);
                if at < end && at + own > start {
                    expected.push((at, own));
                }
                at += own;
            }
            if start < end {
                prop_assert_eq!(touched, expected);
            }
        }
    }

    #[test]
    fn what_is_taken_for_a_node_is_one(
        level: u8, rows in vec((number(), number()), 0..6), length in number(), is_sum: bool,
        cut in 0..20_usize, count: Option<u32>,
    ) {
        let own = |&(id, word): &(u64, u64)| match (level, id) {
            (0, 1..) => word & u64::from(u32::MAX),
            _ => word,
        };
        let sum = rows.iter().map(own).try_fold(0_u64, u64::checked_add);
        let length = if is_sum { sum.unwrap_or(0) } else { length };
        let mut payload = node(level, length, &rows);
        if let Some(count) = count {
            recipe::header::COUNT.put(&mut payload, &count.to_le_bytes());
        }
        let is_whole = cut == 0 && count.is_none_or(|count| count as usize == rows.len());
        payload.truncate(payload.len() - cut);
        let has_bytes = !rows.is_empty() && rows.iter().all(|row| own(row) > 0);
        let is_node = is_whole && has_bytes && sum == Some(length);
        let found = Node::of(&payload);
        prop_assert_eq!(found.is_some(), is_node);
        if let Some(found) = found {
            prop_assert_eq!((found.level, found.length), (level, length));
            let names: Vec<_> = found.rows_in(&(0..u64::MAX)).map(|(_, row)| row.id.0).collect();
            prop_assert_eq!(names, rows.iter().map(|row| row.0).collect::<Vec<_>>());
        }
        prop_assert_eq!(recipe::rows_of(&payload).is_some(), is_whole);
    }

    // --- saved indexes and notes ---

    #[test]
    fn a_header_of_a_saved_index_comes_back(
        group_bits in 0..256_u32, counts: [u32; 5], entries: u64, volume_id: [u8; 16], kind: u8,
        is_table: bool,
    ) {
        let (file, other) =
            if is_table { (&SAVED_TABLE, &SAVED_CHAINS) } else { (&SAVED_CHAINS, &SAVED_TABLE) };
        let owner = Owner { volume_id, kind };
        let [parts, containers, blocks, runs, left_over] = counts.map(|count| count as usize);
        let header = Header { group_bits, parts, entries, containers, blocks, runs, left_over };
        let bytes = header.to_bytes(file, &owner);
        let back = Header::of(&bytes, file, &owner).unwrap();
        prop_assert_eq!(back.to_bytes(file, &owner), bytes);
        prop_assert_eq!((back.group_bits, back.parts, back.entries), (group_bits, parts, entries));
        prop_assert_eq!(
            (back.containers, back.blocks, back.runs, back.left_over),
            (containers, blocks, runs, left_over)
        );
        prop_assert!(Header::of(&bytes, other, &owner).is_none());
        let of_other_kind = Owner { volume_id, kind: kind ^ 1 };
        prop_assert!(Header::of(&bytes, file, &of_other_kind).is_none());
    }

    #[test]
    fn random_bytes_are_no_header_of_a_saved_index(
        bytes: [u8; saved_index::header::BYTES], volume_id: [u8; 16], kind: u8,
    ) {
        let owner = Owner { volume_id, kind };
        prop_assert!(Header::of(&bytes, &SAVED_TABLE, &owner).is_none());
    }

    #[test]
    fn a_sealed_body_comes_back(
        body in vec(any::<u8>(), 0..100), change in 1..=u8::MAX, at: usize,
    ) {
        let mut sealed = saved_index::seal(body.clone());
        prop_assert_eq!(saved_index::checked(&sealed), Some(&body[..]));
        let at = at % sealed.len();
        sealed[at] ^= change;
        prop_assert_eq!(saved_index::checked(&sealed), None);
        prop_assert_eq!(saved_index::checked(&body), None);
    }

    #[test]
    fn saved_notes_are_their_bytes(
        bytes: [u8; saved_notes::note::BYTES], prefix: u64, inode in 1..1_u64 << 63,
    ) {
        prop_assert_eq!(Judged::from_bytes(&bytes).to_bytes(), bytes);
        prop_assert_eq!(Note::from_bytes(&bytes).to_bytes(), bytes);
        let note = Note::new(prefix, inode);
        prop_assert_eq!((note.prefix, note.inode(), note.is_new()), (prefix, Some(inode), true));
        prop_assert_eq!(note.joined().inode(), Some(inode));
        prop_assert!(!note.joined().is_new());
    }

    // --- streams and logs ---

    #[test]
    fn a_frame_header_has_its_fields(
        kind: u8, codec in codec(), sequence: u32, raw_length: u32,
        payload in vec(any::<u8>(), 0..60), seed: u64,
    ) {
        use stream::header;
        let mut frame = vec![0xFF; stream::HEADER_BYTES];
        frame.extend(&payload);
        let head = stream::Head { kind, codec, sequence, raw_length };
        stream::write_header(&mut frame, head, seed).unwrap();
        let (written, after) = frame.split_at(stream::HEADER_BYTES);
        prop_assert_eq!(after, &payload);
        prop_assert_eq!(header::MAGIC.of(written), b"DDSF");
        prop_assert_eq!(header::KIND.u8(written), kind);
        prop_assert_eq!(header::CODEC.u8(written), codec.number());
        prop_assert_eq!(header::SEQUENCE.u32(written), sequence);
        prop_assert_eq!(header::RAW_LENGTH.u32(written), raw_length);
        prop_assert_eq!(header::STORED_LENGTH.u32(written) as usize, payload.len());
        prop_assert_eq!((header::RESERVED.u16(written), header::RESERVED_END.u32(written)), (0, 0));
        let covered = &written[..header::CHECKSUM.start];
        let check = xxh3_64_with_seed(covered, xxh3_64_with_seed(&payload, seed));
        prop_assert_eq!(header::CHECKSUM.u64(written), check);
    }

    #[test]
    fn a_suffix_is_what_follows_the_last_dot(
        name in vec(prop_oneof![Just(b'.'), any::<u8>()], 0..12),
    ) {
        let found = suffix(&name);
        prop_assert!(!found.contains(&b'.'));
        if found.is_empty() {
            let dots = name.iter().skip(1).filter(|&&byte| byte == b'.').count();
            prop_assert!(dots == 0 || name.ends_with(b"."));
        } else {
            let before = &name[..name.len() - found.len()];
            prop_assert!(name.ends_with(found) && before.len() > 1 && before.ends_with(b"."));
        }
    }

    #[test]
    fn a_deletion_comes_back(
        mut head: [u8; deletion::head::BYTES], cause in 0..6_u8, path in "[a-z/.]{0,20}",
        name in "(user|trusted)\\.[a-z]{1,5}", seed: u64, base in 0..1000_usize,
        change: Option<(usize, u8)>,
    ) {
        use deletion::head;
        let mut tail = path.clone().into_bytes();
        tail.extend((name.len() as u16).to_le_bytes());
        tail.extend(3_u32.to_le_bytes());
        tail.extend(name.as_bytes());
        tail.extend(b"abc");
        head::MAGIC.put(&mut head, b"DDDL");
        head::CAUSE.put(&mut head, &[cause]);
        head::PATH_BYTES.put(&mut head, &(path.len() as u16).to_le_bytes());
        head::ATTRIBUTES.put(&mut head, &1_u16.to_le_bytes());
        head::ATTRIBUTES_BYTES.put(&mut head, &((tail.len() - path.len()) as u32).to_le_bytes());
        deletion::seal(&mut head, &tail, seed, base * 8);
        let mut data = [&head[..], &tail].concat();
        let bytes = data.len();
        if let Some((at, change)) = change {
            data[at % bytes] ^= change;
        }
        let is_changed = change.is_some_and(|(_, change)| change != 0);
        data.resize(bytes.next_multiple_of(8), 0);
        let log = Log { data: &data, base: base * 8, seed, is_proven: true, uid: None };
        let found = log.content();
        let leads_out = path.starts_with('/') || path.split('/').any(|part| part == "..");
        let is_sound = !is_changed && (1..=4).contains(&cause) && !leads_out;
        prop_assert_eq!(found.rows.len(), usize::from(is_sound));
        prop_assert_eq!(found.lost_bytes > 0, !is_sound);
        if let [row] = &found.rows[..] {
            prop_assert_eq!((&row.path[..], row.offset as usize), (path.as_bytes(), base * 8));
            prop_assert_eq!(&row.fields[..], &head[..deletion::FIELDS_BYTES]);
            let is_listed = !name.starts_with("user.");
            let listed = if is_listed { name + "\0" } else { String::new() };
            prop_assert_eq!(&row.names[..], listed.as_bytes());
        }
    }

    #[test]
    fn a_log_of_random_bytes_has_no_deletions(
        mut data in vec(any::<u8>(), 0..400), magics in vec(0..50_usize, 0..4), seed: u64,
        is_proven: bool,
    ) {
        for place in magics {
            if let Some(word) = data.get_mut(place * 8..place * 8 + 4) {
                word.copy_from_slice(b"DDDL");
            }
        }
        let log = Log { data: &data, base: 0, seed, is_proven, uid: None };
        prop_assert!(log.content().rows.is_empty());
        prop_assert_eq!(log.spans().count(), 0);
    }

    // --- the store in a cluster ---

    #[test]
    fn what_is_taken_for_a_chunk_frame_is_one(
        mut object in vec(any::<u8>(), 0..80), fingerprint: Fingerprint, codec in 0..6_u8,
        sealed: bool,
    ) {
        use chunk_frame::fields;
        let is_sealed = sealed && object.len() >= chunk_frame::FRAME_BYTES;
        if is_sealed {
            let stored = (object.len() - chunk_frame::FRAME_BYTES) as u32;
            fields::MAGIC.put(&mut object, b"DDRF");
            object[4..8].copy_from_slice(&[1, codec, 0, 0]);
            fields::STORED_LENGTH.put(&mut object, &stored.to_le_bytes());
            let seed = super::ids::hash_of(&fingerprint);
            let check = xxh3_64_with_seed(&object[..fields::HEADER_CHECK.start], seed);
            fields::HEADER_CHECK.put(&mut object, &check.to_le_bytes());
        }
        let found = ChunkFrame::of(&object, &fingerprint);
        prop_assert_eq!(found.is_some(), is_sealed && Codec::from(codec).stands_alone());
        if let Some(found) = found {
            prop_assert_eq!(found.payload, &object[chunk_frame::FRAME_BYTES..]);
            prop_assert_eq!(found.codec.number(), codec);
            prop_assert_eq!(found.raw_length, fields::RAW_LENGTH.u32(&object));
            prop_assert_eq!(found.checksum.0, fields::CHECKSUM.u64(&object));
        }
        object.pop();
        prop_assert!(ChunkFrame::of(&object, &fingerprint).is_none());
    }

    #[test]
    fn random_bytes_are_no_part_of_a_recipe(
        mut object in vec(any::<u8>(), 0..300), version: [u8; 16], part: u32,
    ) {
        if object.len() > 4 {
            object[..4].copy_from_slice(b"DDRM");
        }
        prop_assert!(RecipePart::of(&object, &version, part).is_none());
    }

    #[test]
    fn a_kept_frame_comes_back(
        name: [u8; 32], offset: u32, length: u32, segment: u32, rest in vec(any::<u8>(), 0..100),
    ) {
        let row = KeptRow { name, offset, length };
        let mut list = row.to_bytes(segment).to_vec();
        prop_assert_eq!(list.len(), kept_frame::ROW_BYTES);
        list.extend(rest);
        prop_assert_eq!(KeptRow::all(&list, segment).collect::<Vec<_>>(), vec![row]);
        prop_assert_eq!(KeptRow::all(&list, segment ^ 1).count(), 0);
    }
}
