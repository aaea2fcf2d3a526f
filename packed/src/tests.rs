//! Files that other programs wrote, files that are written here, and files that are broken.

use std::io::Write;
use std::sync::Arc;

use flate2::Compression;
use flate2::write::GzEncoder;
use parquet::basic::{Compression as Codec, GzipLevel};
use parquet::data_type::{ByteArray, ByteArrayType, DoubleType, Int64Type};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;

use super::columns::Column;
use super::*;

/// A table of two columns with a missing cell, numbers and a list.
fn written(codec: Codec) -> Vec<u8> {
    let schema = "message table {
        required int64 id;
        optional binary name (UTF8);
        required double seconds;
        required group input_ids (LIST) { repeated group list { required int64 element; } }
    }";
    let schema = Arc::new(parse_message_type(schema).expect("a schema"));
    let properties = Arc::new(WriterProperties::builder().set_compression(codec).build());
    let mut writer = SerializedFileWriter::new(Vec::new(), schema, properties).expect("a writer");
    let mut group = writer.next_row_group().expect("a group");
    let mut column = group.next_column().expect("columns").expect("id");
    column.typed::<Int64Type>().write_batch(&[7, -1], None, None).expect("written");
    column.close().expect("closed");
    let mut column = group.next_column().expect("columns").expect("name");
    let name = ByteArray::from("a, \"b\"");
    column.typed::<ByteArrayType>().write_batch(&[name], Some(&[1, 0]), None).expect("written");
    column.close().expect("closed");
    let mut column = group.next_column().expect("columns").expect("seconds");
    column.typed::<DoubleType>().write_batch(&[0.1, 1e-12], None, None).expect("written");
    column.close().expect("closed");
    let mut column = group.next_column().expect("columns").expect("list");
    column.typed::<Int64Type>().write_batch(&[5, 6, 7, 8], Some(&[1, 1, 1, 1]), Some(&[0, 1, 1, 0])).expect("written");
    column.close().expect("closed");
    group.close().expect("closed");
    writer.into_inner().expect("a file")
}

fn whole(bytes: Vec<u8>) -> Result<Vec<u8>, PackedError> {
    plain(bytes, u64::MAX)
}

const CSV: &str = "id,name,seconds,input_ids\n7,\"a, \"\"b\"\"\",0.1,3\n-1,,0.000000000001,1\n";

#[test]
fn a_table_is_its_csv_whatever_packs_its_pages() {
    for codec in [Codec::UNCOMPRESSED, Codec::SNAPPY, Codec::GZIP(GzipLevel::default())] {
        let text = whole(written(codec)).expect("a table");
        assert_eq!(String::from_utf8(text).expect("text"), CSV, "{codec}");
    }
}

#[test]
fn what_is_written_here_is_read_by_the_formats_own_crate() {
    let columns = [Column::texts("name", [Some("x"), None]), Column::numbers("a_s", [None, Some(0.5)])];
    let text = whole(columnar::render(&columns)).expect("a table");
    assert_eq!(String::from_utf8(text).expect("text"), "name,a_s\nx,\n,0.5\n");
}

#[test]
fn gzip_is_undone_and_text_stays() {
    let mut packed = GzEncoder::new(Vec::new(), Compression::default());
    packed.write_all(b"a,b\n1,2\n").expect("written");
    assert_eq!(whole(packed.finish().expect("packed")).expect("text"), b"a,b\n1,2\n");
    assert_eq!(whole(b"a,b\n".to_vec()).expect("text"), b"a,b\n");
    assert_eq!(whole(Vec::new()).expect("nothing"), b"");
}

#[test]
fn a_small_file_does_not_take_all_memory() {
    let mut packed = GzEncoder::new(Vec::new(), Compression::best());
    packed.write_all(&vec![0; 64 << 20]).expect("written");
    assert!(matches!(whole(packed.finish().expect("packed")), Err(PackedError::Trap)));
    assert_eq!(plain(vec![b'a'; 3 << 20], 2 << 20).expect_err("long").to_string(), "it is longer than 2 MiB");
}

#[test]
fn a_stream_of_gzip_is_undone_as_it_is_read() {
    let packed = |text: &[u8]| {
        let mut packed = GzEncoder::new(Vec::new(), Compression::default());
        packed.write_all(text).expect("written");
        packed.finish().expect("packed")
    };
    // Two parts behind each other are one text, as `gzip -c >>` writes them.
    let parts = [packed(b"a,b\n"), packed(b"1,2\n")].concat();
    assert_eq!(io::read_to_string(Unpacked::new(&parts[..])).expect("text"), "a,b\n1,2\n");
    let trap = packed(&vec![0; 64 << 20]);
    let why = io::copy(&mut Unpacked::new(&trap[..]), &mut io::sink()).expect_err("a trap");
    assert!(why.to_string().contains("more than 200 times as many"), "{why}");
}

/// Every byte of a table changed in turn, and every length cut: read or refused.
#[test]
fn a_broken_table_is_refused() {
    let table = written(Codec::SNAPPY);
    for at in 4..table.len() {
        for change in [1_u8, 0x80, 0xff] {
            let mut bytes = table.clone();
            bytes[at] = bytes[at].wrapping_add(change);
            let _ = whole(bytes);
        }
        assert!(whole(table[..at].to_vec()).is_err(), "cut at {at}");
    }
}

/// What pyarrow 26 wrote: whole numbers, text, structs, numbers, truth, moments, words of a dictionary, lists, lists of one size. The stream has
/// two batches, the file has columns of the large types.
const STREAM: &[u8] = include_bytes!("tests/table.arrows");
const FILE: &[u8] = include_bytes!("tests/table.arrow");
const COMPRESSED: &[u8] = include_bytes!("tests/packed.arrows");
const ARROW_CSV: &str = "id,name,seconds,is_short,input_ids,pair,n_tokens
7,\"a, \"\"b\"\"\",0.1,true,3,2,3
-1,,0.000000000001,false,1,2,1
3,é,,,0,,0
";

#[test]
fn an_arrow_table_is_its_csv() {
    for bytes in [STREAM, FILE] {
        assert!(is_table(bytes));
        assert_eq!(String::from_utf8(whole(bytes.to_vec()).expect("a table")).expect("text"), ARROW_CSV);
    }
    let refused = whole(COMPRESSED.to_vec()).expect_err("it is compressed");
    assert!(matches!(refused, PackedError::Arrow(ArrowError::Compressed)), "{refused}");
    let second = whole([STREAM, STREAM].concat()).expect_err("two tables");
    assert!(matches!(second, PackedError::Arrow(ArrowError::Second)), "{second}");
    assert!(matches!(plain(STREAM.to_vec(), 40), Err(PackedError::TooLong { .. })));
}

/// Every byte changed in turn, and every length cut: read or refused. A cut between two messages is a shorter table.
#[test]
fn a_broken_arrow_table_is_refused() {
    for table in [STREAM, FILE] {
        for at in 0..table.len() {
            for change in [1_u8, 0x7f, 0x80, 0xff] {
                let mut bytes = table.to_vec();
                bytes[at] = bytes[at].wrapping_add(change);
                let _ = plain(bytes, 1 << 20);
            }
            let cut = whole(table[..at].to_vec());
            assert!(
                cut.is_err() || at < 8 || cut.is_ok_and(|text| ARROW_CSV.as_bytes().starts_with(&text)),
                "cut at {at}"
            );
        }
    }
}

#[test]
fn rows_without_bytes_do_not_take_all_memory() {
    // A batch of 2^40 rows whose one column has no buffers: written by hand, as FlatBuffers lay it out.
    let mut bytes = STREAM.to_vec();
    let rows = 2_i64.to_le_bytes();
    let places: Vec<usize> = (0..bytes.len() - 8).filter(|at| bytes[*at..*at + 8] == rows).collect();
    assert!(!places.is_empty());
    for at in places {
        let mut changed = bytes.clone();
        changed[at..at + 8].copy_from_slice(&(1_i64 << 40).to_le_bytes());
        let _ = whole(changed);
    }
    bytes.truncate(4);
    assert!(matches!(whole(bytes), Err(PackedError::Arrow(ArrowError::CutShort))));
}

/// An index of three sequences in two documents, as the format says: 5, 0 and 70,000 tokens of two bytes.
fn megatron() -> Vec<u8> {
    let mut bytes = b"MMIDIDX\0\0".to_vec();
    bytes.extend(1_u64.to_le_bytes());
    bytes.push(8);
    bytes.extend(3_u64.to_le_bytes());
    bytes.extend(3_u64.to_le_bytes());
    bytes.extend([5_i32, 0, 70_000].into_iter().flat_map(i32::to_le_bytes));
    bytes.extend([0_i64, 10, 10].into_iter().flat_map(i64::to_le_bytes));
    bytes.extend([0_i64, 2, 3].into_iter().flat_map(i64::to_le_bytes));
    bytes
}

#[test]
fn an_index_of_megatron_is_its_lengths() {
    assert!(is_table(&megatron()));
    assert_eq!(whole(megatron()).expect("an index"), b"5\n0\n70000\n");
    // Modes of multimodal sequences may follow.
    assert_eq!(whole([megatron(), vec![0, 0, 1]].concat()).expect("an index"), b"5\n0\n70000\n");
    let short = IndexError::Short { n_sequences: 3, n_documents: 3 };
    for length in 9..megatron().len() {
        let why = whole(megatron()[..length].to_vec()).expect_err("it is cut");
        let expected = if length < 34 { IndexError::Head } else { short };
        assert!(matches!(why, PackedError::Index(found) if found == expected), "cut at {length}: {why}");
    }
}

#[test]
fn a_broken_index_is_refused() {
    for at in 9..megatron().len() {
        for change in [1_u8, 0x80, 0xff] {
            let mut bytes = megatron();
            bytes[at] = bytes[at].wrapping_add(change);
            let _ = whole(bytes);
        }
    }
    let mut bytes = megatron();
    bytes[18..26].copy_from_slice(&u64::MAX.to_le_bytes());
    let promised = IndexError::Short { n_sequences: u64::MAX, n_documents: 3 };
    assert!(matches!(whole(bytes), Err(PackedError::Index(found)) if found == promised));
    let mut bytes = megatron();
    bytes[34..38].copy_from_slice(&(-1_i32).to_le_bytes());
    assert!(matches!(whole(bytes), Err(PackedError::Index(IndexError::Negative { at: 0, tokens: -1 }))));
    let mut bytes = megatron();
    bytes[9] = 2;
    assert!(matches!(whole(bytes), Err(PackedError::Index(IndexError::Version(2)))));
}
