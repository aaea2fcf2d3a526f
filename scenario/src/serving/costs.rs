//! `[cost]` of a serving scenario: operations of a profile or the roofline, a law of stages that is given, or means of published runs.

use std::path::Path;

use score::learned::Learned;
use serve::step_cost::chunks::ChunkLaw;
use toml_span::value::ValueInner;

use crate::cost::{self, Cost};
use input::diagnostic::Code;
use input::reader::Section;

/// Where times come from.
#[derive(Clone, Debug)]
pub enum CostLaw {
    /// Operations of iterations, played.
    Operations,
    /// A stage's time by tokens, played.
    Stages(ChunkLaw),
    /// A benchmark played, corrected by what published runs left over.
    PublishedRuns(Learned),
}

/// What the section says besides what it says for every kind.
pub struct ServingCost {
    /// For every kind.
    pub cost: Cost,
    /// Where times come from.
    pub law: CostLaw,
    /// Share of the peak that attention of prompts was calibrated to reach.
    pub attention_flops_ratio: Option<f64>,
}

/// Reads the section.
pub fn costs(mut section: Section<'_>, folder: &Path, gpu: Option<&str>, engine: Option<&'static str>) -> ServingCost {
    if section.word("law", 0, &["operations", "published-runs"]) == 1 {
        section.finish();
        let learned = Learned::shipped();
        let cost = Cost {
            profile: None,
            is_roofline: true,
            engine: None,
            strict_hull: false,
            sustained_flops_ratio: 1.0,
            units: None,
        };
        return ServingCost { cost, law: CostLaw::PublishedRuns(learned), attention_flops_ratio: None };
    }
    let ratio = section.number("attention_flops_ratio", 0.0, 0.01..=1.0);
    let strict_hull = section.flag("strict_hull", false);
    let law = stages(&mut section).map_or(CostLaw::Operations, CostLaw::Stages);
    ServingCost {
        cost: Cost { strict_hull, ..cost::of_engine(section, folder, gpu, engine) },
        law,
        attention_flops_ratio: (ratio > 0.0).then_some(ratio),
    }
}

impl ServingCost {
    /// What was fitted or is assumed, as sentences.
    pub fn free_parameters(&self) -> Vec<String> {
        let ratio = self.attention_flops_ratio.map(|ratio| {
            format!("`cost.attention_flops_ratio` = {ratio}: share of the peak that attention of prompts reaches, calibrated and not measured")
        });
        let law = match &self.law {
            CostLaw::PublishedRuns(learned) => Some(format!(
                "what the request loop leaves over is learned from published runs, by engine, model, card and format: {}",
                learned.source
            )),
            CostLaw::Operations | CostLaw::Stages(_) => None,
        };
        ratio.into_iter().chain(law).collect()
    }
}

/// `stage_ms = { a, b, c, gamma }`: coefficients of a stage's time in milliseconds.
fn stages(section: &mut Section<'_>) -> Option<ChunkLaw> {
    let (value, at) = section.take("stage_ms")?;
    let found = match value {
        ValueInner::Table(table) => law(&table),
        _ => None,
    };
    if found.is_none() {
        let what = "`stage_ms` needs exactly `a`, `b`, `c` and `gamma`, numbers from 0 to 1e9";
        let help = "milliseconds of a stage for x tokens after P: c + gamma P + a (2 P x + x x) + b x";
        section.refuse(Code::WrongStageLaw, at, what, help);
    }
    found
}

/// The four coefficients in seconds; `None` where one is missing or wrong, or there is a fifth.
fn law(table: &toml_span::value::Table<'_>) -> Option<ChunkLaw> {
    let seconds = |key: &str| {
        let value = table.get(key)?;
        let number = value.as_float().or_else(|| value.as_integer().map(|n| n as f64))?;
        (0.0..=1e9).contains(&number).then_some(number / 1e3)
    };
    let law = ChunkLaw { a: seconds("a")?, b: seconds("b")?, c: seconds("c")?, gamma: seconds("gamma")? };
    (table.len() == 4).then_some(law)
}
