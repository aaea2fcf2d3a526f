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
