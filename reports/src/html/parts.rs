//! What pages of every report are made of: head, contents, tables, pictures, and the end with the script.

use std::fmt::Write as _;

use crate::quantity::escape;
use crate::{Origin, origin};

const STYLE: &str = include_str!("style.css");

/// The end of a page.
pub(crate) const END: &str = concat!("</main>\n<script>\n", include_str!("report.js"), "</script>\n</body>\n</html>\n");

/// A page up to its first section: nothing may be loaded, and `style` comes after what all pages share.
pub(crate) fn page(title: &str, style: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'\">\n\
         <title>{}</title>\n<style>\n{STYLE}{style}</style>\n</head>\n<body>\n<main>\n",
        escape(title)
    )
}

/// Links to places of the page.
pub(crate) fn contents(out: &mut String, places: &[(String, String)]) {
    out.push_str("<nav aria-label=\"Contents\">\n<ul>\n");
    for (id, name) in places {
        let _ = writeln!(out, "<li><a href=\"#{id}\">{}</a></li>", escape(name));
    }
    out.push_str("</ul>\n</nav>\n");
}

/// What was asked: the question, every section in a line, what else is known, the command, and the scenario's text.
pub(crate) fn asked(out: &mut String, of: &Origin, verb: &str, known: &[(&str, String)]) {
    out.push_str("<section id=\"asked\">\n<h2>What was asked</h2>\n");
    let _ = writeln!(out, "<p>{}</p>", escape(&origin::question(of)));
    let mut facts = origin::facts(of);
    facts.extend(known.iter().map(|(name, line)| ((*name).to_owned(), line.clone())));
    if !of.text.is_empty() {
        facts.push(("Command".to_owned(), origin::command(of, verb)));
    }
    out.push_str("<table class=\"words\">\n<tbody>\n");
    for (name, line) in facts {
        let _ = writeln!(out, "<tr><th scope=\"row\">{}</th><td>{}</td></tr>", escape(&name), escape(&line));
    }
    out.push_str("</tbody>\n</table>\n");
    if !of.text.is_empty() {
        out.push_str("<p class=\"faint\">Keys that the scenario leaves out have their defaults.</p>\n");
        let lines: Vec<String> = of.text.lines().map(escape).collect();
        let text = lines.join("\n");
        let _ = writeln!(out, "<details>\n<summary>The scenario's text</summary>\n<pre>{text}</pre>\n</details>");
    }
    out.push_str("</section>\n");
}

/// Letters of a cell above which its column holds words: they begin at the left and go on in further lines.
const FIGURE_LETTERS_MAX: usize = 24;

/// Whether a column holds words, and no figures. The first one names rows and goes on by itself; an interval stands below its figure.
fn holds_words(rows: &[Vec<String>], column: usize) -> bool {
    let letters = |row: &Vec<String>| row[column].split(" (").next().map_or(0, |figure| figure.chars().count());
    column > 0 && rows.iter().skip(1).any(|row| letters(row) > FIGURE_LETTERS_MAX)
}

/// A table of texts, the first row its headings; `best` is marked, and rows have ids `row…` that pictures link to.
pub(crate) fn table(out: &mut String, rows: &[Vec<String>], best: Option<usize>, ids: &str) {
    out.push_str("<div class=\"scroll\" tabindex=\"0\">\n<table>\n<thead><tr>");
    let headings = rows.first().map_or(&[][..], Vec::as_slice);
    let classes = (0..headings.len()).map(|column| if holds_words(rows, column) { " class=\"words\"" } else { "" });
    let classes: Vec<&str> = classes.collect();
    for (heading, class) in headings.iter().zip(&classes) {
        let _ = write!(out, "<th scope=\"col\"{class}>{}</th>", escape(heading));
    }
    out.push_str("</tr></thead>\n<tbody>\n");
    for (index, row) in rows.iter().skip(1).enumerate() {
        let class = if best == Some(index) { " class=\"best\"" } else { "" };
        let _ = write!(out, "<tr id=\"row-{ids}{index}\"{class}>");
        for (column, cell) in row.iter().enumerate() {
            // An interval stands below its figure, so that a table with several of them fits a screen.
            let cell = if column == 0 { escape(cell) } else { escape(cell).replacen(" (", " <br>(", 1) };
            let _ = match column {
                0 => write!(out, "<th scope=\"row\">{cell}</th>"),
                _ => write!(out, "<td{}>{cell}</td>", classes[column]),
            };
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</tbody>\n</table>\n</div>\n");
}

/// A picture with its caption; nothing where the picture is empty.
pub(crate) fn figure(out: &mut String, svg: &str, caption: &str) {
    if !svg.is_empty() {
        let _ = writeln!(
            out,
            "<figure>\n<div class=\"scroll\">\n{svg}</div>\n<figcaption>{}</figcaption>\n</figure>",
            escape(caption)
        );
    }
}
