//! `docs/combinations.md`: the table, in Markdown.

use reports::Ended;
use std::collections::BTreeMap;

use super::evidence::{MECHANISMS, tells_of_stragglers};
use super::{Cells, SLOW};

const HEAD: &str = "# Policies beside mechanisms\n\n\
Every training policy is planned and played beside every mechanism of a training step, on a small problem of 16 GPUs with ragged lengths.\n\
*runs*: the plan passes the checker, and the step shows the mechanism, which the same step without it does not. It shows as an all-to-all, a second\n\
stage, less memory, a slower lane or fewer bytes. A number: the policy refuses it, for the reason below the table; its row has the status `infeasible`\n\
and the same words. Nothing is ignored.\n\n\
This page is written by `UPDATE_PAGES=1 cargo test --test main combinations`; the same test holds it.\n\n";

/// Reasons in order of their numbers.
#[derive(Default)]
struct Reasons(Vec<String>);

impl Reasons {
    /// Number of a reason, from 1.
    fn number(&mut self, why: &str) -> usize {
        let known = self.0.iter().position(|of| of == why);
        known.unwrap_or_else(|| {
            self.0.push(why.to_owned());
            self.0.len() - 1
        }) + 1
    }
}

/// The page of these cells.
pub(super) fn page(cells: &Cells) -> String {
    let mut reasons = Reasons::default();
    let mut text = HEAD.to_owned() + &table(cells, &mut reasons);
    text += "\nReasons:\n\n";
    for (index, why) in reasons.0.iter().enumerate() {
        text += &format!("{}. {why}\n", index + 1);
    }
    text + &pairs(cells) + &notes(cells)
}

fn table(cells: &Cells, reasons: &mut Reasons) -> String {
    let mut text = "| policy |".to_owned();
    MECHANISMS.iter().for_each(|of| text += &format!(" {} |", of.name));
    text += "\n|---|";
    MECHANISMS.iter().for_each(|_| text += "---|");
    text += "\n";
    for policy in planner::train::policies::POLICIES {
        let name = policy.card().name;
        text += &format!("| `{name}` |");
        for mechanism in &MECHANISMS {
            let row = &cells[&(name, vec![mechanism.name])].row;
            match row.status {
                Ended::Ok => text += " runs |",
                _ => text += &format!(" {} |", reasons.number(&row.why)),
            }
        }
        text += "\n";
    }
    text
}

/// What pairs add: those that are refused though both run alone.
fn pairs(cells: &Cells) -> String {
    let is_ok = |policy, names: Vec<&'static str>| cells[&(policy, names)].row.status.is_ok();
    let mut lines = String::new();
    for ((policy, names), cell) in cells {
        let [first, second] = names[..] else { continue };
        if !cell.row.status.is_ok() && is_ok(policy, vec![first]) && is_ok(policy, vec![second]) {
            lines += &format!("- `{policy}`, {first} and {second}: {}\n", cell.row.why);
        }
    }
    let slow = SLOW.map(|name| format!("`{name}`")).join(" and ");
    let n = cells.keys().filter(|(_, names)| names.len() == 2).count();
    let head = format!(
        "\n## Pairs\n\nThe same is asked of {n} pairs ({slow}, which plan for longer, stand beside one mechanism at a time)."
    );
    if lines.is_empty() {
        return head + " A pair runs where both run alone.\n";
    }
    head + " These are refused though both run alone; every other pair runs.\n\n" + &lines
}

/// What policies say of stragglers.
fn notes(cells: &Cells) -> String {
    let mut said: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for policy in planner::train::policies::POLICIES {
        let name = policy.card().name;
        let facts = cells[&(name, vec!["stragglers"])].row.planner.iter();
        let note = facts.flat_map(|facts| &facts.notes).find(|note| tells_of_stragglers(note));
        // The first words say what the policy does; figures follow.
        let words = note.and_then(|note| note.split(';').next()).unwrap_or_default();
        said.entry(words.to_owned()).or_default().push(format!("`{name}`"));
    }
    let mut text =
        "\n## Stragglers\n\nWhat the policies say beside one device that takes three times as long:\n\n".to_owned();
    for (note, names) in said {
        text += &format!("- {}: {note}\n", names.join(", "));
    }
    text
}
