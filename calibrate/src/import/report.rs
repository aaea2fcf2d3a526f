//! What an import prints: the error of every curve on what its fit did not see, and the tables that were not used.

use engine::cost::profile::{Profile, Residuals};

use super::by_engine::Imported;

/// Head of a table of errors.
pub const HEAD: &str = "                                  fitted  unseen  median error  90 % error\n";

/// Error of one curve.
pub fn row(name: &str, residuals: &Residuals) -> String {
    format!(
        "{name:32} {:>7} {:>7} {:>11.1} % {:>9.1} %\n",
        residuals.n_fit,
        residuals.n_held_out,
        residuals.median_error * 100.0,
        residuals.p90_error * 100.0
    )
}

/// Errors of a profile.
pub fn of_profile(profile: &Profile) -> String {
    let mut text = HEAD.to_owned();
    for (name, operator) in &profile.operators {
        text += &row(name, &operator.residuals);
    }
    for (name, curve) in &profile.memory {
        text += &row(name, &curve.residuals);
    }
    if let Some(law) = &profile.decode_attention {
        text += &row("decode", &law.residuals);
        text += &law.mixed.as_ref().map_or_else(String::new, |mixed| row("decode, mixed", &mixed.residuals));
    }
    for link in &profile.links {
        text += &row(if link.crosses_nodes { "message across" } else { "message inside" }, &link.residuals);
    }
    text
}

/// Errors of an engine's tables on held-out shapes, table by table, and what was left out of them or not used at all.
pub fn of_engine(imported: &Imported) -> String {
    let mut text = String::new();
    let mut table = "";
    for line in &imported.lines {
        if line.table != table {
            table = &line.table;
            text += &format!("{table}\n{HEAD}");
        }
        text += &row(&line.name, &line.residuals);
        if !line.left_out.is_empty() {
            text += &format!("    {}\n", line.left_out);
        }
    }
    for (path, reason) in &imported.unused {
        text += &format!("not used: {}: {reason}\n", path.display());
    }
    text
}
