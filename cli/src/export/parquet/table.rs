//! One Parquet file: its schema, and rows that are written a row group at a time.
//!
//! Invariant: memory grows with the columns of one row group, not with the number of rows.

use std::fs::OpenOptions;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use parquet::basic::{Compression, Encoding};
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, DataType, DoubleType, Int32Type, Int64Type};
use parquet::file::metadata::KeyValue;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::file::writer::{SerializedColumnWriter, SerializedFileWriter};
use parquet::schema::parser::parse_message_type;
use parquet::schema::types::ColumnPath;

use super::checksum::{CHECKSUM_KEY, ChecksumWriter, NO_DIGITS};

/// The version of the tables' schema, in the metadata of each file.
pub(super) const SCHEMA_VERSION: u32 = 2;
/// The key of that. A file that has it is one of memtrack's tables.
pub(crate) const VERSION_KEY: &str = "memtrack.schema_version";
/// Rows per row group.
const ROWS: usize = 1 << 18;

/// Buffered values of a column.
#[derive(Debug)]
enum ParquetColumn {
    Bool(ColumnValues<bool>),
    Int32(ColumnValues<i32>),
    Int64(ColumnValues<i64>),
    Double(ColumnValues<f64>),
    Text(ColumnValues<ByteArray>),
}

/// The non-null values, and for each row whether it has one.
#[derive(Debug)]
struct ColumnValues<T> {
    there: Vec<T>,
    levels: Vec<i16>,
}

impl<T> Default for ColumnValues<T> {
    fn default() -> Self {
        Self { there: Vec::new(), levels: Vec::new() }
    }
}

impl<T> ColumnValues<T> {
    fn push(&mut self, value: Option<T>) {
        self.levels.push(i16::from(value.is_some()));
        self.there.extend(value);
    }

    /// Writes the buffered values.
    fn flush<D: DataType<T = T>>(&mut self, writer: &mut SerializedColumnWriter<'_>) -> Result<()> {
        writer.typed::<D>().write_batch(&self.there, Some(&self.levels), None)?;
        self.there.clear();
        self.levels.clear();
        Ok(())
    }
}

/// A cell.
#[derive(Clone, Copy, Debug)]
pub(super) enum ParquetCell<'a> {
    Bool(bool),
    Int32(Option<u32>),
    /// A hash, or a number of a column without sign.
    Bits(Option<u64>),
    /// A number of a column with sign; [`i64::MAX`] stands for larger ones, which only a forged capture has.
    Number(Option<u64>),
    Double(Option<f64>),
    Text(Option<&'a str>),
    /// One of a few texts, see [`StringPool`].
    Word(Option<&'static str>),
}

/// Columns whose values are increasing or rarely repeat: no dictionary.
const DISTINCT: [&str; 3] = ["order", "time_ns", "address"];

/// A Parquet file being written.
pub(super) struct ParquetTable {
    writer: SerializedFileWriter<ChecksumWriter>,
    columns: Vec<ParquetColumn>,
    rows: usize,
    strings: StringPool,
}

/// Frequently repeated texts, each allocated once.
#[derive(Debug, Default)]
struct StringPool(Vec<(&'static str, ByteArray)>);

impl StringPool {
    fn get(&mut self, word: &'static str) -> ByteArray {
        if let Some((_, known)) = self.0.iter().find(|(known, _)| std::ptr::eq(*known, word)) {
            return known.clone();
        }
        let new = ByteArray::from(word);
        self.0.push((word, new.clone()));
        new
    }
}

impl ParquetTable {
    /// Creates the file of a table with these columns: name and type.
    ///
    /// # Errors
    /// The file cannot be created.
    pub(super) fn new(path: &Path, name: &str, about: &str, columns: &[(&str, &str)]) -> Result<Self> {
        let field = |(column, kind): &(&str, &str)| match *kind {
            "u32" => format!("optional int32 {column} (INTEGER(32, false));"),
            "i32" => format!("optional int32 {column};"),
            "u64" => format!("optional int64 {column} (INTEGER(64, false));"),
            "i64" => format!("optional int64 {column};"),
            "f64" => format!("optional double {column};"),
            "bool" => format!("optional boolean {column};"),
            _ => format!("optional binary {column} (UTF8);"),
        };
        let fields: String = columns.iter().map(field).collect();
        let schema = parse_message_type(&format!("message {name} {{ {fields} }}"))?;
        let properties = WriterProperties::builder()
            .set_compression(Compression::SNAPPY)
            .set_statistics_enabled(EnabledStatistics::Chunk)
            .set_created_by(format!("memtrack {}", env!("CARGO_PKG_VERSION")))
            .set_key_value_metadata(Some(vec![
                KeyValue::new("memtrack".into(), about.to_owned()),
                KeyValue::new(VERSION_KEY.into(), SCHEMA_VERSION.to_string()),
                KeyValue::new(CHECKSUM_KEY.into(), NO_DIGITS.to_owned()),
            ]));
        let properties =
            columns.iter().filter(|(name, _)| DISTINCT.contains(name)).fold(properties, |all, (name, _)| {
                let column = ColumnPath::from(*name);
                all.set_column_dictionary_enabled(column.clone(), false)
                    .set_column_encoding(column, Encoding::DELTA_BINARY_PACKED)
            });
        // The checksum's place is looked for in what was written.
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(path);
        let file = file.with_context(|| format!("{}: cannot be created", path.display()))?;
        let writer =
            SerializedFileWriter::new(ChecksumWriter::new(file), Arc::new(schema), Arc::new(properties.build()))?;
        let column = |(_, kind): &(&str, &str)| match *kind {
            "u32" | "i32" => ParquetColumn::Int32(ColumnValues::default()),
            "u64" | "i64" => ParquetColumn::Int64(ColumnValues::default()),
            "f64" => ParquetColumn::Double(ColumnValues::default()),
            "bool" => ParquetColumn::Bool(ColumnValues::default()),
            _ => ParquetColumn::Text(ColumnValues::default()),
        };
        Ok(Self { writer, columns: columns.iter().map(column).collect(), rows: 0, strings: StringPool::default() })
    }

    /// Adds a row.
    ///
    /// # Errors
    /// A full row group cannot be written.
    pub(super) fn row<const N: usize>(&mut self, cells: [ParquetCell<'_>; N]) -> Result<()> {
        for (column, cell) in self.columns.iter_mut().zip(cells) {
            match (column, cell) {
                (ParquetColumn::Int32(values), ParquetCell::Int32(value)) => values.push(value.map(u32::cast_signed)),
                (ParquetColumn::Int64(values), ParquetCell::Bits(value)) => values.push(value.map(u64::cast_signed)),
                (ParquetColumn::Int64(values), ParquetCell::Number(value)) => {
                    values.push(value.map(|number| i64::try_from(number).unwrap_or(i64::MAX)));
                }
                (ParquetColumn::Double(values), ParquetCell::Double(value)) => values.push(value),
                (ParquetColumn::Bool(values), ParquetCell::Bool(value)) => values.push(Some(value)),
                (ParquetColumn::Text(values), ParquetCell::Text(value)) => values.push(value.map(ByteArray::from)),
                (ParquetColumn::Text(values), ParquetCell::Word(value)) => {
                    values.push(value.map(|word| self.strings.get(word)));
                }
                _ => bail!("internal error: cell type does not match its column; please report this"),
            }
        }
        self.rows += 1;
        if self.rows >= ROWS { self.flush() } else { Ok(()) }
    }

    /// Writes the buffered rows as a row group.
    fn flush(&mut self) -> Result<()> {
        if self.rows == 0 {
            return Ok(());
        }
        let mut group = self.writer.next_row_group()?;
        for column in &mut self.columns {
            let Some(mut writer) = group.next_column()? else { break };
            match column {
                ParquetColumn::Bool(values) => values.flush::<BoolType>(&mut writer)?,
                ParquetColumn::Int32(values) => values.flush::<Int32Type>(&mut writer)?,
                ParquetColumn::Int64(values) => values.flush::<Int64Type>(&mut writer)?,
                ParquetColumn::Double(values) => values.flush::<DoubleType>(&mut writer)?,
                ParquetColumn::Text(values) => values.flush::<ByteArrayType>(&mut writer)?,
            }
            writer.close()?;
        }
        group.close()?;
        self.rows = 0;
        Ok(())
    }

    /// Completes the file.
    ///
    /// # Errors
    /// It cannot be written.
    pub(super) fn finish(mut self) -> Result<()> {
        self.flush()?;
        self.writer.into_inner()?.seal()?;
        Ok(())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::fs::{self, File};
    use std::path::Path;

    use super::{CHECKSUM_KEY, ParquetCell, ParquetTable};
    use crate::export::parquet::checksum::is_as_written;

    /// A whole table of two rows.
    pub(crate) fn write(path: &Path) {
        let mut table = ParquetTable::new(path, "sites", "{}", &[("process", "u64"), ("service", "text")]).unwrap();
        for process in [1, 2] {
            table.row([ParquetCell::Bits(Some(process)), ParquetCell::Text(Some("shop"))]).unwrap();
        }
        table.finish().unwrap();
    }

    #[test]
    fn no_byte_of_a_table_can_change_unnoticed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("whole.parquet");
        write(&path);
        assert!(is_as_written(&File::open(&path).unwrap()).unwrap());
        let whole = fs::read(&path).unwrap();
        let key = whole.windows(CHECKSUM_KEY.len()).rposition(|text| text == CHECKSUM_KEY.as_bytes()).unwrap();
        // Without its key there is no checksum, and without the length of the footer no metadata.
        let key = key..key + CHECKSUM_KEY.len();
        for at in (0..whole.len() - 8).filter(|at| !key.contains(at)) {
            let mut damaged = whole.clone();
            damaged[at] ^= 0x10;
            fs::write(&path, &damaged).unwrap();
            assert!(!is_as_written(&File::open(&path).unwrap()).unwrap(), "byte {at} of {}", whole.len());
        }
    }
}
