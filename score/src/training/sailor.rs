//! Sailor's measured steps: pipelines over mixed GPUs, in 32 bits, from the layer times and links that are published beside them.
//!
//! Source: eth-easl/sailor @ 16eebd4121b4. A stage takes what its layers take on its cards; a message takes the link between its nodes, and
//! nothing runs behind it (`train::timed`). Nothing is fitted.

use hw::{Seconds, Span};
use train::timed::{Message, Messages, PassTime, PassTimes, Replica, StageTimes, TimedStep, ring_steps};

use super::row::{Asked, Compared, Label, Measured, Row};
use super::sailor_tables::{Slice, Tables};
use super::setting::StepSize;
use crate::reason::Reason;
use crate::table::{Beside, Cells, Fault, Table};

/// Columns without which nothing can be said.
pub(super) const NEEDED: [&str; 8] = [
    "row",
    "model",
    "gpus_by_stage",
    "seq_tokens",
    "micro_batch_seqs",
    "micro_batches_per_step",
    "layers_by_stage",
    "iter_time_s",
];

/// Bytes of an activation and of a gradient: no half precision is switched on.
const BYTES: f64 = 4.0;

/// A model of the runs; embedding and output head are layers of their own there.
struct Shape {
    word: &'static str,
    /// Its word in the table of layer times.
    timed_as: &'static str,
    hidden: f64,
    /// Rows of the embedding, whose copy is the output head.
    vocab: f64,
    layers: u32,
}

/// facebook/opt-350m and EleutherAI/gpt-neo-2.7B, config.json.
const SHAPES: [Shape; 2] = [
    Shape { word: "OPT-350M", timed_as: "OPT-350", hidden: 1024.0, vocab: 50_272.0, layers: 26 },
    Shape { word: "GPT-Neo-2.7B", timed_as: "GPT-Neo-2.7", hidden: 2560.0, vocab: 50_257.0, layers: 34 },
];

impl Shape {
    /// Parameters of some layers: twelve squares of the width in each, and a vocabulary at either end.
    fn parameters(&self, first: u32, n: u32) -> f64 {
        let of = |layer: u32| match layer {
            0 => self.vocab * self.hidden,
            last if last + 1 == self.layers => self.vocab * self.hidden,
            _ => 12.0 * self.hidden * self.hidden,
        };
        (first..first + n).map(of).sum()
    }
}

/// A tensor group: so many GPUs of a card.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Group {
    card: String,
    n_gpus: u32,
}

/// Lines of the table, with the layer times and links beside it.
///
/// # Errors
/// Every fault of the three files.
pub(super) fn rows(table: &Table, beside: &Beside<'_>) -> Result<Vec<Row>, Vec<Fault>> {
    let tables = Tables::read(beside)?;
    table.read_rows(|cells| row(cells, &tables))
}

fn row(cells: &mut Cells<'_>, tables: &Tables) -> Row {
    let stages = groups(cells.word("gpus_by_stage"));
    let label = Label {
        row: cells.word("row").to_owned(),
        line: cells.line,
        set: "Sailor",
        model: cells.word("model").to_owned(),
        card: cards(stages.as_deref().unwrap_or_default()),
        format: "fp32".to_owned(),
        layout: cells.word("gpus_by_stage").replace(" | ", " → "),
        variant: if cells.flag("mixed_gpus") { "mixed" } else { "one type" }.to_owned(),
    };
    let [step_s, again_s] = ["iter_time_s", "iter_time_second_run_s"].map(|column| cells.positive_number(column));
    let measured = Measured { step_s, again_s: again_s.into_iter().collect(), ..Measured::default() };
    let compared = compared(cells, &label, stages.as_deref().unwrap_or_default());
    let asked = asked(cells, tables, stages).map(Asked::Stages);
    Row { label, asked, measured, compared }
}

/// Runs of one cluster, whose cards may be mixed.
fn compared(cells: &mut Cells<'_>, label: &Label, stages: &[Vec<Group>]) -> Option<Compared> {
    let micro_batch = cells.positive("micro_batch_seqs");
    let n_replicas = u32::try_from(stages.first()?.len()).expect("few replicas");
    let size = StepSize {
        sequences: micro_batch * cells.positive("micro_batches_per_step") * n_replicas,
        micro_batch,
        tokens: u64::from(cells.positive("seq_tokens")),
        gpus: stages.iter().flatten().map(|group| group.n_gpus).sum(),
    };
    let cluster = Label { card: cells.word("cluster").to_owned(), ..label.clone() };
    Some(super::setting::compared(&cluster, "", &size, ""))
}

/// Types of GPU in order of appearance.
fn cards(stages: &[Vec<Group>]) -> String {
    let mut cards: Vec<&str> = Vec::new();
    for group in stages.iter().flatten() {
        if !cards.contains(&group.card.as_str()) {
            cards.push(&group.card);
        }
    }
    cards.join(" + ")
}

/// Replicas of every stage from, for example, `1*(8xRTX-3090)+1*(8xRTX-2080) | 2*(8xTitan-RTX)`.
fn groups(text: &str) -> Option<Vec<Vec<Group>>> {
    text.split('|')
        .map(|stage| stage.split('+').map(replicas).collect::<Option<Vec<_>>>().map(|of| of.concat()))
        .collect()
}

fn replicas(text: &str) -> Option<Vec<Group>> {
    let (n, group) = text.trim().split_once("*(")?;
    let (n_gpus, card) = group.strip_suffix(')')?.split_once('x')?;
    let group = Group { card: card.to_owned(), n_gpus: n_gpus.parse().ok().filter(|n| *n > 0)? };
    Some(vec![group; n.parse().ok()?])
}

fn asked(cells: &mut Cells<'_>, tables: &Tables, stages: Option<Vec<Vec<Group>>>) -> Result<TimedStep, Reason> {
    let word = cells.word("model").to_owned();
    let shape = SHAPES.iter().find(|shape| shape.word == word).ok_or(Reason::Model { word })?;
    let refused = |what: &str| Reason::Degrees { what: what.to_owned() };
    let stages = stages.ok_or_else(|| refused("stages that cannot be read"))?;
    let layers: Option<Vec<u32>> =
        cells.word("layers_by_stage").split_whitespace().map(|layers| layers.parse().ok()).collect();
    let layers = layers.filter(|layers| layers.len() == stages.len() && layers.iter().sum::<u32>() == shape.layers);
    let layers = layers.ok_or_else(|| refused("layers of the stages that are not those of the model"))?;
    let n_replicas = stages[0].len();
    if stages.iter().any(|stage| stage.len() != n_replicas) {
        return Err(refused("stages of different numbers of replicas"));
    }
    let micro_batch = cells.positive("micro_batch_seqs");
    let run = Run { shape, tables, stages, layers, micro_batch, tokens: cells.positive("seq_tokens") };
    let n_micro_batches = cells.positive("micro_batches_per_step");
    let replica = |index| Ok(Replica { stages: run.replica(index)?, n_micro_batches, own: Vec::new() });
    Ok(TimedStep {
        replicas: (0..n_replicas).map(replica).collect::<Result<_, _>>()?,
        reductions: (0..run.stages.len()).map(|stage| run.reduction(stage)).collect::<Result<_, _>>()?,
        gathers: vec![Span::ZERO; run.stages.len()],
        tied: Span::ZERO,
        messages: Messages::Blocking,
    })
}

/// A run while it becomes a step.
struct Run<'t> {
    shape: &'t Shape,
    tables: &'t Tables,
    /// Replicas of every stage.
    stages: Vec<Vec<Group>>,
    layers: Vec<u32>,
    micro_batch: u32,
    tokens: u32,
}

fn span(seconds: f64) -> Span {
    Span::from_seconds(Seconds::new(seconds))
}

impl Run<'_> {
    fn first_layer(&self, stage: usize) -> u32 {
        self.layers[..stage].iter().sum()
    }

    /// Stages of a replica.
    fn replica(&self, index: usize) -> Result<Vec<StageTimes>, Reason> {
        (0..self.stages.len()).map(|stage| self.stage(stage, index)).collect()
    }

    fn stage(&self, stage: usize, index: usize) -> Result<StageTimes, Reason> {
        let Group { card, n_gpus } = &self.stages[stage][index];
        let slice = Slice { model: self.shape.timed_as, card, n_gpus: *n_gpus, micro_batch: self.micro_batch };
        let first = self.first_layer(stage);
        let mut sum = [0.0; 3];
        for layer in first..first + self.layers[stage] {
            let times = self.tables.layer(&slice, layer);
            let times = times.ok_or_else(|| Reason::LayerTimes { model: self.shape.word, card: card.clone() })?;
            sum.iter_mut().zip(times).for_each(|(sum, time)| *sum += time);
        }
        let [forward, backward, update] = sum.map(span);
        let message = match self.stages.get(stage + 1) {
            Some(next) => self.message(&self.stages[stage][index], &next[index])?,
            None => Span::ZERO,
        };
        let passes = PassTimes {
            forward: PassTime::computing(forward),
            backward: PassTime::computing(backward),
            message: Message { line: message, latency: Span::ZERO },
        };
        Ok(StageTimes { n_gpus: *n_gpus, passes, update })
    }

    /// Activations of a micro-batch between two groups, each rank with its part of them.
    fn message(&self, from: &Group, to: &Group) -> Result<Span, Reason> {
        let values = f64::from(self.micro_batch * self.tokens) * self.shape.hidden;
        self.link(from, to, values * BYTES).map(span)
    }

    /// A ring over the replicas of a stage, whose slowest link sets the pace; a node's port carries the parts of all of its GPUs.
    fn reduction(&self, stage: usize) -> Result<Span, Reason> {
        let groups = &self.stages[stage];
        let bytes = BYTES * self.shape.parameters(self.first_layer(stage), self.layers[stage]);
        let mut slowest = 0.0_f64;
        for (index, group) in groups.iter().enumerate() {
            let next = &groups[(index + 1) % groups.len()];
            if groups.len() > 1 {
                slowest = slowest.max(self.link(group, next, bytes / hw::real(groups.len() as u64))?);
            }
        }
        Ok(span(ring_steps(groups.len()) * slowest))
    }

    /// Seconds of so many bytes between two groups on different nodes.
    fn link(&self, from: &Group, to: &Group, bytes: f64) -> Result<f64, Reason> {
        let n_gpus = from.n_gpus.min(to.n_gpus);
        let bandwidth = self.tables.link([&from.card, &to.card], n_gpus, bytes);
        let bandwidth = bandwidth.ok_or_else(|| Reason::Link { between: format!("{} and {}", from.card, to.card) })?;
        Ok(bytes / bandwidth)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_are_read_as_replicas() {
        let read = groups("1*(8xRTX-3090)+2*(4xRTX-2080) | 3*(8xTitan-RTX)").expect("stages");
        let n: Vec<usize> = read.iter().map(Vec::len).collect();
        assert_eq!(n, [3, 3]);
        assert_eq!(read[0][2], Group { card: "RTX-2080".to_owned(), n_gpus: 4 });
        assert_eq!(cards(&read), "RTX-3090 + RTX-2080 + Titan-RTX");
        assert_eq!(groups("8xRTX-3090"), None);
        assert_eq!(groups("1*(0xRTX-3090)"), None);
    }

    #[test]
    fn parameters_are_those_of_the_published_models() {
        // OPT-350M with an output head of its own has 331 M in layers and vocabulary, and 51 M more for the head (facebook/opt-350m: 331 M).
        let opt = SHAPES[0].parameters(0, 26) / 1e6;
        assert!((400.0..410.0).contains(&opt), "{opt}");
        let neo = SHAPES[1].parameters(0, 34) / 1e9;
        assert!((2.7..2.8).contains(&neo), "{neo}");
    }
}
