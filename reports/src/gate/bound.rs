//! What a figure is held against: a ratio to the baseline, or an amount with its unit.

use thiserror::Error;

/// A bound as it was written.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Bound {
    /// A number without a unit: an amount of a count; of other figures a ratio near one, and elsewhere an amount where there is no unit to write.
    Bare(f64),
    /// So many times the baseline's: `1.02x`.
    Times(f64),
    /// An amount in the unit of the metric's key.
    Amount(f64, Dimension),
}

/// What an amount counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dimension {
    Seconds,
    Bytes,
    PerSecond,
    Usd,
    Share,
    Joules,
    WattHours,
    Watts,
    /// Things that are counted: no unit, and an amount always.
    Count,
}

/// Units that a bound may have: what it counts, and how many of the key's unit one is.
const UNITS: [(&str, Dimension, f64); 20] = [
    ("ns", Dimension::Seconds, 1e-9),
    ("us", Dimension::Seconds, 1e-6),
    ("µs", Dimension::Seconds, 1e-6),
    ("ms", Dimension::Seconds, 1e-3),
    ("s", Dimension::Seconds, 1.0),
    ("min", Dimension::Seconds, 60.0),
    ("h", Dimension::Seconds, 3600.0),
    ("B", Dimension::Bytes, 1.0),
    ("MiB", Dimension::Bytes, 1_048_576.0),
    ("GiB", Dimension::Bytes, 1_073_741_824.0),
    ("TiB", Dimension::Bytes, 1_099_511_627_776.0),
    ("/s", Dimension::PerSecond, 1.0),
    ("usd", Dimension::Usd, 1.0),
    ("$", Dimension::Usd, 1.0),
    ("%", Dimension::Share, 0.01),
    ("J", Dimension::Joules, 1.0),
    ("Wh", Dimension::WattHours, 1.0),
    ("kWh", Dimension::WattHours, 1e3),
    ("W", Dimension::Watts, 1.0),
    ("kW", Dimension::Watts, 1e3),
];

/// Distance from 1 up to which a bound without a unit is a ratio. Nobody means half a second by `0.9`, nor a ratio by `2`.
const NEAR_ONE: f64 = 0.5;

impl Dimension {
    /// What a key says that it counts; nothing for plain factors.
    pub(crate) fn of(metric: &str) -> Option<Self> {
        let key = metric.split('.').next().unwrap_or(metric);
        match key {
            _ if key.contains("_usd") => Some(Self::Usd),
            _ if key.contains("_per_s") => Some(Self::PerSecond),
            _ if key.ends_with("_s") => Some(Self::Seconds),
            _ if key.contains("_bytes") => Some(Self::Bytes),
            _ if key.ends_with("_ratio") => Some(Self::Share),
            _ if key.contains("_j_per_") => Some(Self::Joules),
            _ if key.ends_with("_wh") => Some(Self::WattHours),
            _ if key.ends_with("_w") => Some(Self::Watts),
            _ if key.starts_with("n_") || key.ends_with("_failures") => Some(Self::Count),
            _ => None,
        }
    }

    /// Units that a bound on it may have.
    fn units(self) -> String {
        let units: Vec<&str> = UNITS.iter().filter(|(_, of, _)| *of == self).map(|(unit, ..)| *unit).collect();
        units.join(", ")
    }
}

/// Why a bound says nothing, or nothing of a metric.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum WrongBound {
    /// What stands there is no number.
    #[error("the bound is not a number")]
    NotANumber,
    /// A unit that no key has.
    #[error("no unit `{unit}`; `x` is times the baseline's, and units are {}", known())]
    Unit { unit: String },
    /// A number far from one can be a ratio or an amount.
    #[error("{number} may be an amount or a ratio; write `{number}x` for times the baseline's, or a unit: {units}")]
    Ambiguous { number: f64, units: String },
    /// The unit is of something else.
    #[error("`{metric}` has another unit; write {units}")]
    OtherUnit { metric: String, units: String },
    /// A count has no unit.
    #[error("`{metric}` is a number without a unit")]
    NoUnit { metric: String },
}

impl Bound {
    /// Reads `1.02`, `1.02x`, `2s`, `40GiB`, `99%`.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn parse(text: &str) -> Result<Self, WrongBound> {
        let text = text.trim();
        let is_of_number = |c: char| c.is_ascii_digit() || "+-.eE".contains(c);
        let end = text.find(|c| !is_of_number(c)).unwrap_or(text.len());
        let (number, unit) = (&text[..end], text[end..].trim());
        let number: f64 = number.parse().map_err(|_| WrongBound::NotANumber)?;
        if !number.is_finite() {
            return Err(WrongBound::NotANumber);
        }
        match unit {
            "" => Ok(Self::Bare(number)),
            "x" | "×" => Ok(Self::Times(number)),
            _ => match UNITS.iter().find(|(known, ..)| *known == unit) {
                Some((_, dimension, factor)) => Ok(Self::Amount(number * factor, *dimension)),
                None => Err(WrongBound::Unit { unit: unit.to_owned() }),
            },
        }
    }

    /// The number as it was written, in the key's unit.
    pub(crate) const fn number(self) -> f64 {
        match self {
            Self::Bare(number) | Self::Times(number) | Self::Amount(number, _) => number,
        }
    }

    /// Whether it is an amount; else it is a ratio.
    ///
    /// # Errors
    /// When it can be either, or the unit is of something else.
    pub(crate) fn is_amount(self, metric: &str) -> Result<bool, WrongBound> {
        match (self, Dimension::of(metric)) {
            (Self::Times(_), _) => Ok(false),
            (Self::Bare(_), Some(Dimension::Count)) => Ok(true),
            (Self::Amount(..), Some(Dimension::Count)) => Err(WrongBound::NoUnit { metric: metric.to_owned() }),
            (Self::Bare(number), Some(of)) if (number - 1.0).abs() > NEAR_ONE => {
                Err(WrongBound::Ambiguous { number, units: of.units() })
            }
            // A factor has no unit that could say so.
            (Self::Bare(number), None) => Ok((number - 1.0).abs() > NEAR_ONE),
            (Self::Bare(_), Some(_)) => Ok(false),
            (Self::Amount(_, dimension), Some(of)) if dimension == of => Ok(true),
            (Self::Amount(..), Some(of)) => Err(WrongBound::OtherUnit { metric: metric.to_owned(), units: of.units() }),
            (Self::Amount(..), None) => Err(WrongBound::NoUnit { metric: metric.to_owned() }),
        }
    }
}

fn known() -> String {
    UNITS.iter().map(|(unit, ..)| *unit).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_far_from_one_needs_a_unit() {
        let is_amount = |text: &str, metric: &str| Bound::parse(text).and_then(|bound| bound.is_amount(metric));
        assert_eq!(is_amount("1.02", "ttft_s.p99"), Ok(false));
        assert_eq!(is_amount("2s", "ttft_s.p99"), Ok(true));
        assert_eq!(is_amount("2x", "ttft_s.p99"), Ok(false));
        assert!(is_amount("2", "ttft_s.p99").unwrap_err().to_string().contains("write `2x`"));
        assert!(matches!(is_amount("2GiB", "ttft_s.p99"), Err(WrongBound::OtherUnit { .. })));
        assert!(is_amount("2s", "n_refused").is_err());
        // Counts have no unit: a bare number is an amount, so that a looser bound is never the harder one.
        assert_eq!(["0", "1", "2", "2x"].map(|text| is_amount(text, "n_refused")), [true, true, true, false].map(Ok));
        // Factors have no unit either: far from one they are amounts.
        assert_eq!(["1.02", "2", "2x"].map(|text| is_amount(text, "draft_speedup")), [false, true, false].map(Ok));
    }

    #[test]
    fn units_are_those_of_the_key() {
        assert_eq!(Bound::parse("500ms"), Ok(Bound::Amount(0.5, Dimension::Seconds)));
        assert_eq!(Bound::parse("40 GiB"), Ok(Bound::Amount(40.0 * 1_073_741_824.0, Dimension::Bytes)));
        assert_eq!(Bound::parse("99%"), Ok(Bound::Amount(0.99, Dimension::Share)));
        assert_eq!(Bound::parse("0.3J"), Ok(Bound::Amount(0.3, Dimension::Joules)));
        assert_eq!(Bound::parse("2kWh"), Ok(Bound::Amount(2000.0, Dimension::WattHours)));
        let dimensions = ["energy_j_per_output_token", "energy_wh", "gpu_power_w", "run_failures"].map(Dimension::of);
        assert_eq!(dimensions, [Dimension::Joules, Dimension::WattHours, Dimension::Watts, Dimension::Count].map(Some));
        assert_eq!(Bound::parse("3/s"), Ok(Bound::Amount(3.0, Dimension::PerSecond)));
        assert!(Bound::parse("2 parsecs").unwrap_err().to_string().contains("no unit `parsecs`"));
    }
}
