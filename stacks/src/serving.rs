//! A server as its command starts it: what engines share, and the scenario of it.
//!
//! A command of a server says nothing of requests. Those of the script's client are taken; without one a shipped table of lengths at one request a second
//! stands in the scenario, and a warning says so (`load.rs`).

pub(crate) mod templates;

use engine::Model;
use engine::model::{embedded, of_checkpoint, of_name};
use input::diagnostic::Code;
use serve::engine_preset::{Version, blocks};

use crate::adapters::Adapters;
use crate::batching::CHUNKS;
use crate::checkpoint::{self, is_narrow};
use crate::document::Document;
use crate::drafts::Drafts;
use crate::expert_kernel;
use crate::flags::{Flag, Flags, listed};
use crate::host_weights;
use crate::launch;
use crate::load::Load;
use crate::{Imported, Machine};

/// The word of keys and values in 16 bits.
pub(crate) const WIDE_KEYS: &str = "bf16";

/// What an engine's flags say.
#[derive(Clone, Debug)]
pub(crate) struct Server {
    /// Name of the engine's preset.
    pub(crate) engine: &'static str,
    /// Its batching policy.
    pub(crate) policy: &'static str,
    /// Checkpoint.
    pub(crate) model: Option<String>,
    /// The file that says its shape in the place of a name, where one lies beside the script; empty where an override gives it.
    pub(crate) configuration: Option<String>,
    /// GPUs that share every layer.
    pub(crate) tp: u64,
    /// Stages.
    pub(crate) pp: u64,
    /// Replicas, or ranks of data-parallel attention with experts over all.
    pub(crate) dp: u64,
    /// Such servers beside each other.
    pub(crate) copies: u64,
    /// Nodes of one of them, where the command says so.
    pub(crate) nodes: Option<u64>,
    /// GPUs that share the experts, where they are not cut.
    pub(crate) ep: Option<u64>,
    /// Whether the experts are cut over those GPUs in truth, and whole in the scenario alone.
    pub(crate) cuts_experts: bool,
    /// Other keys of `[engine]`, with the flags that gave them.
    pub(crate) keys: Vec<(&'static str, String, String)>,
    /// Format of the weights, of keys and values.
    pub(crate) formats: [Option<&'static str>; 2],
    /// Drafted tokens.
    pub(crate) drafts: Option<Drafts>,
    /// Adapters beside the model.
    pub(crate) adapters: Option<Adapters>,
    /// What the command line says of requests.
    pub(crate) load: Load,
    /// What chooses a server for a request, with the word that gave it.
    pub(crate) router: Option<(&'static str, String)>,
}

impl Server {
    /// A server of which nothing is known.
    pub(crate) const fn new(engine: &'static str, policy: &'static str) -> Self {
        Self {
            engine,
            policy,
            model: None,
            configuration: None,
            tp: 1,
            pp: 1,
            dp: 1,
            copies: 1,
            nodes: None,
            ep: None,
            cuts_experts: false,
            keys: Vec::new(),
            formats: [None, None],
            drafts: None,
            adapters: None,
            load: Load::NOTHING,
            router: None,
        }
    }

    /// A whole number of a flag, by any of its names, as a key of `[engine]`.
    pub(crate) fn count(&mut self, flags: &mut Flags<'_>, key: &'static str, names: &[&str], most: u64) {
        let Some(name) = flags.last_of(names) else { return };
        if let Some(n) = flags.count(name, 1..=most) {
            self.keys.push((key, n.to_string(), format!("--{name}")));
        }
    }

    /// A whole number that each of so many micro-batches has.
    pub(crate) fn times(&mut self, flags: &mut Flags<'_>, (key, name): (&'static str, &str), n: u64) {
        const MOST: u64 = 65_536;
        if flags.find(name).is_none() {
            return;
        }
        if let Some(each) = flags.count(name, 1..=MOST) {
            let remark = if n > 1 { format!("--{name}, of each of {n} stages") } else { format!("--{name}") };
            self.keys.push((key, each.saturating_mul(n).min(MOST).to_string(), remark));
        }
    }

    /// A whole number that so many groups share.
    pub(crate) fn share_of_count(&mut self, flags: &mut Flags<'_>, key: &'static str, name: &str, groups: u64) {
        let Some(n) = flags.count(name, 1..=1 << 26) else { return };
        self.keys.push((key, (n / groups.max(1)).max(1).to_string(), format!("--{name}")));
    }

    /// A whole number, or one with a letter: thousands of `8k`, powers of two of `8K`.
    pub(crate) fn size(&mut self, flags: &mut Flags<'_>, key: &'static str, name: &str, most: u64) {
        if let Some(flag) = flags.given.iter_mut().rev().find(|flag| flag.name == name)
            && let Some(number) = with_letter(&flag.value())
        {
            flag.values = vec![number.to_string()];
        }
        self.count(flags, key, &[name], most);
    }

    /// Batches that are captured: a list, or the largest of the engine's own.
    pub(crate) fn graphs(&mut self, flags: &mut Flags<'_>, lists: &[&str], largest: &[&str]) {
        if let Some(name) = flags.last_of(lists)
            && let Some(list) = flags.text(name).and_then(|text| listed(&text))
        {
            return self.key("graph_sizes", list, &format!("--{name}"));
        }
        self.count(flags, "graph_max", largest, 65_536);
    }

    /// A share of memory.
    pub(crate) fn share(&mut self, flags: &mut Flags<'_>, names: &[&str]) {
        let Some(name) = flags.last_of(names) else { return };
        let Some(share) = flags.number(name) else { return };
        if (0.01..=1.0).contains(&share) {
            return self.keys.push(("memory_ratio", share.to_string(), format!("--{name}")));
        }
        let what = format!("`--{name} {share}` is no share of memory");
        flags.wrong(name, what, "allowed are numbers from 0.01 to 1".to_owned());
    }

    /// Any key.
    pub(crate) fn key(&mut self, key: &'static str, value: impl std::fmt::Display, flag: &str) {
        self.keys.push((key, value.to_string(), flag.to_owned()));
    }

    /// The library that computes experts, where one is asked for.
    pub(crate) fn expert_kernel(&mut self, asked: expert_kernel::Asked) {
        if let Some((kernel, source)) = asked {
            self.key("expert_kernel", format!("\"{}\"", kernel.word()), &source);
        }
    }

    /// Weights in host memory, where some are asked for.
    pub(crate) fn host_weights(&mut self, asked: host_weights::Found) {
        if let Some((value, flag)) = asked {
            self.key("host_weights", value, flag);
        }
    }

    /// The version that the image of a container says.
    pub(crate) fn version(&mut self, version: Option<&String>) {
        if let Some(version) = version {
            self.key("version", crate::document::quoted(version), "the image of the container");
        }
    }

    /// The checkpoint: what the command line names, else the path that the file gives. The name under which it is served counts where the path says
    /// nothing, or no formats of that model.
    pub(crate) fn named(&mut self, flags: &mut Flags<'_>, machine: &Machine, given: Option<String>) {
        self.load = Load::of(machine);
        if machine.model.is_some() {
            return self.model.clone_from(&machine.model);
        }
        let beside = given.as_ref().and_then(|path| checkpoint::local(path, machine));
        if machine.has_configuration() || beside.is_some() {
            let _ = flags.text("served-model-name");
            self.configuration = Some(beside.filter(|_| !machine.has_configuration()).unwrap_or("").to_owned());
            return;
        }
        let path = given.map(|path| checkpoint::in_cache(&path).unwrap_or(path));
        let of_path = path.as_deref().and_then(of_checkpoint);
        let served = path.as_ref().and_then(|_| flags.text("served-model-name")).unwrap_or_default();
        let better = served.split(' ').find(|name| says_more(name, of_path.as_ref()));
        self.model = better.map(str::to_owned).or(path);
    }

    /// Whether the served model has experts; `None` where it is not known.
    pub(crate) fn has_experts(&self) -> Option<bool> {
        self.model.as_deref().and_then(of_checkpoint).map(|model| model.experts.is_some())
    }

    /// Experts that are cut over all ranks of a replica: a scenario has them whole on its ranks alone, which a warning at the flag says.
    pub(crate) fn cut_experts(&mut self, flags: &mut Flags<'_>, name: &str, help: &str) {
        self.cuts_experts = true;
        let what = format!("experts that are cut over the ranks of `{}` are not modelled", flags.shown(name));
        let help = format!("they are timed as if they lay whole on the ranks; {help}");
        flags.warn(Code::NotModelled, flags.at(name), what, help);
    }

    /// Experts that lie on groups of a tensor group and are cut inside of each: taken to lie whole on all of its ranks.
    pub(crate) fn hybrid_experts(&mut self, flags: &mut Flags<'_>, names: &[&str]) {
        let is_hybrid = self.ep.is_some_and(|ep| ep > 1 && ep < self.tp && self.tp.is_multiple_of(ep));
        if !is_hybrid {
            return;
        }
        let name = flags.last_of(names).unwrap_or("ep-size");
        self.ep = Some(self.tp);
        self.cut_experts(flags, name, "give a degree as wide as the tensor degree, or leave it out");
    }

    /// Refuses a tensor degree that does not cut the heads of attention into equal parts, as engines do when they start. Heads of keys and values are cut
    /// too, or each lies on as many GPUs (`verify_with_parallel_config` in vllm/config/model.py, attention in vllm/model_executor/models/llama.py;
    /// SGLang has both of vLLM, TensorRT-LLM the first in tensorrt_llm/_torch/modules/attention.py).
    pub(crate) fn divides_heads(&self, flags: &mut Flags<'_>, names: &[&str], machine: &Machine) {
        let Some(model) = self.model.as_deref().and_then(of_checkpoint) else { return };
        if machine.states(&["engine.tp"]) {
            return;
        }
        let is_plain = model.latent.is_none() && model.heads_by_layer.is_none() && model.n_kv_heads > 0;
        let shares = |tp: u64| {
            let kv = model.n_kv_heads;
            model.n_heads.is_multiple_of(tp) && (!is_plain || kv.is_multiple_of(tp) || tp.is_multiple_of(kv))
        };
        if shares(self.tp.max(1)) {
            return;
        }
        let name = flags.last_of(names).unwrap_or(names[0]);
        let (shown, tp) = (flags.shown(name), self.tp);
        let heads = if model.n_heads.is_multiple_of(tp) {
            format!("{} heads of keys and values", model.n_kv_heads)
        } else {
            format!("{} attention heads", model.n_heads)
        };
        let what = format!("`{shown}`: {tp} GPUs do not share the {heads} of `{}` evenly", model.name);
        let allowed: Vec<String> = (1..=model.n_heads).filter(|tp| shares(*tp)).map(|tp| tp.to_string()).collect();
        let at = flags.at(name);
        flags.refuse(
            Code::UnevenDegree,
            at,
            what,
            format!("the server does not start so; allowed are {}", allowed.join(", ")),
        );
    }

    /// Refuses tensor groups that cut feed-forwards inside of a block of weights with one scale, as engines do when they start: dense ones are shared by
    /// `tensor` GPUs, each expert by `experts`; `whole` says how experts are laid whole.
    pub(crate) fn divides_blocks(
        &self,
        flags: &mut Flags<'_>,
        names: &[&str],
        machine: &Machine,
        ([tensor, experts], whole): ([u64; 2], &str),
    ) {
        const STATED: [&str; 5] = ["engine.tp", "engine.ep", "engine.version", "engine.weights", "model.weights"];
        let Some(model) = self.model.as_deref().and_then(of_checkpoint) else { return };
        let version = self.keys.iter().find(|(key, ..)| *key == "version");
        let version = version.map_or(Version::NEWEST, |(_, text, _)| Version::parse(text.trim_matches('"')));
        let refusal = blocks::refusal((self.engine, version), (&model, model.formats), [tensor, experts]);
        let Some(blocks::Refusal { why, starts_whole, degrees, newer }) = refusal else { return };
        // One reason is enough.
        let is_refused = flags.findings.iter().any(|finding| finding.code == Code::UnevenDegree);
        if is_refused || machine.states(&STATED) {
            return;
        }
        let name = flags.last_of(names).unwrap_or(names[0]);
        let whole = format!("{whole} lays experts whole on their GPUs; else ");
        let whole = if starts_whole { whole } else { String::new() };
        let help = format!("the server does not start so; {whole}allowed are {degrees}{newer}");
        flags.refuse(Code::UnevenDegree, flags.at(name), format!("`{}`: {why}", flags.shown(name)), help);
    }

    /// A degree, by any of its names.
    pub(crate) fn degree(flags: &mut Flags<'_>, names: &[&str]) -> Option<u64> {
        let name = flags.last_of(names)?;
        flags.count(name, 1..=4096)
    }

    /// The scenario of it.
    pub(crate) fn import(self, mut flags: Flags<'_>, machine: &Machine) -> Imported {
        let mut out = self.document(&mut flags);
        self.machine(&mut flags, &mut out, machine);
        out.set("engine", "tp", self.tp, "tensor degree");
        self.batching(&mut out);
        self.routed(&mut out);
        flags.judge();
        Imported { scenario: out.toml(), findings: flags.findings }
    }

    /// Its rule of batching.
    pub(crate) fn batching(&self, out: &mut Document) {
        let remark = match self.policy {
            CHUNKS => "decodes first, prompts are cut by what is left of max_tokens",
            _ => "the engine's own batching",
        };
        out.set("policies", "run", format!("[\"{}\"]", self.policy), remark);
    }

    /// Servers of which each takes requests of its own.
    pub(crate) fn n_replicas(&self) -> u64 {
        if self.ep.is_some() { self.copies } else { self.copies.saturating_mul(self.dp) }
    }

    /// What chooses one of several for a request.
    pub(crate) fn routed(&self, out: &mut Document) {
        if let Some((router, word)) = &self.router {
            out.word("fleet", "router", router, format!("the router's `{word}`"));
        }
    }

    /// What it is without its GPUs: model, requests that stand for those nobody says, and the engine.
    pub(crate) fn document(&self, flags: &mut Flags<'_>) -> Document {
        let mut out = Document::default();
        out.remark("A server as a scenario; remarks name the options that gave the keys.");
        out.word("", "kind", "serving", "");
        out.set("", "seed", 0, "");
        self.model(flags, &mut out);
        self.load.write(flags, &mut out);
        self.engine(flags, &mut out);
        out
    }

    fn model(&self, flags: &mut Flags<'_>, out: &mut Document) {
        if let Some(path) = &self.configuration {
            if !path.is_empty() {
                out.word("model", "config", path, "the checkpoint's own file");
            }
            return self.weights(None, out);
        }
        let Some(asked) = &self.model else {
            let help = "name the checkpoint that is served, or give `--set model.name=…` (`import`: `--model …`)";
            flags.missing("model", help);
            return;
        };
        let found = of_checkpoint(asked);
        match &found {
            Some(model) if is_release(model, asked) => out.word("model", "name", asked, model.name.clone()),
            Some(model) => out.word("model", "name", &model.name, asked.clone()),
            None => {
                let at = flags.at("model").or_else(|| flags.at("model-path"));
                flags.findings.push(checkpoint::unknown(asked, at));
            }
        }
        self.weights(found.as_ref(), out);
    }

    /// Formats that flags name.
    fn weights(&self, found: Option<&Model>, out: &mut Document) {
        // A flag names how such a checkpoint was made, and changes nothing of it.
        let weights = self.formats[0].filter(|_| !found.is_some_and(is_narrow));
        // Keys and values of 16 bits are said where the checkpoint has others.
        let has_narrow_keys = found.is_some_and(|model| model.formats.kv.bytes() == 1);
        let kept = self.formats[1].filter(|kv| *kv != WIDE_KEYS || has_narrow_keys);
        match (weights, kept) {
            (Some(weights), Some(kv)) => {
                let parts = format!("{{ format = \"{weights}\", kv = \"{kv}\" }}");
                out.set("model", "weights", parts, "format of weights, keys and values");
            }
            (Some(weights), None) => out.word("model", "weights", weights, "format of the weights"),
            (None, Some(kv)) => {
                out.set("model", "weights", format!("{{ kv = \"{kv}\" }}"), "format of keys and values");
            }
            (None, None) => {}
        }
    }

    /// GPUs of all replicas.
    pub(crate) fn n_gpus(&self) -> u64 {
        self.tp.saturating_mul(self.pp).saturating_mul(self.dp).saturating_mul(self.copies)
    }

    /// Nodes of a server that has more GPUs than its launcher or batch system gives it of one.
    pub(crate) fn started_by(&mut self, launcher: &[Flag]) {
        let per_node = launch::gpus(launcher).1.map(u64::from);
        let nodes = per_node.filter(|n| self.n_gpus().is_multiple_of(*n)).map(|n| self.n_gpus() / n);
        self.nodes = self.nodes.or(nodes.filter(|nodes| *nodes > 1));
    }

    /// GPUs of a node where nobody says them: those of one server on its nodes, else as many as up to those of a usual host that all replicas fill.
    fn per_node(&self, machine: &Machine) -> u64 {
        let of_server = self.n_gpus() / self.copies.max(1);
        if let Some(nodes) = self.nodes.filter(|nodes| of_server.is_multiple_of(*nodes)) {
            return of_server / nodes;
        }
        let (n_gpus, one) = (self.n_gpus(), self.tp.saturating_mul(self.pp).max(1));
        let is_filled = |n: &u64| n_gpus.is_multiple_of(*n) && (n.is_multiple_of(one) || one.is_multiple_of(*n));
        (1..=u64::from(machine.usual_node())).rev().find(is_filled).unwrap_or(1)
    }

    fn machine(&self, flags: &mut Flags<'_>, out: &mut Document, machine: &Machine) {
        if machine.is_named() {
            return out.set("cluster", "nodes", machine.nodes.unwrap_or(1), "");
        }
        crate::write_gpu(flags, out, machine);
        let n_gpus = self.n_gpus();
        let per_node = machine.gpus_per_node.map_or_else(|| self.per_node(machine), u64::from).min(n_gpus);
        out.set(
            "cluster",
            "nodes",
            machine.nodes.map_or_else(|| n_gpus.div_ceil(per_node), u64::from),
            "GPUs of all replicas",
        );
        out.set("cluster", "gpus_per_node", per_node, "");
    }

    fn engine(&self, flags: &mut Flags<'_>, out: &mut Document) {
        let has_version = self.keys.iter().any(|(key, ..)| *key == "version");
        let remark = if has_version { "" } else { "defaults of the newest known version" };
        out.word("engine", "name", self.engine, remark);
        if self.pp > 1 {
            out.set("engine", "pp", self.pp, "pipeline degree");
        }
        if let Some(ep) = self.ep.filter(|ep| *ep > 1) {
            let cut = if self.cuts_experts { "; the server cuts the experts over them" } else { "" };
            out.set("engine", "ep", ep, format!("expert degree: all ranks of the replica{cut}"));
        }
        for (key, value, flag) in &self.keys {
            out.set("engine", key, value, flag.clone());
        }
        if let Some(adapters) = &self.adapters {
            let ([engine, trace], assumed) = adapters.tables();
            out.set("engine", "adapters", engine, "slots and ranks of adapters");
            out.set("trace", "adapters", trace, "stands for which adapters your requests ask for");
            flags.findings.push(assumed);
        }
        if let Some(drafts) = &self.drafts {
            drafts.write(self.model.as_deref(), out, flags);
        }
    }
}

/// Whether the name under which a model is served says more than the path of its checkpoint.
fn says_more(name: &str, of_path: Option<&Model>) -> bool {
    match (of_checkpoint(name), of_path) {
        (Some(served), Some(own)) => served.name == own.name && is_narrow(&served) && !is_narrow(own),
        (served, None) => served.is_some(),
        (None, _) => false,
    }
}

/// Whether the path of a checkpoint says more than the model of its shape does: formats, or positions of that release.
fn is_release(model: &Model, asked: &str) -> bool {
    let has_positions = |shape: Model| shape.max_positions != model.max_positions && of_name(asked).is_some();
    is_narrow(model) || embedded(&model.name).is_some_and(has_positions)
}

/// A number with a letter, as vLLM reads it (`vllm/utils/argparse_utils.py`, `human_readable_int`): `8k` is 8,000, `8K` is 8,192, `1.5k` is 1,500.
pub(crate) fn with_letter(text: &str) -> Option<u64> {
    let (number, letter) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let power = "kmgt".find(&letter.to_lowercase())? as u32 + 1;
    if letter.chars().all(char::is_uppercase) {
        return number.parse::<u64>().ok()?.checked_mul(1024_u64.checked_pow(power)?);
    }
    let value = number.parse::<f64>().ok()? * 1000_f64.powi(power as i32);
    (0.0..1e15).contains(&value).then_some(value as u64)
}

#[cfg(test)]
mod tests;
