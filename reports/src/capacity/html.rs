//! The capacity report as one page that loads nothing: the answer, the front, the headroom, the sensitivity, the tables.

use std::fmt::Write as _;

use super::chart::{front, load_lines};
use super::{Capacity, changes, fleets};
use crate::html::{END, asked, contents, figure, page, table};
use crate::quantity::{escape, prose};

/// Renders the report.
pub fn render(capacity: &Capacity) -> String {
    let name = escape(&capacity.scenario);
    // Fleets have a number in their second column and words in the last one, unlike the tables of other pages.
    let style = "#front :is(th,td):nth-child(2){text-align:right}#front :is(th,td):last-child{text-align:left}";
    let mut out = page(&format!("Capacity: {} – skrull-sim", capacity.scenario), style);
    let _ = write!(
        out,
        "<header>\n<h1>Capacity: {name}</h1>\n<p class=\"faint\">skrull-sim {}</p>\n",
        escape(&capacity.version)
    );
    contents(&mut out, &places(capacity));
    out.push_str("</header>\n<section id=\"answer\">\n<h2>Answer</h2>\n");
    for (index, sentence) in capacity.lead().iter().enumerate() {
        let class = if index == 0 { " class=\"lead\"" } else { "" };
        let _ = writeln!(out, "<p{class}>{}</p>", prose(sentence));
    }
    out.push_str("</section>\n<section id=\"front\">\n<h2>Price against attainment</h2>\n");
    figure(
        &mut out,
        &front(capacity),
        "Every fleet that was tried. To the left is cheaper, up is more requests within every limit. Bars are intervals; the \
         line joins fleets that no other one beats in both. Dashed: the target. A point leads to its row.",
    );
    table(&mut out, &fleets(capacity), capacity.chosen, "");
    if !capacity.left_out.is_empty() {
        out.push_str("<h3>Left out</h3>\n<ul>\n");
        for (name, why) in &capacity.left_out {
            let _ = writeln!(out, "<li>{}: {}</li>", escape(name), prose(why));
        }
        out.push_str("</ul>\n");
    }
    out.push_str("</section>\n");
    if let Some(headroom) = &capacity.headroom {
        let words = escape(&super::headroom_words(headroom));
        let _ =
            writeln!(out, "<section id=\"headroom\" class=\"detail\">\n<h2>Headroom at the peak</h2>\n<p>{words}</p>");
        figure(
            &mut out,
            &load_lines(headroom, capacity.target_ratio),
            "Share of requests within every limit when the same requests come faster, with its interval; dashed: the target.",
        );
        let breaks = super::breaks_words(headroom, capacity.target_ratio);
        let _ = writeln!(out, "<p>{}</p>\n</section>", prose(&breaks));
    }
    if !capacity.sensitivity.is_empty() {
        out.push_str("<section id=\"changes\" class=\"detail\">\n<h2>If prices or load change</h2>\n");
        table(&mut out, &changes(capacity), None, "change-");
        out.push_str("</section>\n");
    }
    let version = format!("skrull-sim {}", capacity.version);
    asked(&mut out, &capacity.origin, "capacity", &[("Limits", capacity.limits.clone()), ("Version", version)]);
    out.push_str("<section id=\"sources\">\n<h2>Where the figures come from</h2>\n<ul>\n");
    for sentence in &capacity.sources {
        let _ = writeln!(out, "<li>{}</li>", prose(sentence));
    }
    out.push_str("</ul>\n</section>\n");
    out.push_str(END);
    out
}

/// Places of the page and their names.
fn places(capacity: &Capacity) -> Vec<(String, String)> {
    let mut all = vec![("answer", "Answer"), ("front", "Price against attainment")];
    if capacity.headroom.is_some() {
        all.push(("headroom", "Headroom"));
    }
    if !capacity.sensitivity.is_empty() {
        all.push(("changes", "If prices or load change"));
    }
    all.extend([("asked", "What was asked"), ("sources", "Where the figures come from")]);
    all.into_iter().map(|(id, name)| (id.to_owned(), name.to_owned())).collect()
}
