//! A Parquet table as CSV: a heading, a line for each row, in the order of the file.
//!
//! A missing cell is empty. A list is written as how many elements it has: of a tokenised data set that is the length of a sequence. Moments
//! are written as text in UTC.

use std::fmt::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};

use parquet::data_type::AsBytes;
use parquet::errors::ParquetError;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::{Field, Row};

use crate::csv::{quoted, separate};
use crate::{Limit, PackedError};

/// The text of a table.
pub fn csv(bytes: Vec<u8>, limit: Limit) -> Result<Vec<u8>, PackedError> {
    // The reader of others is to refuse a broken file; where it stops instead, the file is as broken.
    let written = catch_unwind(AssertUnwindSafe(|| written(bytes, limit)));
    written.unwrap_or_else(|_| Err(PackedError::Parquet("its parts contradict each other".to_owned())))
}

fn written(bytes: Vec<u8>, limit: Limit) -> Result<Vec<u8>, PackedError> {
    let broken = |why: ParquetError| PackedError::Parquet(why.to_string());
    let reader = SerializedFileReader::new(bytes::Bytes::from(bytes)).map_err(broken)?;
    let schema = reader.metadata().file_metadata().schema_descr_ptr();
    let names: Vec<&str> = schema.root_schema().get_fields().iter().map(|field| field.name()).collect();
    let mut text = String::new();
    for (at, name) in names.iter().enumerate() {
        separate(&mut text, at);
        quoted(&mut text, name);
    }
    text.push('\n');
    for row in reader.get_row_iter(None).map_err(broken)? {
        line(&mut text, &row.map_err(broken)?);
        limit.check(text.len() as u64)?;
    }
    Ok(text.into_bytes())
}

fn line(text: &mut String, row: &Row) {
    for (at, (_, field)) in row.get_column_iter().enumerate() {
        separate(text, at);
        cell(text, field);
    }
    text.push('\n');
}

fn cell(text: &mut String, field: &Field) {
    let done = match field {
        Field::Null => Ok(()),
        Field::Str(word) => {
            quoted(text, word);
            Ok(())
        }
        Field::Bytes(bytes) => {
            quoted(text, &String::from_utf8_lossy(bytes.as_bytes()));
            Ok(())
        }
        Field::ListInternal(list) => write!(text, "{}", list.len()),
        // Shortest digits that give the number back.
        Field::Float(number) => write!(text, "{number}"),
        Field::Double(number) => write!(text, "{number}"),
        other => {
            quoted(text, &other.to_string());
            Ok(())
        }
    };
    done.expect("text takes everything");
}
