//! `[engine]`: the engine of every replica, the degrees that are tried, and where its rates come from.

use engine::Model;
use hw::Bytes;
use planner::deploy::Demand;
use planner::deploy::rental::{Costs, Deployed, Rates, ReplicaOptions, Unheld};
use serve::drafter::{Drafts, OwnDrafters};
use serve::engine_preset::RESERVED_GIB;
use serve::replica::Limits;
use serve::speculation::Speculation;
use toml_span::Value;
use toml_span::value::ValueInner;

use super::inventory::Stock;
use super::working;
use crate::serving::drafts::speculation;
use crate::serving::engine::enough_tokens;
use input::diagnostic::Code;
use input::reader::{Reader, Section, items, small, unknown};

/// Keys of engines that nothing in these scenarios asks for, with what they lack.
const UNASKED: [(&str, &str); 2] = [
    ("adapters", "no request type asks for an adapter"),
    ("tiers", "request types share no prefix that could be kept"),
];

/// Reads the section; drafts are accepted by draws of a seed.
pub fn replica(mut section: Section<'_>, seed: u64) -> ReplicaOptions {
    let rates = [Rates::Simulated, Rates::Roofline][section.word("rates", 0, &["simulated", "roofline"])];
    let costs = [Costs::Datasheet, Costs::Measured][section.word("costs", 0, &["datasheet", "measured"])];
    let tp = degrees(&mut section, "tp", &[1, 2, 4, 8]);
    let pp = degrees(&mut section, "pp", &[1]);
    let sequences_max = section.small("max_sequences", Some(256), 1..=65_536);
    let (tokens_max, tokens_at) = section.count("max_tokens", Some(2048), 1..=1 << 20);
    let drafts = drafts(&mut section, rates, seed);
    let per_sequence = drafts.as_ref().map_or(1, |drafts| drafts.speculation.n_verified());
    enough_tokens(&mut section, (tokens_max, tokens_at), (sequences_max, per_sequence), None);
    let block_tokens = section.small("block_tokens", Some(16), 1..=4096);
    let memory_ratio = section.number("memory_ratio", 0.9, 0.01..=1.0);
    let reserved = Bytes::from_gib(section.number("reserved_gib", RESERVED_GIB, 0.0..=10_000.0));
    let host_us_per_step = section.number("host_us_per_step", 0.0, 0.0..=1e6);
    working::no_ffn(&mut section);
    for (key, what) in UNASKED {
        section.elsewhere(key, what, "`kind = \"serving\"` has requests that do");
    }
    section.finish();
    let limits = Limits {
        sequences_max,
        tokens_max: small(tokens_max),
        context_max: u32::MAX,
        block_tokens,
        kv_blocks: 0,
        ..Limits::ROOMY
    };
    ReplicaOptions { rates, costs, tp, pp, limits, memory_ratio, reserved, host_us_per_step, drafts }
}

/// `speculation`, as kind `serving` has it.
fn drafts(section: &mut Section<'_>, rates: Rates, seed: u64) -> Option<Drafts> {
    let at = section.place("speculation").flatten();
    let Drafts { speculation, by } = speculation(section, None)?;
    if rates == Rates::Roofline {
        let what = "`engine.speculation` beside `rates = \"roofline\"`: that closed form gives a sequence one token in an iteration";
        section.refuse(Code::ExclusiveKeys, at, what, "`rates = \"simulated\"`, or no `speculation`");
    }
    Some(Drafts { speculation: Speculation { seed, ..speculation }, by })
}

fn degrees(section: &mut Section<'_>, key: &'static str, default: &[u32]) -> Vec<u32> {
    let Some((value, at)) = section.take(key) else { return default.to_vec() };
    if !matches!(value, ValueInner::Array(_)) {
        section.wrong(Code::WrongType, at, format!("`engine.{key}` is no list of degrees"));
        return default.to_vec();
    }
    let degree = |item: &Value<'_>| u32::try_from(item.as_integer()?).ok().filter(|n| (1..=1024).contains(n));
    items(&value, degree).filter(|all| !all.is_empty()).unwrap_or_else(|| {
        let what = format!("`engine.{key}` holds something that is no degree");
        section.refuse(Code::OutOfRange, at, what, "allowed are whole numbers from 1 to 1024");
        default.to_vec()
    })
}

/// Every GPU type of the catalogue with every degree that holds the model of some demand and fits a node, and models that no memory holds.
pub fn enumerated(
    reader: &mut Reader<'_>,
    replica: &ReplicaOptions,
    stock: &Stock,
    models: &[Model],
    demands: &[Demand],
) -> (Vec<Deployed>, Vec<Unheld>) {
    let offers = &stock.inventory.offers;
    for (_, kind) in offers.iter().zip(&stock.types).filter(|(offered, _)| offered.gpu.is_none()) {
        let what = format!("unknown GPU `{kind}`");
        let finding = unknown(Code::UnknownGpu, what, kind, hw::catalog::gpu_names(), None);
        reader.find(finding.help("a type of the catalogue, or `[[configurations]]` with their rates"));
    }
    let served = models.iter().enumerate().filter(|(m, _)| demands.iter().any(|demand| demand.model == *m));
    for (_, model) in served {
        let misfits = |drafts: &Drafts| drafts.misfits(model, &OwnDrafters::of(model), 1);
        for (what, help) in replica.drafts.as_ref().map_or_else(Vec::new, misfits) {
            reader.refuse(Code::WrongOperation, None, what, help);
        }
    }
    let (all, unheld) = replica.enumerated(offers, models, demands);
    let (unheld, uncut): (Vec<Unheld>, Vec<Unheld>) = unheld.into_iter().partition(Unheld::is_memory);
    for model in uncut {
        let help = "a degree that divides the heads, stages that are no more than layers, and both within one machine";
        reader.refuse(Code::WrongOperation, None, model.to_string(), help);
    }
    (all, unheld)
}
