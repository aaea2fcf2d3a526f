//! Pictures as SVG text: coloured by role, readable on a light and on a dark ground.
//!
//! Units: view-box pixels. Invariants: ink takes the colour of the page's text (`currentColor`), every text of a
//! scenario is escaped, and the size is bounded however many tasks there are.
//! Colours: Okabe and Ito, "Color Universal Design" (2008), distinct for colour-blind readers.

pub(crate) mod axis;
mod bars;
mod compared;
mod gantt;
pub(crate) mod graph;
mod histogram;
mod lost;
mod memory;
mod panels;
mod scatter;

pub use bars::{rank_bars, speedup_bars};
pub use compared::ratio_bars;
pub use gantt::{gantt, gantt_until};
pub use histogram::length_histogram;
pub use lost::lost_bars;
pub use memory::memory_areas;
pub use panels::{drawn, latency_curves, load_curves, shows_what_is_paid};
pub use scatter::scatter;

use engine::task::Role;

use crate::quantity::escape;

/// Width of every picture.
pub(crate) const WIDTH: u32 = 1100;

/// Colour of busy compute in pictures that do not tell roles apart.
pub(crate) const BLUE: &str = "#0072B2";
/// Colour of exposed communication, and of the second series.
pub(crate) const ORANGE: &str = "#E69F00";
/// Colour of limits.
pub(crate) const VERMILION: &str = "#D55E00";

/// Colours of things that are compared.
pub(crate) const SERIES: [&str; 6] = [BLUE, ORANGE, "#009E73", "#CC79A7", "#56B4E9", "#8C8C8C"];

/// Colour of a role.
pub(crate) const fn colour(role: Role) -> &'static str {
    match role {
        Role::Forward => BLUE,
        Role::Backward => "#56B4E9",
        Role::WeightGradient => "#44AA99",
        Role::Recompute => "#CC79A7",
        Role::ContextExchange => ORANGE,
        Role::TensorExchange => "#B8860B",
        Role::ExpertExchange => "#7B3294",
        Role::StageExchange => "#A6761D",
        Role::GradientSync => VERMILION,
        Role::ParameterGather => "#F0E442",
        Role::Optimizer => "#009E73",
        Role::Offload => "#8C8C8C",
        Role::Replan => "#332288",
        Role::Sampling => "#117733",
        Role::Gather => "#DDCC77",
    }
}

/// Opening tag of a picture with its name for screen readers.
pub(crate) fn open(height: u32, label: &str) -> String {
    open_above(height, 0, label)
}

/// The same with room above the place where the picture begins, for rows of a legend.
pub(crate) fn open_above(height: u32, above: u32, label: &str) -> String {
    let (label, all) = (escape(label), height + above);
    let top = -i64::from(above);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 {top} {WIDTH} {all}\" width=\"{WIDTH}\" \
         height=\"{all}\" role=\"img\" aria-label=\"{label}\" font-family=\"system-ui, sans-serif\" \
         font-size=\"13\" fill=\"currentColor\">\n"
    )
}

/// A pixel position with one decimal, as short as it can be.
pub(crate) fn px(value: f64) -> String {
    let text = format!("{value:.1}");
    text.strip_suffix(".0").map_or_else(|| text.clone(), str::to_owned)
}

/// Attributes of a text that ends at its place, and of one in whose middle its place is.
pub(crate) const END: &str = " text-anchor=\"end\"";
pub(crate) const MIDDLE: &str = " text-anchor=\"middle\"";

/// A text at a place of its baseline, with further attributes.
pub(crate) fn text((x, y): (f64, f64), attributes: &str, words: &str) -> String {
    format!("<text x=\"{}\" y=\"{}\"{attributes}>{}</text>", px(x), px(y), escape(words))
}

/// A bar from its upper left corner, with its width and height, and what it says where one points at it.
pub(crate) fn bar([x, y, width, height]: [f64; 4], colour: &str, title: &str) -> String {
    let (x, y, width, height, title) = (px(x), px(y), px(width), px(height), escape(title));
    let open = format!("<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" fill=\"{colour}\"");
    if title.is_empty() { open + "/>" } else { format!("{open}><title>{title}</title></rect>") }
}

/// Height of a row of a legend.
const LEGEND_ROW: u32 = 22;

/// Rows of a legend from `x`: how many entries each has. An entry that would reach beyond the picture begins the next row.
fn legend_rows(entries: &[(&str, &str)], x: u32) -> Vec<usize> {
    let (mut rows, mut at) = (vec![0], x);
    for (name, _) in entries {
        let width = legend_width(name);
        let row = rows.last_mut().expect("one was begun");
        if *row > 0 && at + width > WIDTH {
            rows.push(1);
            at = x + width;
        } else {
            *row += 1;
            at += width;
        }
    }
    rows
}

/// Pixels of an entry with the gap behind it.
fn legend_width(name: &str) -> u32 {
    34 + 8 * u32::try_from(name.chars().count()).expect("a legend name is short")
}

/// Pixels that a legend takes above its last row.
pub(crate) fn legend_above(entries: &[(&str, &str)], x: u32) -> u32 {
    let n_rows = legend_rows(entries, x).len();
    LEGEND_ROW * (u32::try_from(n_rows).expect("few rows") - 1)
}

/// Square and word for each entry, from `x`, the last row at baseline `y` and others above it (`open_above`).
pub(crate) fn legend(entries: &[(&str, &str)], x: u32, y: u32) -> String {
    let mut out = String::new();
    let mut baseline = i64::from(y) - i64::from(legend_above(entries, x));
    let mut rest = entries;
    for n in legend_rows(entries, x) {
        let (row, later) = rest.split_at(n);
        let mut at = x;
        for (name, colour) in row {
            let (top, text) = (baseline - 10, at + 17);
            out.push_str(&format!(
                "<rect x=\"{at}\" y=\"{top}\" width=\"12\" height=\"12\" fill=\"{colour}\" stroke=\"currentColor\" \
                 stroke-opacity=\".4\"/><text x=\"{text}\" y=\"{baseline}\">{}</text>\n",
                escape(name)
            ));
            at += legend_width(name);
        }
        (rest, baseline) = (later, baseline + i64::from(LEGEND_ROW));
    }
    out
}

/// Which of `n` ranks are shown when there is room for `n_max`: evenly spread, `always` among them, in order.
pub(crate) fn shown_ranks(n: usize, n_max: usize, always: &[usize]) -> Vec<usize> {
    if n <= n_max {
        return (0..n).collect();
    }
    let mut ranks: Vec<usize> = (0..n_max).map(|index| index * n / n_max).collect();
    ranks.extend(always);
    ranks.sort_unstable();
    ranks.dedup();
    ranks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markup_in_a_name_is_text() {
        assert_eq!(escape("<a b='c'>&\"\n"), "&lt;a b=&#39;c&#39;&gt;&amp;&quot; ");
    }

    #[test]
    fn few_ranks_are_all_shown_and_many_are_spread() {
        assert_eq!(shown_ranks(3, 4, &[]), [0, 1, 2]);
        // 0, 1·10/4, 2·10/4, 3·10/4 and the asked-for 9.
        assert_eq!(shown_ranks(10, 4, &[9]), [0, 2, 5, 7, 9]);
    }

    #[test]
    fn a_legend_stays_inside_the_picture() {
        // An entry of 16 letters takes 34 + 8 · 16 = 162 pixels; six of them fit 1100 - 78, the seventh does not.
        let entries = [("optimizer states", BLUE); 7];
        assert_eq!((legend_rows(&entries, 78), legend_above(&entries, 78)), (vec![6, 1], 22));
        let text = legend(&entries, 78, 16);
        assert!(text.contains("y=\"-6\"") && text.matches("y=\"16\"").count() == 1, "{text}");
        assert_eq!((legend_rows(&[], 78), legend_above(&[], 78)), (vec![0], 0));
    }

    #[test]
    fn every_role_has_its_own_colour() {
        let colours: std::collections::BTreeSet<_> = Role::ALL.into_iter().map(colour).collect();
        assert_eq!(colours.len(), Role::ALL.len());
    }
}
