//! What pages of every report are made of: head, contents, tables, pictures, and the end with the script.

use std::fmt::Write as _;

use crate::quantity::escape;

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

/// A table of texts, the first row its headings; `best` is marked, and rows have ids `row…` that pictures link to.
pub(crate) fn table(out: &mut String, rows: &[Vec<String>], best: Option<usize>, ids: &str) {
    out.push_str("<div class=\"scroll\" tabindex=\"0\">\n<table>\n<thead><tr>");
    for heading in rows.first().into_iter().flatten() {
        let _ = write!(out, "<th scope=\"col\">{}</th>", escape(heading));
    }
    out.push_str("</tr></thead>\n<tbody>\n");
    for (index, row) in rows.iter().skip(1).enumerate() {
        let class = if best == Some(index) { " class=\"best\"" } else { "" };
        let _ = write!(out, "<tr id=\"row-{ids}{index}\"{class}>");
        for (column, cell) in row.iter().enumerate() {
            let cell = escape(cell);
            let _ = match column {
                0 => write!(out, "<th scope=\"row\">{cell}</th>"),
                _ => write!(out, "<td>{cell}</td>"),
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
