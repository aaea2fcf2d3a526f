//! Shares of sequences and of tokens by sequence length, in bins from one power of two to the next.

use std::fmt::Write as _;

use super::axis::{Axis, tick};
use super::{BLUE, MIDDLE, ORANGE, WIDTH, bar, legend, open, px, text};
use crate::quantity::{float, float_of, percent, power_of_two};

const LEFT: f64 = 66.0;
const TOP: f64 = 34.0;
const PLOT_HEIGHT: f64 = 206.0;

/// Shares of one bin: of sequences, and of tokens.
type Bin = [f64; 2];

/// Draws the bins; empty without lengths, and where all are equal.
pub fn length_histogram(lengths: &[u64]) -> String {
    if lengths.windows(2).all(|pair| pair[0] == pair[1]) {
        return String::new();
    }
    let exponents: Vec<u32> = lengths.iter().filter(|&&length| length > 0).map(|length| length.ilog2()).collect();
    let (Some(&first), Some(&last)) = (exponents.iter().min(), exponents.iter().max()) else {
        return String::new();
    };
    let bins = bins(lengths, first, (last - first + 1) as usize);
    let highest = bins.iter().flatten().fold(0.01, |most: f64, share| most.max(*share));
    let y = Axis { from: 0.0, to: highest * 1.08, start: TOP + PLOT_HEIGHT, length: -PLOT_HEIGHT };
    let mut out = open(296, "Shares of sequences and of tokens by sequence length");
    out.push_str(&legend(&[("share of sequences", BLUE), ("share of tokens", ORANGE)], 78, 16));
    grid(&mut out, &y);
    let pitch = (f64::from(WIDTH) - LEFT - 28.0) / float_of(bins.len());
    for (index, bin) in bins.iter().enumerate() {
        let left = LEFT + pitch * float_of(index);
        let exponent = first + u32::try_from(index).expect("at most 64 bins");
        pair(&mut out, bin, (left, pitch), exponent, &y);
    }
    let end = LEFT + pitch * float_of(bins.len());
    let _ = writeln!(out, "{}", text((end, y.start + 18.0), MIDDLE, &power_of_two(last + 1)));
    let words = "length in tokens, from one label to the next";
    let _ = writeln!(out, "{}\n</svg>", text((f64::from(WIDTH) / 2.0, 288.0), MIDDLE, words));
    out
}

fn bins(lengths: &[u64], first: u32, n_bins: usize) -> Vec<Bin> {
    let mut bins = vec![[0.0; 2]; n_bins];
    let (mut sequences, mut tokens) = (0.0, 0.0);
    for &length in lengths.iter().filter(|&&length| length > 0) {
        let bin = &mut bins[(length.ilog2() - first) as usize];
        bin[0] += 1.0;
        bin[1] += float(length);
        sequences += 1.0;
        tokens += float(length);
    }
    bins.into_iter().map(|[n, held]| [n / sequences, held / tokens]).collect()
}

fn grid(out: &mut String, y: &Axis) {
    for share in y.lines() {
        let at = px(y.at(share));
        let _ = writeln!(
            out,
            "<path d=\"M{LEFT} {at}H{}\" stroke=\"currentColor\" stroke-opacity=\".2\"/>\
             <text x=\"{}\" y=\"{at}\" dy=\"4\" text-anchor=\"end\">{}</text>",
            WIDTH - 28,
            LEFT - 8.0,
            tick(&percent(share))
        );
    }
}

/// The two bars of a bin, and the length at which it begins.
fn pair(out: &mut String, bin: &Bin, (left, pitch): (f64, f64), exponent: u32, y: &Axis) {
    let (from, to) = (power_of_two(exponent), power_of_two(exponent + 1));
    for (index, (share, colour)) in bin.iter().zip([BLUE, ORANGE]).enumerate() {
        let x = left + pitch * (0.08 + 0.43 * float_of(index));
        let what = ["of sequences", "of tokens"][index];
        let title = format!("{} {what} have {from} to {to} tokens", percent(*share));
        let place = [x, y.at(*share), pitch * 0.41, y.start - y.at(*share)];
        let _ = writeln!(out, "{}", bar(place, colour, &title));
    }
    let _ = writeln!(out, "{}", text((left, y.start + 18.0), MIDDLE, &from));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_sequence_is_few_sequences_and_many_tokens() {
        // Three of 1 and one of 5: lengths 1, 2 to 3, 4 to 7.
        assert_eq!(bins(&[1, 1, 1, 5], 0, 3), [[0.75, 0.375], [0.0, 0.0], [0.25, 0.625]]);
    }

    #[test]
    fn every_bin_has_both_its_ends() {
        let picture = length_histogram(&[1, 2, 5]);
        for label in ["1", "2", "4", "8"] {
            assert!(picture.contains(&format!(">{label}</text>")), "{label}: {picture}");
        }
    }

    #[test]
    fn no_lengths_no_histogram() {
        assert_eq!(length_histogram(&[]), "");
        assert_eq!(length_histogram(&[0]), "");
    }
}
