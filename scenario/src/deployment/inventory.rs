//! `[inventory]`: GPU types with counts, and as far as an objective heeds them their prices, regions and links.

use hw::{Bytes, BytesPerSecond, FlopsPerSecond, Gpu};
use planner::deploy::inventory::{Inventory, Link, Losses, Network, Offer};
use planner::deploy::objective::Objective;
use planner::effort;

use crate::effort::is_within_reason;
use input::diagnostic::Code;
use input::reader::{Place, Section, unknown};

/// Largest number of a region; those with names come behind.
const REGION_MAX: u16 = 1000;
/// Range of prices, dollars per hour.
pub const USD: std::ops::RangeInclusive<f64> = 1e-6..=1e9;

/// What was read, with the place of every row.
pub struct Stock {
    /// GPUs and links. What is there is in an order of its own, so that no plan hangs on which line comes first; offers to rent are told apart by their names.
    pub inventory: Inventory,
    /// Where each row has its name, which is that of its type where it has no other.
    pub places: Vec<Place>,
    /// GPU type of each row, as written.
    pub types: Vec<String>,
    /// Row of the inventory that each line of the file is, in the order of the file.
    pub lines: Vec<usize>,
    /// Whether every row could be read.
    pub is_whole: bool,
}

impl Stock {
    /// Positions of machines as the file lists them: line by line, and those of a line one behind the other.
    pub fn machines(&self) -> Vec<usize> {
        let n: Vec<usize> = self.inventory.offers.iter().map(|offer| offer.n_machines() as usize).collect();
        let first = |row: usize| n[..row].iter().sum::<usize>();
        self.lines.iter().flat_map(|&row| first(row)..first(row) + n[row]).collect()
    }

    /// Positions of types of GPUs as the file lists them, among those of the inventory, each once.
    pub fn kinds(&self) -> Vec<usize> {
        let once = |rows: &mut dyn Iterator<Item = usize>| {
            let mut kinds: Vec<&str> = Vec::new();
            for kind in rows.map(|row| self.types[row].as_str()) {
                if !kinds.contains(&kind) {
                    kinds.push(kind);
                }
            }
            kinds
        };
        let (known, listed) = (once(&mut (0..self.types.len())), once(&mut self.lines.iter().copied()));
        listed.iter().filter_map(|kind| known.iter().position(|known| known == kind)).collect()
    }
}

/// Reads the section. Links are read where machines exchange something, prices where something is rented.
pub fn inventory(mut section: Section<'_>, objective: Objective) -> Stock {
    let network = match objective {
        Objective::Time | Objective::Dollars => Inventory::of(Vec::new()).network,
        Objective::Goodput => links(&mut section, (5.0, 1.0)),
        Objective::Throughput => {
            let network = links(&mut section, (1.25, 1.0));
            let card = section.number("card_gb_per_s", network.within.bytes_per_s / 1e9, 1e-6..=1e6) * 1e9;
            Network { card_bytes_per_s: card, coordinator: coordinator(&mut section, network.within), ..network }
        }
    };
    let (mut rows, mut n_tables) = (Vec::new(), 0);
    section.each_table("gpus", &mut |table| {
        n_tables += 1;
        rows.extend(row(table, objective));
    });
    let lines = if objective.is_rented() { (0..rows.len()).collect() } else { in_own_order(&mut rows) };
    let (mut offers, mut places, mut types) = (Vec::new(), Vec::new(), Vec::new());
    for Row { offer, at, kind } in rows {
        offers.push(offer);
        places.push(at);
        types.push(kind);
    }
    if n_tables == 0 {
        section.missing("gpus", "write `[[inventory.gpus]]` with `gpu` and `count`");
    }
    number(&mut offers);
    if objective.is_rented() {
        told_apart(&mut section, &offers, &places);
    }
    let is_begun = is_planned(&mut section, &offers, objective);
    section.finish();
    let is_whole = n_tables > 0 && offers.len() == n_tables && is_begun;
    Stock { inventory: Inventory { offers, network }, places, types, lines, is_whole }
}

/// What the file lists, each at its place.
pub fn placed<T: Copy + Default>(listed: &[T], places: &[usize]) -> Vec<T> {
    let mut found = vec![T::default(); listed.len()];
    for (value, &place) in listed.iter().zip(places) {
        found[place] = *value;
    }
    found
}

/// Puts rows in order of their types, those of one type by all else that they say; answers which row each line became.
fn in_own_order(rows: &mut Vec<Row>) -> Vec<usize> {
    let mut numbered: Vec<(usize, Row)> = std::mem::take(rows).into_iter().enumerate().collect();
    numbered.sort_by_cached_key(|(_, row)| (row.kind.clone(), format!("{:?}", row.offer)));
    let mut lines = vec![0; numbered.len()];
    for (row, (line, _)) in numbered.iter().enumerate() {
        lines[*line] = row;
    }
    rows.extend(numbered.into_iter().map(|(_, row)| row));
    lines
}

/// Offers that are rented have names of their own: configurations, figures and words name them.
fn told_apart(section: &mut Section<'_>, offers: &[Offer], places: &[Place]) {
    for (index, (Offer { name, .. }, at)) in offers.iter().zip(places).enumerate() {
        if offers[..index].iter().any(|other| other.name == *name) {
            let what = format!("two offers are called `{name}`");
            let help = format!("give one a `name`, for example `name = \"{name}-{}\"`", index + 1);
            section.refuse(Code::TwiceNamed, at.clone(), what, &help);
        }
    }
}

/// Numbers of regions that have names: one for each name.
fn number(offers: &mut [Offer]) {
    let names: Vec<String> = offers.iter().filter_map(|offer| offer.region_name.clone()).collect();
    for offer in offers {
        let known = |name: &String| names.iter().position(|known| known == name);
        if let Some(at) = offer.region_name.as_ref().and_then(known) {
            offer.region = u32::from(REGION_MAX) + 1 + u32::try_from(at).expect("fewer rows than 2^31");
        }
    }
}

/// Whether planning for so many machines is within reason.
fn is_planned(section: &mut Section<'_>, offers: &[Offer], objective: Objective) -> bool {
    let n_machines = offers.iter().map(|offer| u64::from(offer.n_machines())).sum();
    let effort = match objective {
        Objective::Time | Objective::Dollars => return true,
        Objective::Goodput => effort::chained(n_machines),
        Objective::Throughput => effort::flowed(n_machines),
    };
    let (at, what) = (section.at(), format!("plans for {n_machines} machines"));
    is_within_reason(section, effort, (at, &what, "lower `count` in `[[inventory.gpus]]`"))
}

/// A link by its keys; what is not there is as the usual one, GB per second and milliseconds.
fn link(section: &mut Section<'_>, [gb, ms]: [&'static str; 2], usual: (f64, f64)) -> Link {
    Link {
        bytes_per_s: section.number(gb, usual.0, 1e-6..=1e6) * 1e9,
        latency_s: section.number(ms, usual.1, 0.0..=1e5) / 1e3,
    }
}

/// GB per second and milliseconds.
fn as_written(link: Link) -> (f64, f64) {
    (link.bytes_per_s / 1e9, link.latency_s * 1e3)
}

/// Links of machines within a region and between two; `usual` is that within one, GB per second and milliseconds.
fn links(section: &mut Section<'_>, usual: (f64, f64)) -> Network {
    let within = link(section, ["link_gb_per_s", "latency_ms"], usual);
    let between = link(section, ["region_link_gb_per_s", "region_latency_ms"], as_written(within));
    Network { within, between, card_bytes_per_s: f64::INFINITY, coordinator: None }
}

/// The link between a machine and the coordinator, where the section says something of it; what it leaves out is as within a region.
fn coordinator(section: &mut Section<'_>, usual: Link) -> Option<Link> {
    let keys = ["coordinator_gb_per_s", "coordinator_latency_ms"];
    let is_given = keys.iter().any(|key| section.has(key));
    let link = link(section, keys, as_written(usual));
    is_given.then_some(link)
}

/// A row of the inventory.
struct Row {
    offer: Offer,
    at: Place,
    kind: String,
}

/// `[[inventory.gpus]]`. What is rented may have a name beside its type: one type at two prices is two offers.
fn row(mut section: Section<'_>, objective: Objective) -> Option<Row> {
    section.needs("gpu", "a GPU type; `skrull-sim list gpus` shows the catalogue");
    let named = section.text("gpu");
    let own = if objective.is_rented() { section.text("name") } else { None };
    let usual = (!objective.is_rented()).then_some(1);
    let n_available = section.small("count", usual, 0..=1_000_000);
    let is_single = objective == Objective::Throughput;
    let n_gpus_per_machine = if is_single { 1 } else { section.small("gpus_per_machine", Some(8), 1..=1024) };
    let (region, region_name) = region(&mut section, objective);
    let (usd_per_hour, quote) = if is_single { (0.0, String::new()) } else { price(&mut section, objective) };
    let losses = losses(&mut section);
    let gpu = match (&named, objective) {
        (Some((name, at)), Objective::Goodput) => Some(figures(&mut section, name, at.clone())?),
        (Some((name, _)), _) => hw::catalog::gpu(name),
        (None, _) => None,
    };
    section.finish();
    let (kind, at) = named?;
    let (name, at) = own.unwrap_or_else(|| (kind.clone(), at));
    let offer = Offer {
        name,
        kind: kind.clone(),
        gpu,
        n_available,
        n_gpus_per_machine,
        usd_per_hour,
        quote,
        region,
        region_name,
        losses,
    };
    Some(Row { offer, at, kind })
}

/// Number of a region, where links between them are heeded, or its name.
fn region(section: &mut Section<'_>, objective: Objective) -> (u32, Option<String>) {
    if !objective.is_rented() && !section.is_text("region") {
        return (section.small("region", Some(0), 0..=REGION_MAX.into()), None);
    }
    let named = section.text("region");
    if let Some((_, at)) = named.as_ref().filter(|(name, _)| name.trim().is_empty()) {
        section.refuse(
            Code::WrongName,
            at.clone(),
            "`region` has no name",
            "write it as its cloud does, or leave it out",
        );
    }
    (0, named.map(|(name, _)| name))
}

/// Mean times until a replica is lost, and until it is back; both or neither.
fn losses(section: &mut Section<'_>) -> Option<Losses> {
    let given = [section.has("mtbf_s"), section.has("mttr_s")];
    let (mtbf_s, mttr_s) = (section.number("mtbf_s", 1.0, 1.0..=1e9), section.number("mttr_s", 1.0, 0.0..=1e9));
    match given {
        [true, false] => section.missing("mttr_s", "mean seconds until a lost replica is back"),
        [false, true] => section.missing("mtbf_s", "mean seconds until a replica is lost"),
        _ => {}
    }
    given[0].then_some(Losses { mtbf_s, mttr_s })
}

/// Dollars per GPU and hour with provider and date; 0 where nothing is rented.
fn price(section: &mut Section<'_>, objective: Objective) -> (f64, String) {
    let is_given = section.has("usd_per_hour");
    let usd_per_hour = section.number("usd_per_hour", 0.0, USD);
    if !is_given && objective.is_rented() {
        section.missing("usd_per_hour", "dollars per GPU and hour, as quoted");
    }
    let mut word = |key| section.text(key).map(|(text, _)| text);
    let quote: Vec<String> = [word("provider"), word("date")].into_iter().flatten().collect();
    (usd_per_hour, quote.join(", "))
}

/// A type of the catalogue, or of figures that the file gives.
fn figures(section: &mut Section<'_>, name: &str, at: Place) -> Option<Gpu> {
    let mut figure = |key| section.some_number(key, 1e-3..=1e7);
    let (memory, bandwidth) = (figure("memory_gb"), figure("memory_gb_per_s"));
    let (peak, intra) = (figure("peak_bf16_tflops"), figure("intra_gb_per_s"));
    let rate = |value: f64| BytesPerSecond::new(value * 1e9);
    match (hw::catalog::gpu(name), memory, bandwidth, peak, intra) {
        (Some(mut gpu), ..) => {
            if let Some(gb) = memory {
                gpu.set_memory(Bytes::from_f64(gb * 1e9));
            }
            gpu.memory_bandwidth = bandwidth.map_or(gpu.memory_bandwidth, rate);
            gpu.peak_bf16 = peak.map_or(gpu.peak_bf16, |tera| FlopsPerSecond::new(tera * 1e12));
            gpu.intra_node_bandwidth = intra.map_or(gpu.intra_node_bandwidth, rate);
            Some(gpu)
        }
        (None, Some(memory), Some(bandwidth), Some(peak), Some(intra)) => Some(Gpu {
            name: name.to_owned(),
            memory: Bytes::from_f64(memory * 1e9),
            visible_memory: None,
            memory_bandwidth: rate(bandwidth),
            peak_bf16: FlopsPerSecond::new(peak * 1e12),
            peak_fp32: None,
            peak_fp8: None,
            peak_int8: None,
            peak_fp4: None,
            power_watts: None,
            intra_node_bandwidth: rate(intra),
            mesh_links: None,
            host_bandwidth: rate(intra),
            peer_access: true,
            source: "scenario".to_owned(),
            prices: Vec::new(),
        }),
        _ => {
            let what = format!("unknown GPU `{name}`");
            let finding = unknown(Code::UnknownGpu, what, name, hw::catalog::gpu_names(), at);
            let needed = "`memory_gb`, `memory_gb_per_s`, `peak_bf16_tflops`, `intra_gb_per_s`";
            section.find(finding.help(format!("a GPU that is not in the catalogue needs {needed}")));
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_of_one_name_are_one_and_no_number_is_a_names() {
        let named = |name: &str| Offer { region_name: Some(name.to_owned()), ..Offer::priced("a", 1.0, 1) };
        let mut offers =
            [named("east"), Offer { region: 1000, ..Offer::priced("b", 1.0, 1) }, named("west"), named("east")];
        number(&mut offers);
        assert_eq!(offers.map(|offer| offer.region), [1001, 1000, 1002, 1001]);
    }
}
