//! A training job of a stack whose files name a model and state none of its shape: the scenario of it.
//!
//! Where a file says neither model nor length, the command line has to (`--set model.name=…`, `--set workload.tokens=…`).

use engine::model::of_checkpoint;
use input::diagnostic::Code;

use crate::checkpoint;
use crate::document::Document;
use crate::flags::Flags;
use crate::{Imported, Machine, launch};

/// What a server with 400 GB/s and eight GPUs has; a script does not say it.
pub(crate) const HOST_GB_PER_S: u32 = 50;

/// Keys of a command line that say how long sequences are, each of another length.
pub(crate) const LENGTHS: [&str; 3] = ["workload.lengths", "workload.file", "workload.list"];

/// What a job's files say. Remarks name the keys that gave them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Job {
    /// Whose it is, for the first line.
    pub(crate) stack: &'static str,
    /// Model, as it is written.
    pub(crate) model: Option<String>,
    /// Key that names it.
    pub(crate) model_key: &'static str,
    /// Whether keys of `[model.config]` state its shape, so that it needs no name.
    pub(crate) has_shape: bool,
    /// Tokens of a sequence.
    pub(crate) tokens: Option<u64>,
    /// Tokens of a row into which sequences are packed, where their lengths are known. Numbers of sequences are those of rows then.
    pub(crate) row_tokens: Option<u64>,
    /// Tensor, pipeline and context degree.
    pub(crate) degrees: [u64; 3],
    /// Data-parallel replicas, where the files say them.
    pub(crate) dp: Option<u64>,
    /// Sequences of a micro-batch on one replica.
    pub(crate) micro_batch: u64,
    /// Tokens of a micro-batch on one GPU, where they are filled up to that.
    pub(crate) bucket_tokens: Option<u64>,
    /// Sequences of a step; all replicas with as many as `of_replica`, where no key says it.
    pub(crate) batch: Option<u64>,
    /// Sequences of a replica; one micro-batch, where no key says it.
    pub(crate) of_replica: Option<u64>,
    /// Whether a number of GPUs that nobody says is an error, and no warning: states that are shared by one GPU are no answer.
    pub(crate) asks_for_gpus: bool,
    /// GPUs, and those of a node.
    pub(crate) gpus: (Option<u32>, Option<u32>),
    /// Other keys: section, name, value as TOML, remark.
    pub(crate) keys: Vec<(&'static str, &'static str, String, &'static str)>,
}

impl Job {
    /// A key of the scenario.
    pub(crate) fn key(&mut self, at: (&'static str, &'static str), value: impl ToString, remark: &'static str) {
        self.keys.push((at.0, at.1, value.to_string(), remark));
    }

    /// A key with a word.
    pub(crate) fn word(&mut self, at: (&'static str, &'static str), word: &str, remark: &'static str) {
        self.keys.push((at.0, at.1, crate::document::quoted(word), remark));
    }

    /// A share of the optimizer's states in the memory of the host.
    pub(crate) fn states_on_host(&mut self, share: f64, remark: &'static str) {
        self.key(("optimizer", "offload_ratio"), share, remark);
        if share > 0.0 {
            let assumed = "assumed: what the host's memory moves for each GPU";
            self.key(("optimizer", "host_memory_gb_per_s"), HOST_GB_PER_S, assumed);
        }
    }

    /// Whether a key puts states of the optimizer there.
    pub(crate) fn has_states_on_host(&self) -> bool {
        self.keys.iter().any(|(section, name, ..)| (*section, *name) == ("optimizer", "offload_ratio"))
    }

    /// The stage of ZeRO, where a key says it: the last one counts.
    pub(crate) fn zero(&self) -> Option<u64> {
        let of_zero = |(section, name, value, _): &(&str, &str, String, &str)| {
            (*section == "parallel" && *name == "zero").then(|| value.parse().ok()).flatten()
        };
        self.keys.iter().rev().find_map(of_zero)
    }

    /// Whether ranks share states.
    pub(crate) fn is_sharded(&self) -> bool {
        self.zero().is_some_and(|stage| stage > 0)
    }

    /// PyTorch's own modules under fully sharded parameters. With other parameters the states of such modules are not known.
    pub(crate) fn pytorch(&mut self, flags: &mut Flags<'_>, zero: u32) {
        if zero == 3 {
            return self.word(("training", "framework"), "pytorch", "modules of PyTorch with sharded parameters");
        }
        let what = "kernels of PyTorch modules that wait for the host are not counted without fully sharded parameters";
        let help = "give `--set training.framework=pytorch`, which counts them, and parameters in 32 bits";
        flags.warn(Code::NotModelled, None, what, help);
    }

    /// The scenario.
    pub(crate) fn import(&self, mut flags: Flags<'_>, machine: &Machine) -> Imported {
        let mut out = self.document(&mut flags, machine);
        out.remark(format!("A training job of {} as a scenario; remarks name the keys that gave it.", self.stack));
        flags.judge();
        Imported { scenario: out.toml(), findings: flags.findings }
    }

    /// Sections of a training scenario.
    pub(crate) fn document(&self, flags: &mut Flags<'_>, machine: &Machine) -> Document {
        let mut out = Document::default();
        out.word("", "kind", "training", "");
        out.set("", "seed", 0, "");
        self.model(flags, &mut out, machine);
        let tokens = self.tokens(flags, machine);
        let dp = self.machine(flags, &mut out, machine);
        let [tp, pp, cp] = machine.over_degrees(self.degrees);
        for (name, degree) in [("tp", tp), ("pp", pp), ("cp", cp)] {
            out.set("parallel", name, degree, "");
        }
        let batch = self.batch.unwrap_or(self.of_replica.unwrap_or(self.micro_batch) * dp);
        let of_step =
            if self.row_tokens.is_some() { "rows of an optimizer step" } else { "sequences of an optimizer step" };
        out.set("training", "batch_size", batch, of_step);
        let row = self.row_tokens.or(tokens).unwrap_or(1);
        let bucket = self.bucket_tokens.unwrap_or_else(|| self.micro_batch * row.div_ceil(cp));
        out.set("training", "bucket_tokens", bucket, "tokens of a micro-batch on one GPU");
        if let Some(tokens) = tokens.filter(|_| !machine.states(&LENGTHS)) {
            out.set("workload", "tokens", tokens, "all sequences are as long");
        }
        if let Some(row) = self.row_tokens {
            out.set("workload", "row_tokens", row, "what sequences are packed into");
        }
        // A policy's own keys stand below `[policies]`.
        let (of_policies, keys): (Vec<_>, Vec<_>) = self.keys.iter().partition(|(section, ..)| section.contains('.'));
        for (section, name, value, remark) in keys {
            out.set(section, name, value, *remark);
        }
        out.set("policies", "run", "[\"megatron\"]", "sequences in order");
        for (section, name, value, remark) in of_policies {
            out.set(section, name, value, *remark);
        }
        out
    }

    fn model(&self, flags: &mut Flags<'_>, out: &mut Document, machine: &Machine) {
        if machine.has_configuration() {
            return;
        }
        let beside = self.model.as_ref().filter(|_| machine.model.is_none());
        if let Some(path) = beside.and_then(|asked| checkpoint::local(asked, machine)) {
            return out.word("model", "config", path, "the checkpoint's own file");
        }
        let Some(asked) = machine.model.as_ref().or(self.model.as_ref()) else {
            if self.has_shape {
                return;
            }
            flags.findings.push(checkpoint::unnamed());
            return;
        };
        match of_checkpoint(asked) {
            Some(model) => out.word("model", "name", &model.name, asked.clone()),
            None => flags.findings.push(checkpoint::unknown(asked, flags.at(self.model_key))),
        }
    }

    fn tokens(&self, flags: &mut Flags<'_>, machine: &Machine) -> Option<u64> {
        let found = machine.tokens.or(self.tokens).or(self.row_tokens);
        let has_lengths = machine.states(&LENGTHS);
        let (what, help) = match (found, has_lengths) {
            (Some(_), _) => return found,
            // Micro-batches of so many tokens need no longest sequence.
            (None, true) if self.bucket_tokens.is_some() => return None,
            (None, true) => (
                "the file does not say how long sequences may be, of which micro-batches are made",
                "give `--set workload.max_tokens=4096`; what is longer is left out, or loses its end with `workload.longer=truncate`",
            ),
            (None, false) => (
                "the file does not say how long sequences are",
                "give `--set workload.tokens=4096` (`import`: `--tokens 4096`)",
            ),
        };
        flags.refuse(Code::MissingFlag, None, what, help);
        None
    }

    /// GPUs of a node.
    pub(crate) fn per_node(&self, machine: &Machine) -> u64 {
        u64::from(machine.gpus_per_node.or(self.gpus.1).unwrap_or_else(|| machine.usual_node())).max(1)
    }

    /// GPUs, where the command line or the files say them.
    pub(crate) fn n_gpus(&self, machine: &Machine) -> Option<u64> {
        let (of_files, _) = launch::with_stated(self.gpus, machine);
        machine.nodes.map(|nodes| u64::from(nodes) * self.per_node(machine)).or(of_files.map(u64::from))
    }

    fn gpus_are_not_said(&self, flags: &mut Flags<'_>, n_gpus: u64) {
        let help = "give `--set cluster.nodes=1 --set cluster.gpus_per_node=8`, or as many as there are";
        if self.asks_for_gpus {
            let what = "the file does not say how many GPUs there are, which share the model's states";
            return flags.refuse(Code::MissingFlag, None, what, help);
        }
        let what = format!(
            "the file does not say how many GPUs there are: {n_gpus} are taken, the fewest that the degrees fill"
        );
        flags.warn(Code::MissingFlag, None, what, help);
    }

    /// `[cluster]`; replicas that fill it.
    fn machine(&self, flags: &mut Flags<'_>, out: &mut Document, machine: &Machine) -> u64 {
        let [tp, pp, cp] = machine.over_degrees(self.degrees);
        let group = (tp * pp * cp).max(1);
        let (per_node, given) = (self.per_node(machine), self.n_gpus(machine));
        let n_gpus = given.or(self.dp.map(|dp| dp.saturating_mul(group))).unwrap_or(group);
        if given.is_none() && self.dp.is_none() {
            self.gpus_are_not_said(flags, n_gpus);
        }
        let dp = self.dp.unwrap_or(n_gpus / group);
        if dp.saturating_mul(group) != n_gpus {
            let what = format!("{n_gpus} GPUs are not {dp} replicas of tp {tp} × pp {pp} × cp {cp} = {group}");
            let help = "give other GPUs with `--set cluster.nodes=…`, or other degrees";
            flags.refuse(Code::WrongFlag, None, what, help);
        }
        if machine.is_named() {
            out.set("cluster", "nodes", machine.nodes.map_or_else(|| n_gpus.div_ceil(per_node), u64::from), "");
            return dp.max(1);
        }
        crate::write_gpu(flags, out, machine);
        let per_node = per_node.min(n_gpus);
        whole_nodes(flags, n_gpus, per_node);
        out.set("cluster", "nodes", n_gpus.div_ceil(per_node), "");
        out.set("cluster", "gpus_per_node", per_node, "");
        dp.max(1)
    }
}

/// Refuses GPUs that do not fill their nodes.
pub(crate) fn whole_nodes(flags: &mut Flags<'_>, n_gpus: u64, per_node: u64) {
    if !n_gpus.is_multiple_of(per_node) {
        let what = format!("{n_gpus} GPUs do not fill nodes of {per_node}");
        let help = "give `--set cluster.nodes=…` and `--set cluster.gpus_per_node=…`";
        flags.refuse(Code::WrongFlag, None, what, help);
    }
}
