//! CSV traces: columns by the names of the header, fields checked one by one.

use super::instant::{self, NS_PER_S, Unit};
use super::{Faults, Format, Parsed, Row};
use crate::request::TOKENS_MAX;

/// Positions of arrival, prompt and output.
pub(super) type Columns = [Option<usize>; 3];

/// Names of arrival, prompt and output columns; whether the arrival may be missing.
const fn names(format: Format) -> ([&'static str; 3], bool) {
    match format {
        Format::BurstGpt => (["Timestamp", "Request tokens", "Response tokens"], false),
        Format::Vidur => (["arrived_at", "num_prefill_tokens", "num_decode_tokens"], true),
        _ => (["TIMESTAMP", "ContextTokens", "GeneratedTokens"], false),
    }
}

/// Finds the columns; `None` when one is missing, with a fault for each.
pub(super) fn header(format: Format, line: u64, text: &str, faults: &mut Faults) -> Option<Columns> {
    let (wanted, arrival_is_optional) = names(format);
    let found: Vec<&str> = text.split(',').map(|name| name.trim().trim_matches('"')).collect();
    let columns = wanted.map(|name| found.iter().position(|known| *known == name));
    let mut is_whole = true;
    for (index, (name, column)) in wanted.iter().zip(&columns).enumerate() {
        if column.is_none() && !(index == 0 && arrival_is_optional) {
            faults.add(line, 1, format!("column `{name}` is missing; the header has {}", found.join(", ")));
            is_whole = false;
        }
    }
    is_whole.then_some(columns)
}

/// Reads a row.
pub(super) fn row(format: Format, columns: Option<&Columns>, line: u64, text: &str, faults: &mut Faults) -> Parsed {
    let Some(columns) = columns else { return Parsed::Bad };
    let (names, _) = names(format);
    let before = faults.found.len() as u64 + faults.n_more;
    let mut field = |index: usize| {
        let column = columns[index]?;
        let found = at(text, column);
        if found.is_none() {
            faults.add(line, text.len() + 1, format!("the row ends before column `{}`", names[index]));
        }
        found
    };
    let (arrival, prompt, output) = (field(0), field(1), field(2));
    let at_column = arrival.map_or(1, |(column, _)| column);
    let at_ns = arrival.and_then(|(column, text)| match moment(format, text) {
        Ok(ns) => Some(ns),
        Err(reason) => {
            faults.add(line, column, reason.to_string());
            None
        }
    });
    // A request that failed has no response.
    let low = u32::from(format != Format::BurstGpt);
    let mut count = |name: &str, field: Option<(usize, &str)>, low: u32| {
        let (column, text) = field?;
        match tokens(text, low) {
            Ok(count) => Some(count),
            Err(reason) => {
                faults.add(line, column, format!("`{name}` {reason}"));
                None
            }
        }
    };
    let (prompt, output) = (count(names[1], prompt, low), count(names[2], output, low));
    if faults.found.len() as u64 + faults.n_more > before {
        return Parsed::Bad;
    }
    match (prompt, output) {
        (Some(0), _) | (_, Some(0)) => Parsed::LeftOut,
        (Some(prompt), Some(output)) => Parsed::Row(Row { at_ns, at_column, prompt, output, ..Row::default() }),
        _ => Parsed::Bad,
    }
}

/// A field and its column, counted from 1.
fn at(text: &str, index: usize) -> Option<(usize, &str)> {
    let mut start = 0;
    for (position, field) in text.split(',').enumerate() {
        if position == index {
            return Some((start + 1, field.trim().trim_matches('"')));
        }
        start += field.len() + 1;
    }
    None
}

/// Why a field has no meaning.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum Unread {
    #[error("is `{text}`, allowed are whole numbers from {low} to {TOKENS_MAX}")]
    Tokens { text: String, low: u32 },
    #[error("`{0}` is not a time, expected `2023-11-16 18:15:46.6805900`")]
    Date(String),
    #[error("arrival `{0}` is not a time in seconds from 0 on")]
    Arrival(String),
}

/// A token count; some traces write counts as `12.0`.
fn tokens(text: &str, low: u32) -> Result<u32, Unread> {
    let whole = text.strip_suffix(".0").unwrap_or(text);
    match whole.parse::<u32>() {
        Ok(count) if (low..=TOKENS_MAX).contains(&count) => Ok(count),
        _ => Err(Unread::Tokens { text: text.to_owned(), low }),
    }
}

/// An arrival in nanoseconds.
fn moment(format: Format, text: &str) -> Result<i128, Unread> {
    if format == Format::Azure {
        return date(text).ok_or_else(|| Unread::Date(text.to_owned()));
    }
    instant::of_text(text, Unit::Seconds).ok_or_else(|| Unread::Arrival(text.to_owned()))
}

/// Nanoseconds since 2000-01-01 of `YYYY-MM-DD HH:MM:SS.fffffff`.
fn date(text: &str) -> Option<i128> {
    let (day, clock) = text.split_once([' ', 'T'])?;
    let whole = |text: &str, range: std::ops::RangeInclusive<i64>| {
        text.parse::<i64>().ok().filter(|value| range.contains(value))
    };
    let mut parts = day.split('-');
    let (year, month, date) = (parts.next()?, parts.next()?, parts.next()?);
    let (year, month, date) = (whole(year, 2000..=2999)?, whole(month, 1..=12)?, whole(date, 1..=31)?);
    let mut parts = clock.trim_end_matches('Z').split("+00:00").next()?.splitn(3, ':');
    let (hour, minute, second) = (whole(parts.next()?, 0..=23)?, whole(parts.next()?, 0..=59)?, parts.next()?);
    let second = instant::of_text(second, Unit::Seconds).filter(|ns| *ns < 61 * NS_PER_S)?;
    // Days of the proleptic Gregorian calendar, with years that start in March.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = 365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + date - 1;
    let since_2000 = days - 730_425;
    Some(i128::from(since_2000 * 86_400 + hour * 3600 + minute * 60) * NS_PER_S + second)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_count_from_2000() {
        // 2000-03-01 is day 60 of a leap year; 2001-01-01 is day 366.
        assert_eq!(date("2000-01-01 00:00:00.0"), Some(0));
        assert_eq!(date("2000-03-01 00:00:01.5"), Some(60 * 86_400 * NS_PER_S + 1_500_000_000));
        assert_eq!(date("2001-01-01 01:01:00"), Some((366 * 86_400 + 3660) * NS_PER_S));
        assert_eq!(date("2001-13-01 01:01:00"), None);
        assert_eq!(date("yesterday"), None);
    }
}
