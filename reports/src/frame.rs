//! Tables of numbers that a run leaves for other programs: one row per request, or per moment. Units stand in the names of columns.

use std::io;

/// Columns of numbers; a cell may be empty.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Frame {
    /// Names, with units.
    pub columns: &'static [&'static str],
    /// Cells, row by row, as many as there are columns.
    pub rows: Vec<Vec<Option<f64>>>,
}

/// Writes the frames of several policies as one CSV file with the policy in front.
///
/// # Errors
/// What writing gave.
///
/// # Panics
/// When a row has not as many cells as there are columns.
pub fn csv<W: io::Write>(frames: &[(&str, Frame)], to: W) -> io::Result<()> {
    let mut writer = csv::Writer::from_writer(to);
    let columns = frames.first().map_or(&[][..], |(_, frame)| frame.columns);
    writer.write_field("policy")?;
    writer.write_record(columns)?;
    for (policy, frame) in frames {
        for row in &frame.rows {
            assert_eq!(row.len(), frame.columns.len(), "a row has a cell for every column");
            writer.write_field(policy)?;
            writer.write_record(row.iter().map(|cell| cell.map_or_else(String::new, |number| number.to_string())))?;
        }
    }
    writer.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_follow_each_other_under_one_header() {
        let frame =
            Frame { columns: &["at_s", "running"], rows: vec![vec![Some(0.5), Some(3.0)], vec![Some(1.0), None]] };
        let mut file = Vec::new();
        csv(&[("a, b", frame.clone()), ("c", frame)], &mut file).expect("memory takes all");
        let text = String::from_utf8(file).expect("text");
        assert_eq!(text, "policy,at_s,running\n\"a, b\",0.5,3\n\"a, b\",1,\nc,0.5,3\nc,1,\n");
    }
}
