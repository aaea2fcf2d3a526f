//! Degrees, the machine, the order of ranks and the split of layers.

use input::diagnostic::{Code, divisors};

use super::Shape;
use crate::Machine;
use crate::document::Document;
use crate::flags::Flags;
use train::stage_text;

/// Degrees of a job.
pub(super) struct Degrees {
    pub(super) tp: u32,
    pub(super) pp: u32,
    pub(super) cp: u32,
    pub(super) ep: u32,
    pub(super) expert_tp: u32,
    pub(super) chunks: u32,
    pub(super) gpus: u32,
    /// Layers of every stage along the path; empty for an even split.
    pub(super) layers: Vec<u32>,
}

/// The divisor of a number that is nearest to another.
fn nearest_divisor(n: u64, to: u64) -> u64 {
    (1..=n.min(100_000)).filter(|d| n.is_multiple_of(*d)).min_by_key(|d| d.abs_diff(to)).unwrap_or(1)
}

impl Degrees {
    pub(super) fn read(flags: &mut Flags<'_>, shape: &Shape, gpus: Option<u32>, machine: &Machine) -> Self {
        let mut of = |name: &str| flags.count(name, 1..=100_000).map(|n| u32::try_from(n).expect("in range"));
        let (tp, pp) = (of("tensor-model-parallel-size").unwrap_or(1), of("pipeline-model-parallel-size").unwrap_or(1));
        let (cp, ep) = (of("context-parallel-size").unwrap_or(1), of("expert-model-parallel-size").unwrap_or(1));
        let expert_tp = of("expert-tensor-parallel-size").unwrap_or(tp);
        let mut degrees = Self { tp, pp, cp, ep, expert_tp, chunks: 1, gpus: 0, layers: Vec::new() };
        divisions(flags, shape, &degrees);
        degrees.split(flags, shape);
        degrees.place_predicting(flags, shape);
        degrees.count_gpus(flags, gpus, machine);
        degrees.count_experts(flags, shape);
        degrees
    }

    /// Data-parallel replicas.
    pub(super) fn dp(&self) -> u32 {
        (self.gpus / self.group()).max(1)
    }

    /// GPUs of a replica.
    const fn group(&self) -> u32 {
        self.tp.saturating_mul(self.pp).saturating_mul(self.cp)
    }

    fn count_gpus(&mut self, flags: &mut Flags<'_>, gpus: Option<u32>, machine: &Machine) {
        let group = self.group();
        let given = machine.nodes.map(|nodes| nodes.saturating_mul(machine.per_node())).or(gpus);
        if let Some(given) = given {
            if !given.is_multiple_of(group) {
                let what = format!(
                    "a replica takes tp {} × pp {} × cp {} = {group} GPUs, which do not divide the {given} that there are",
                    self.tp, self.pp, self.cp
                );
                let near = given.div_ceil(group).saturating_mul(group);
                let at = ["tensor-model-parallel-size", "pipeline-model-parallel-size"]
                    .into_iter()
                    .find_map(|name| flags.at(name));
                let help = format!(
                    "allowed are multiples of {group} GPUs, for example {near}; or degrees whose product divides {given}"
                );
                flags.refuse(Code::WrongFlag, at, what, help);
            }
            self.gpus = given;
            return;
        }
        // Experts of a group may need more ranks than one replica has.
        let of_experts = self.ep.saturating_mul(self.expert_tp).div_ceil(self.tp.saturating_mul(self.cp));
        self.gpus = group.saturating_mul(of_experts.max(1));
        let what = format!(
            "the file does not say how many GPUs there are: {} are taken, the fewest that the degrees fill",
            self.gpus
        );
        let help = "give `--set cluster.nodes=…` and `--set cluster.gpus_per_node=…`, or `--nnodes` and `--nproc-per-node` in the script";
        flags.warn(Code::MissingFlag, None, what, help);
    }

    /// Refuses ranks of experts that do not divide the GPUs (`megatron/core/parallel_state.py`: "world_size is not divisible by expert_tensor_model_pipeline_parallel size").
    fn count_experts(&self, flags: &mut Flags<'_>, shape: &Shape) {
        const NAMES: [&str; 2] = ["expert-tensor-parallel-size", "expert-model-parallel-size"];
        let Self { ep, expert_tp, pp, gpus, .. } = *self;
        let group = ep.saturating_mul(expert_tp).saturating_mul(pp);
        let name = NAMES.into_iter().find(|name| flags.is(name));
        if let Some(name) =
            name.filter(|_| shape.n_experts > 0 && !gpus.is_multiple_of(group) && !super::is_wrong(&flags.findings))
        {
            let what = format!(
                "experts take expert tp {expert_tp} × ep {ep} × pp {pp} = {group} GPUs, which do not divide the {gpus} that there are"
            );
            flags.wrong(name, what, format!("allowed are degrees whose product divides {gpus}"));
        }
    }

    /// Virtual stages and layers of each stage.
    fn split(&mut self, flags: &mut Flags<'_>, shape: &Shape) {
        if !shape.stages.is_empty() {
            return self.of_pattern(flags, &shape.stages);
        }
        if let Some(text) = flags.needed("pipeline-model-parallel-layout") {
            return self.of_layout(flags, &text, shape);
        }
        let (pp, n_layers) = (u64::from(self.pp), shape.n_layers);
        let more = |name: &str, flags: &Flags<'_>| u32::from(flags.is(name));
        let ends =
            [more("account-for-embedding-in-pipeline-split", flags), more("account-for-loss-in-pipeline-split", flags)];
        let all = n_layers + u64::from(ends[0] + ends[1]);
        if let Some(chunks) = flags.count("num-virtual-stages-per-pipeline-rank", 1..=1000) {
            self.chunks = u32::try_from(chunks).expect("in range");
        } else if let Some(each) = flags.count("num-layers-per-virtual-pipeline-stage", 1..=10_000) {
            if !all.is_multiple_of(pp * each) {
                let what = format!("virtual stages of {each} layers do not fill {pp} pipeline ranks with {all} layers");
                let per_rank = all / pp;
                let help = if all.is_multiple_of(pp) {
                    format!("allowed are {}, nearest is {}", divisors(per_rank), nearest_divisor(per_rank, each))
                } else if all.is_multiple_of(each) {
                    format!("allowed pipeline degrees are {}", divisors(all / each))
                } else {
                    format!(
                        "no pipeline degree fits: stages may have {} layers, and ranks have to divide their number",
                        divisors(all)
                    )
                };
                flags.wrong("num-layers-per-virtual-pipeline-stage", what, help);
            }
            self.chunks = u32::try_from((all / pp / each).clamp(1, 1000)).expect("in range");
        }
        let given = ["decoder-first-pipeline-num-layers", "decoder-last-pipeline-num-layers"]
            .map(|name| flags.count(name, 1..=10_000));
        if given.iter().any(Option::is_some) {
            return self.of_ends(flags, shape, given);
        }
        let n_stages = pp * u64::from(self.chunks);
        if !all.is_multiple_of(n_stages) {
            let what = format!("{all} layers do not divide into {n_stages} stages");
            let help = format!(
                "allowed pipeline degrees are {}, nearest is {}; or give `--pipeline-model-parallel-layout`",
                divisors(all),
                nearest_divisor(all, pp)
            );
            flags.wrong("pipeline-model-parallel-size", what, help);
        } else if ends != [0, 0] && n_stages > 1 {
            self.layers = train::stage::beside_ends(all, n_stages, ends);
        }
    }

    /// Stages that the pattern of a hybrid marks.
    fn of_pattern(&mut self, flags: &mut Flags<'_>, stages: &[u32]) {
        let n_stages = u32::try_from(stages.len()).unwrap_or(u32::MAX);
        if !n_stages.is_multiple_of(self.pp) {
            let what =
                format!("the pattern marks {n_stages} stages, which {} pipeline ranks do not share evenly", self.pp);
            let name = super::hybrid::flag(flags).unwrap_or("hybrid-layer-pattern");
            return flags.wrong(name, what, format!("allowed are multiples of {}", self.pp));
        }
        self.chunks = n_stages / self.pp;
        self.layers = stages.to_vec();
    }

    /// Layers that predict further tokens stand on the last stage, unless a layout places them.
    fn place_predicting(&mut self, flags: &Flags<'_>, shape: &Shape) {
        let n_stages = self.pp.saturating_mul(self.chunks);
        let is_placed = flags.find("pipeline-model-parallel-layout").is_some();
        if shape.n_predicting == 0 || n_stages < 2 || is_placed {
            return;
        }
        if self.layers.is_empty() {
            let each = u32::try_from(shape.n_layers / u64::from(n_stages)).unwrap_or(u32::MAX);
            self.layers = vec![each; n_stages as usize];
        }
        if let Some(last) = self.layers.last_mut() {
            let n = shape.n_predicting * shape.layers_per_further_token;
            *last += u32::try_from(n).expect("few layers predict");
        }
    }

    /// Stages that a string lists.
    fn of_layout(&mut self, flags: &mut Flags<'_>, text: &str, shape: &Shape) {
        const NAME: &str = "pipeline-model-parallel-layout";
        let found = match stage_text::read(text) {
            Ok(found) => found,
            Err(why) => {
                let help =
                    "for example `Et*2|(tt|)*5t|tL`: embedding, layers, head, with `|` between stages".to_owned();
                return flags.wrong(NAME, format!("`{text}` is no layout: {why}"), help);
            }
        };
        let n_stages = u32::try_from(found.len()).unwrap_or(u32::MAX);
        if !n_stages.is_multiple_of(self.pp) {
            let what = format!("`{text}` has {n_stages} stages, which {} pipeline ranks do not share evenly", self.pp);
            return flags.wrong(NAME, what, format!("allowed are multiples of {}", self.pp));
        }
        let count = |of: fn(&stage_text::Held) -> u32| found.iter().map(|stage| u64::from(of(stage))).sum::<u64>();
        for (letter, sum, asked) in [
            ('t', count(|stage| stage.layers), shape.n_layers),
            ('m', count(|stage| stage.predicting), shape.n_predicting),
        ] {
            if sum != asked {
                let kind =
                    if letter == 't' { "layers" } else { "layers that predict further tokens (`--mtp-num-layers`)" };
                let what = format!("`{text}` holds {sum} {kind}, the model has {asked}");
                return flags.wrong(
                    NAME,
                    what,
                    format!("a letter `{letter}` stands for one of the {asked} {kind}: write {asked} of them"),
                );
            }
        }
        let layers: Vec<u32> = found.iter().map(|stage| stage.layers + stage.predicting).collect();
        self.chunks = (n_stages / self.pp).max(1);
        self.layers = layers;
    }

    /// A first and a last pipeline rank with layers of their own.
    fn of_ends(&mut self, flags: &mut Flags<'_>, shape: &Shape, given: [Option<u64>; 2]) {
        let [first, last] = given;
        let n_ends = given.iter().flatten().count() as u64;
        let n_inner = u64::from(self.pp).saturating_sub(n_ends);
        let rest = shape.n_layers.checked_sub(first.unwrap_or(0) + last.unwrap_or(0));
        let chunks = u64::from(self.chunks);
        let is_whole = |n: u64| n.is_multiple_of(chunks);
        // Two ranks have two ends and nothing between.
        let inner = match n_inner {
            0 => rest.filter(|&rest| rest == 0 && n_ends == u64::from(self.pp)),
            _ => rest.filter(|rest| rest.is_multiple_of(n_inner)).map(|rest| rest / n_inner),
        };
        let wholes = [first, last, inner].into_iter().flatten().all(is_whole);
        let Some(inner) = inner.filter(|_| wholes) else {
            let name =
                if first.is_some() { "decoder-first-pipeline-num-layers" } else { "decoder-last-pipeline-num-layers" };
            let what = format!(
                "{} layers less those of the ends do not divide over {n_inner} pipeline ranks of {chunks} stages",
                shape.n_layers
            );
            return flags.wrong(
                name,
                what,
                "what is left must divide, and every rank's layers over its virtual stages".to_owned(),
            );
        };
        let mut ranks = vec![inner; self.pp as usize];
        if let Some(first) = first {
            ranks[0] = first;
        }
        if let (Some(last), Some(rank)) = (last, ranks.last_mut()) {
            *rank = last;
        }
        let each: Vec<u32> = ranks.iter().map(|n| u32::try_from(n / chunks).unwrap_or(u32::MAX)).collect();
        self.layers = each.repeat(self.chunks as usize);
    }
}

/// Heads, groups and experts that degrees cut.
fn divisions(flags: &mut Flags<'_>, shape: &Shape, degrees: &Degrees) {
    let mut check = |name: &str, degree: u32, n: u64, of: &str| {
        if n.is_multiple_of(u64::from(degree)) {
            return;
        }
        let what = format!("`--{name} {degree}` does not divide {n} {of}");
        let help = format!("allowed are {}, nearest is {}", divisors(n), nearest_divisor(n, u64::from(degree)));
        flags.wrong(name, what, help);
    };
    check("tensor-model-parallel-size", degrees.tp, shape.n_heads, "attention heads");
    // Groups may be fewer than ranks: each rank then holds a whole one.
    if shape.n_groups > u64::from(degrees.tp) {
        check("tensor-model-parallel-size", degrees.tp, shape.n_groups, "query groups");
    }
    if shape.n_experts > 0 {
        check("expert-model-parallel-size", degrees.ep, shape.n_experts, "experts");
        check("expert-tensor-parallel-size", degrees.expert_tp, u64::from(degrees.tp), "tensor ranks");
    } else if degrees.ep > 1 {
        let what = format!("`--expert-model-parallel-size {}`, but there are no experts", degrees.ep);
        flags.wrong("expert-model-parallel-size", what, "give `--num-experts`, or leave it out".to_owned());
    }
    // DeepSpeed-Ulysses cuts a sequence into one part for each rank.
    let parts = if flags.is(super::deepspeed::ULYSSES) { 1 } else { 2 };
    let step = parts * u64::from(degrees.cp);
    if degrees.cp > 1 && !shape.tokens.is_multiple_of(step) {
        let times = if parts == 2 { "twice the context degree" } else { "the degree" };
        let what = format!("`--seq-length {}` is not a multiple of {times} {}", shape.tokens, degrees.cp);
        flags.wrong(
            "seq-length",
            what,
            format!("allowed are multiples of {step}, for example {}", shape.tokens.next_multiple_of(step)),
        );
    }
}

/// `[cluster]`.
pub(super) fn machine(
    flags: &mut Flags<'_>,
    out: &mut Document,
    degrees: &Degrees,
    per_node: Option<u32>,
    machine: &Machine,
) {
    if machine.is_named() {
        // A named machine fixes the GPUs of its nodes.
        let per_node = machine.per_node();
        return out.set("cluster", "nodes", machine.nodes.unwrap_or(degrees.gpus.div_ceil(per_node)), "");
    }
    crate::write_gpu(flags, out, machine);
    let stated = machine.gpus_per_node.or(per_node.filter(|_| machine.nodes.is_none()));
    let per_node = stated.unwrap_or_else(|| machine.usual_node()).min(degrees.gpus);
    crate::job::whole_nodes(flags, degrees.gpus.into(), per_node.into());
    out.set("cluster", "nodes", degrees.gpus.div_ceil(per_node), "--nnodes");
    out.set("cluster", "gpus_per_node", per_node, "--nproc-per-node");
}

/// `[parallel]`.
pub(super) fn write(flags: &mut Flags<'_>, out: &mut Document, degrees: &Degrees, shape: &Shape) {
    let mut set = |name: &str, value: u32, flag: &str| out.set("parallel", name, value, flag);
    set("tp", degrees.tp, "--tensor-model-parallel-size");
    set("pp", degrees.pp, "--pipeline-model-parallel-size");
    set("cp", degrees.cp, "--context-parallel-size");
    if shape.n_experts > 0 {
        set("ep", degrees.ep, "--expert-model-parallel-size");
        set("expert_tp", degrees.expert_tp, "--expert-tensor-parallel-size, else that of the rest");
    }
    set("zero", zero(flags), "--use-distributed-optimizer, --data-parallel-sharding-strategy");
    let copies = flags.count("num-distributed-optimizer-instances", 1..=100_000).unwrap_or(1);
    if copies > 1 {
        out.set("parallel", "replicate", copies, "--num-distributed-optimizer-instances");
    }
    if degrees.tp > 1 {
        out.set("parallel", "sequence_parallel", flags.is("sequence-parallel"), "--sequence-parallel");
    }
    if degrees.cp > 1 {
        let words = [("p2p", "ring"), ("a2a", "ulysses"), ("allgather", "gather"), ("a2a+p2p", "ring")];
        let exchange = flags.word("cp-comm-type", &words).unwrap_or("ring");
        if flags.text("cp-comm-type").is_some_and(|word| word == "a2a+p2p") {
            flags.not_modelled("cp-comm-type", "the exchange is taken as a ring over the whole context group");
        }
        out.word("parallel", "exchange", exchange, "--cp-comm-type");
    }
    if flags.is("use-tp-pp-dp-mapping") {
        out.word("parallel", "order", "tp-cp-pp-dp", "--use-tp-pp-dp-mapping");
    }
    if degrees.pp > 1 && degrees.chunks > 1 {
        out.word("parallel", "schedule", "interleaved", "virtual stages");
        out.set("parallel", "chunks", degrees.chunks, "--num-layers-per-virtual-pipeline-stage or the layout");
        group(flags, out, degrees.pp);
    } else if degrees.pp > 1 {
        out.word("parallel", "schedule", "1f1b", "Megatron-LM's own");
    }
    if degrees.pp > 1 && !degrees.layers.is_empty() {
        let words: Vec<String> = degrees.layers.iter().map(u32::to_string).collect();
        out.set(
            "parallel",
            "layers",
            format!("[{}]", words.join(", ")),
            "--pipeline-model-parallel-layout, --decoder-first-pipeline-num-layers, …",
        );
    }
}

/// Micro-batches that go through one virtual stage before the next one.
fn group(flags: &mut Flags<'_>, out: &mut Document, pp: u32) {
    const NAME: &str = "microbatch-group-size-per-virtual-pipeline-stage";
    let Some(n) = flags.count(NAME, 1..=100_000) else { return };
    if n < u64::from(pp) {
        let what = format!("`--{NAME} {n}` is smaller than a pipeline of {pp} ranks");
        return flags.wrong(NAME, what, format!("allowed are {pp} up to the micro-batches of a replica"));
    }
    out.set("parallel", "micro_batch_group", n, "--microbatch-group-size-per-virtual-pipeline-stage");
}

/// What is sharded over the data-parallel ranks.
fn zero(flags: &mut Flags<'_>) -> u32 {
    let is_fsdp = ["use-megatron-fsdp", "use-custom-fsdp"].into_iter().any(|name| flags.is(name));
    if flags.is("use-torch-fsdp2") {
        return 3;
    }
    let words = [("no_shard", 0), ("optim", 1), ("optim_grads", 2), ("optim_grads_params", 3)];
    let strategy = flags.word("data-parallel-sharding-strategy", &words);
    match (is_fsdp, strategy) {
        (true, strategy) => strategy.unwrap_or(0),
        (false, _) => u32::from(flags.is("use-distributed-optimizer")),
    }
}
