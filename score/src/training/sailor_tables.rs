//! Layer times and links of Sailor's machines, as they are published beside its runs.
//!
//! Two things that a table of measured times cannot be are put right. A micro-batch never takes longer than a larger one, so the least of both counts: the
//! first ones on Grace-Hopper are slower than twice as large ones. A port never carries less for many GPUs than for few, nor less in one
//! direction: some curves between pairs of cards are copies of another pair's.

use std::collections::BTreeSet;

use crate::table::{Beside, Cells, Fault, read_beside};

/// Files beside the table of runs.
const LAYERS: &str = "sailor_layer_times.csv.gz";
const LINKS: &str = "sailor_links.csv.gz";

/// Model whose times on two cards tell their speeds apart: others were timed on the A100 without its tensor cores, and the runs with them.
const REFERENCE: &str = "OPT-350";

/// What a layer is looked up by.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slice<'s> {
    pub(super) model: &'s str,
    pub(super) card: &'s str,
    /// GPUs of a tensor group.
    pub(super) n_gpus: u32,
    /// Sequences of a micro-batch.
    pub(super) micro_batch: u32,
}

/// A line of the layer times: layers `first` to `last` take as long each.
#[derive(Debug)]
struct Timed {
    model: String,
    card: String,
    n_gpus: u32,
    micro_batch: u32,
    first: u32,
    last: u32,
    /// Forward, backward, and the optimizer's step, seconds.
    times: [f64; 3],
}

/// Bandwidth between two nodes: a parabola over the logarithm of the size, up to a largest one.
#[derive(Debug)]
struct Link {
    cards: [String; 2],
    n_gpus: [u32; 2],
    /// Gigabytes per second over the binary logarithm of megabytes, from the square down.
    curve: [f64; 3],
    most: f64,
}

/// Both tables.
#[derive(Debug)]
pub(super) struct Tables {
    timed: Vec<Timed>,
    links: Vec<Link>,
}

impl Tables {
    /// Reads both from the files beside the table of runs.
    pub(super) fn read(beside: &Beside<'_>) -> Result<Self, Vec<Fault>> {
        let links = read_beside(beside, LINKS, &LINK_COLUMNS, link)?.into_iter().flatten().collect();
        Ok(Self { timed: read_beside(beside, LAYERS, &LAYER_COLUMNS, timed)?, links })
    }

    /// Forward, backward and optimizer of a layer, seconds; `None` where no table has it.
    pub(super) fn layer(&self, slice: &Slice<'_>, layer: u32) -> Option<[f64; 3]> {
        self.own(slice, layer).or_else(|| self.lent(slice, layer))
    }

    /// From the card's own table.
    fn own(&self, slice: &Slice<'_>, layer: u32) -> Option<[f64; 3]> {
        let is_layer = |line: &&Timed| {
            (line.model.as_str(), line.card.as_str(), line.n_gpus) == (slice.model, slice.card, slice.n_gpus)
                && (line.first..=line.last).contains(&layer)
        };
        let lines: Vec<&Timed> = self.timed.iter().filter(is_layer).collect();
        lines.iter().find(|line| line.micro_batch == slice.micro_batch)?;
        let not_smaller = lines.iter().filter(|line| line.micro_batch >= slice.micro_batch);
        not_smaller.map(|line| line.times).reduce(least)
    }

    /// From the card of the nearest speed that has the model.
    fn lent(&self, slice: &Slice<'_>, layer: u32) -> Option<[f64; 3]> {
        let mut best: Option<(f64, [f64; 3])> = None;
        let lenders: BTreeSet<&str> = self.lines(slice).map(|line| line.card.as_str()).collect();
        for card in lenders {
            let lender = Slice { card, ..*slice };
            let Some((times, ratio)) = self.own(&lender, layer).zip(self.ratio(slice, &lender)) else { continue };
            let distance = libm::log(ratio[1]).abs();
            if best.is_none_or(|(known, _)| distance < known) {
                best = Some((distance, [0, 1, 2].map(|kind| times[kind] * ratio[kind])));
            }
        }
        best.map(|(_, times)| times)
    }

    /// Lines of a model and a tensor degree on all cards.
    fn lines<'t>(&'t self, slice: &Slice<'t>) -> impl Iterator<Item = &'t Timed> + use<'t> {
        let (model, n_gpus) = (slice.model, slice.n_gpus);
        self.timed.iter().filter(move |line| line.model == model && line.n_gpus == n_gpus)
    }

    /// Time on a card over that on another one. Small kernels are the host's, so it depends on their size: it is taken at the same micro-batch and at
    /// that whose layers take as long as those of the model that is lent, and the middle of both counts.
    fn ratio(&self, here: &Slice<'_>, there: &Slice<'_>) -> Option<[f64; 3]> {
        let lent = self.inner(there, there.micro_batch)?;
        let n_both = |n: &u32| self.reference(here, *n).zip(self.reference(there, *n)).is_some();
        let distance = |n: u32| {
            let times = self.reference(there, n).unwrap_or([1.0; 3]);
            libm::log((times[0] + times[1]) / (lent[0] + lent[1])).abs()
        };
        let known = self.lines(&Slice { model: REFERENCE, ..*here }).map(|line| line.micro_batch);
        let all: BTreeSet<u32> = known.collect();
        let as_long = all.into_iter().filter(n_both).min_by(|a, b| distance(*a).total_cmp(&distance(*b)))?;
        let same = Some(here.micro_batch).filter(n_both).unwrap_or(as_long);
        let of = |n: u32| self.reference(here, n).zip(self.reference(there, n));
        let ((a, b), (c, d)) = of(as_long).zip(of(same))?;
        Some([0, 1, 2].map(|kind| (a[kind] / b[kind] * (c[kind] / d[kind])).sqrt()))
    }

    /// An inner layer of the model that tells cards apart.
    fn reference(&self, slice: &Slice<'_>, micro_batch: u32) -> Option<[f64; 3]> {
        self.inner(&Slice { model: REFERENCE, ..*slice }, micro_batch)
    }

    /// An inner layer of a model.
    fn inner(&self, slice: &Slice<'_>, micro_batch: u32) -> Option<[f64; 3]> {
        let is_inner = |line: &&Timed| line.model == slice.model && line.last > line.first;
        let layer = self.timed.iter().find(is_inner)?.first;
        self.own(&Slice { micro_batch, ..*slice }, layer)
    }

    /// Bytes per second between nodes of two cards of which so many GPUs take part, for a message of so many bytes.
    pub(super) fn link(&self, cards: [&str; 2], n_gpus: u32, bytes: f64) -> Option<f64> {
        let is_its = |link: &&Link| {
            let [from, to] = [link.cards[0].as_str(), link.cards[1].as_str()];
            ([from, to] == cards || [to, from] == cards) && link.n_gpus.iter().all(|n| *n <= n_gpus)
        };
        let found = self.links.iter().filter(is_its).map(|link| link.bandwidth(bytes));
        found.reduce(f64::max)
    }
}

impl Link {
    /// Bytes per second.
    fn bandwidth(&self, bytes: f64) -> f64 {
        let size = libm::log2(bytes / 1e6);
        let [square, linear, constant] = self.curve;
        ((square * size + linear) * size + constant).clamp(1e-3, self.most) * 1e9
    }
}

fn least(a: [f64; 3], b: [f64; 3]) -> [f64; 3] {
    [0, 1, 2].map(|kind| a[kind].min(b[kind]))
}

const LAYER_COLUMNS: [&str; 9] =
    ["model", "gpu", "tp_gpus", "micro_batch_seqs", "first_layer", "last_layer", "forward_s", "backward_s", "update_s"];

fn timed(cells: &mut Cells<'_>) -> Timed {
    Timed {
        model: cells.word("model").to_owned(),
        card: cells.word("gpu").to_owned(),
        n_gpus: cells.positive("tp_gpus"),
        micro_batch: cells.positive("micro_batch_seqs"),
        first: cells.count("first_layer").unwrap_or(0),
        last: cells.count("last_layer").unwrap_or(0),
        times: ["forward_s", "backward_s", "update_s"].map(|name| cells.number(name)),
    }
}

const LINK_COLUMNS: [&str; 9] =
    ["scope", "from_gpu", "from_gpus", "to_gpu", "to_gpus", "a", "b", "c", "max_bandwidth_gb_per_s"];

/// A link between nodes; those inside a node are in the layer times, and those between zones are placeholders.
fn link(cells: &mut Cells<'_>) -> Option<Link> {
    let curve = ["a", "b", "c"].map(|name| cells.number(name));
    let most = cells.positive_number("max_bandwidth_gb_per_s").unwrap_or(1e-3);
    let cards = ["from_gpu", "to_gpu"].map(|name| cells.word(name).to_owned());
    let link = Link { cards, n_gpus: ["from_gpus", "to_gpus"].map(|name| cells.positive(name)), curve, most };
    Some(link).filter(|_| cells.word("scope") == "between nodes")
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAYER_TIMES: &str = "model,gpu,tp_gpus,micro_batch_seqs,first_layer,last_layer,layers_total,forward_s,backward_s,update_s\n\
                               OPT-350,old,2,1,1,8,10,0.5,0.9,0.01\nOPT-350,old,2,2,1,8,10,0.4,1.0,0.01\n\
                               OPT-350,new,2,2,1,8,10,0.1,0.5,0.005\nother,old,2,2,1,8,10,4,8,0.1\n";
    const CURVES: &str = "scope,from_zone,from_gpu,from_gpus,to_zone,to_gpu,to_gpus,a,b,c,max_bandwidth_gb_per_s\n\
                          between nodes,z,old,1,z,new,1,0,1,2,3\nbetween nodes,z,new,2,z,old,2,0,0,1,1\n\
                          inside a node,,old,1,,old,1,0,0,9,9\n";

    fn tables() -> Tables {
        Tables::read(&|name| Some(if name == LAYERS { LAYER_TIMES } else { CURVES }.to_owned())).expect("tables")
    }

    #[test]
    fn a_smaller_micro_batch_takes_no_longer() {
        let slice = Slice { model: "OPT-350", card: "old", n_gpus: 2, micro_batch: 1 };
        assert_eq!(tables().layer(&slice, 3), Some([0.4, 0.9, 0.01]));
        assert_eq!(tables().layer(&Slice { micro_batch: 4, ..slice }, 3), None);
        assert_eq!(tables().layer(&slice, 9), None);
    }

    #[test]
    fn a_card_without_the_model_takes_another_cards_times_by_their_speeds() {
        // The reference takes a quarter, a half and a half there.
        let slice = Slice { model: "other", card: "new", n_gpus: 2, micro_batch: 2 };
        assert_eq!(tables().layer(&slice, 3), Some([1.0, 4.0, 0.05]));
        assert_eq!(tables().layer(&Slice { model: "third", ..slice }, 3), None);
    }

    #[test]
    fn a_port_carries_as_much_in_both_directions() {
        let tables = tables();
        // At 2 MB the first curve gives 2 + 1 = 3 GB/s, at 0.5 MB one; the second always one.
        assert_eq!(tables.link(["old", "new"], 2, 2e6), Some(3e9));
        assert_eq!(tables.link(["new", "old"], 2, 0.5e6), Some(1e9));
        assert_eq!(tables.link(["old", "old"], 2, 2e6), None);
    }

    #[test]
    fn a_file_that_is_not_there_is_named() {
        let faults = Tables::read(&|_| None).expect_err("a fault");
        assert_eq!(faults[0].words(), "line 1: needs `sailor_links.csv.gz` in the same folder");
    }
}
