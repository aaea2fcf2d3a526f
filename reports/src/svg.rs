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
pub use panels::{latency_curves, load_curves};
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
    let label = escape(label);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" \
         height=\"{height}\" role=\"img\" aria-label=\"{label}\" font-family=\"system-ui, sans-serif\" \
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

/// Square and word for each entry, from `x` at baseline `y`.
pub(crate) fn legend(entries: &[(&str, &str)], x: u32, y: u32) -> String {
    let mut out = String::new();
    let mut at = x;
    for (name, colour) in entries {
        let (top, text) = (y - 10, at + 17);
        out.push_str(&format!(
            "<rect x=\"{at}\" y=\"{top}\" width=\"12\" height=\"12\" fill=\"{colour}\" stroke=\"currentColor\" \
             stroke-opacity=\".4\"/><text x=\"{text}\" y=\"{y}\">{}</text>\n",
            escape(name)
        ));
        at += 34 + 8 * u32::try_from(name.chars().count()).expect("a legend name is short");
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
    fn every_role_has_its_own_colour() {
        let colours: std::collections::BTreeSet<_> = Role::ALL.into_iter().map(colour).collect();
        assert_eq!(colours.len(), Role::ALL.len());
    }
}
