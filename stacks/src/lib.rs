//! Launch scripts and flags of other stacks: scenarios are made from them, and files for them from plans.
//!
//! Text comes in and goes out; files and the command line are the shell's. A stack is a file that knows what its flags mean, and a table of them
//! (`tables/`): which key a flag gives, that it changes neither time nor memory, or that it matters and is not modelled. Nothing is executed.
//! Each table names the version of the stack that it was written for.

mod adapters;
mod again;
mod batch;
mod batching;
mod bridge;
mod cards;
mod chakra;
pub mod checked;
mod checkpoint;
mod client;
mod connectors;
mod data_order;
mod deepspeed;
pub mod document;
mod drafts;
mod dynamo;
pub mod elsewhere;
mod encoder;
mod environment;
#[cfg(test)]
mod example;
mod expert_kernel;
pub mod export;
#[cfg(test)]
mod exported;
mod fields;
mod flags;
mod fleet;
mod host_weights;
#[cfg(test)]
mod hostile;
mod job;
mod kv_memory;
mod launch;
mod llm_d;
mod load;
mod megatron;
mod nanotron;
mod plugins;
mod positional;
mod quantization;
mod schedule;
mod servers;
mod serving;
pub mod settings;
mod sglang;
mod shell;
#[cfg(test)]
mod tables;
pub mod targets;
mod torchtitan;
mod trainer;
mod trtllm;
mod variables;
mod verl;
mod vllm;
pub mod weeks;
mod workers;
mod yaml;

use input::diagnostic::{Code, Finding, Severity};

/// Largest script or flag file that is read; nobody writes longer ones.
pub const BYTES_MAX: usize = 1 << 20;

hw::words! {
    /// A stack whose files are read.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Stack: name {
        /// Megatron-LM: a launch script, or the YAML of its functional tests.
        Megatron = "Megatron-LM",
        /// vLLM: a command that starts a server.
        Vllm = "vLLM",
        /// SGLang: a command that starts a server.
        Sglang = "SGLang",
        /// TensorRT-LLM: a command that starts a server, or the YAML of its options.
        Trtllm = "TensorRT-LLM",
        /// DeepSpeed: its JSON configuration.
        Deepspeed = "DeepSpeed",
        /// torchtitan: a launch script, or options alone.
        Torchtitan = "torchtitan",
        /// verl: its YAML, or a script with overrides of it.
        Verl = "verl",
        /// Megatron Bridge: overrides of a recipe, alone or in a script.
        Bridge = "Megatron Bridge",
        /// Dynamo: the deployment of a fleet.
        Dynamo = "Dynamo",
        /// nanotron: its YAML.
        Nanotron = "nanotron",
        /// Hugging Face's Trainer, Axolotl, LLaMA-Factory, ms-swift, TRL and torchtune: a YAML, or a script with their words.
        Trainer = "Hugging Face Trainer (Axolotl, LLaMA-Factory, ms-swift, TRL, torchtune)",
    }
}

/// What the command line says of the machine, which no script knows, and of what some files leave to a program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    /// GPU of the catalogue.
    pub gpu: Option<String>,
    /// Nodes.
    pub nodes: Option<u32>,
    /// GPUs of a node.
    pub gpus_per_node: Option<u32>,
    /// Cluster of the catalogue, which is named in its place.
    pub named: Option<String>,
    /// Model of the catalogue, in the place of the one that a file names.
    pub model: Option<String>,
    /// Tokens of a sequence, in the place of those that a file says: of each, or of the longest.
    pub tokens: Option<u64>,
    /// Rows of the model's vocabulary, in the place of those of a tokenizer.
    pub vocabulary: Option<u64>,
    /// Sequences of an optimizer step, where a file leaves them to a trainer.
    pub batch: Option<u64>,
    /// Tokens of a micro-batch on one GPU, where a file leaves them to a trainer.
    pub bucket_tokens: Option<u64>,
    /// Stage of ZeRO, in the place of the one that a file says.
    pub zero: Option<u64>,
    /// Tensor, pipeline and context degree, in the place of those that a file says.
    pub degrees: [Option<u64>; 3],
    /// Keys of the scenario that overrides state, so that nothing is to be said of what is taken in their place.
    pub stated: Vec<String>,
    /// Mean tokens of prompts and of answers that are generated, in the place of shares of their limits.
    pub generated: [Option<u64>; 2],
    /// How requests arrive, as overrides say it.
    pub arrivals: Option<String>,
    /// File with the model's configuration, in the place of the one that a file names.
    pub configuration: Option<String>,
    /// Files beside the one that is read, by the names that it gives them.
    pub files: Vec<(String, String)>,
}

impl Machine {
    /// What overrides of the form `cluster.key=value` say.
    pub fn of_overrides(set: &[String]) -> Self {
        let value = |key: &str| {
            let value = set.iter().rev().find_map(|item| item.strip_prefix(key)?.strip_prefix('='));
            value.map(|value| value.trim().trim_matches(['"', '\'']).to_owned())
        };
        let number = |key: &str| value(key)?.parse::<u32>().ok();
        let positive = |key: &str| value(key)?.replace('_', "").parse::<u64>().ok().filter(|number| *number > 0);
        Self {
            gpu: value("cluster.gpu"),
            nodes: number("cluster.nodes"),
            gpus_per_node: number("cluster.gpus_per_node"),
            named: value("cluster.name"),
            model: value("model.name"),
            tokens: positive("workload.tokens").or(positive("workload.max_tokens")),
            vocabulary: positive("model.config.vocab_size"),
            batch: positive("training.batch_size"),
            bucket_tokens: positive("training.bucket_tokens"),
            zero: number("parallel.zero").map(u64::from).filter(|stage| *stage <= 3),
            degrees: ["parallel.tp", "parallel.pp", "parallel.cp"].map(positive),
            stated: set.iter().filter_map(|item| Some(item.split_once('=')?.0.trim().to_owned())).collect(),
            generated: ["rollouts.prompt_tokens", "rollouts.answer_tokens"].map(positive),
            arrivals: value("trace.arrivals"),
            configuration: value("model.config"),
            files: Vec::new(),
        }
    }

    /// The same with the files that a text and overrides name, as far as they are there.
    #[must_use]
    pub fn with_files(&self, text: &str, read: &dyn Fn(&str) -> Option<String>) -> Self {
        let mut files = beside(text, read);
        files.extend(self.configuration.iter().filter_map(|name| Some((name.clone(), read(name)?))));
        Self { files, ..self.clone() }
    }

    /// Whether a cluster of the catalogue stands in the place of GPUs and their nodes.
    pub(crate) const fn is_named(&self) -> bool {
        self.named.is_some()
    }

    /// GPUs of a node where neither files nor the command line say them: those of the named cluster, or of a usual host of the card.
    pub(crate) fn usual_node(&self) -> u32 {
        let named = self.named.as_deref().and_then(|name| hw::catalog::cluster_named(name, 1));
        named.map_or_else(
            || hw::catalog::gpus_per_node(self.gpu.as_deref().unwrap_or_default()),
            |cluster| cluster.gpus_per_node,
        )
    }

    /// GPUs of a node: as the command line says, else as usual.
    pub(crate) fn per_node(&self) -> u32 {
        self.gpus_per_node.unwrap_or_else(|| self.usual_node())
    }

    /// Tensor, pipeline and context degree of a file, with those that overrides state.
    pub(crate) fn over_degrees(&self, of_file: [u64; 3]) -> [u64; 3] {
        std::array::from_fn(|index| self.degrees[index].unwrap_or(of_file[index]))
    }

    /// Whether an override states one of these keys.
    pub(crate) fn states(&self, keys: &[&str]) -> bool {
        self.stated.iter().any(|stated| keys.contains(&stated.as_str()))
    }

    /// Whether an override gives the configuration of a model, in the place of the one that a file names.
    pub(crate) fn has_configuration(&self) -> bool {
        self.states(&["model.config"])
    }

    /// Whether overrides state all that a warning asks for, so that nothing is taken in its place.
    fn answers(&self, finding: &Finding) -> bool {
        let help = finding.help.as_deref().unwrap_or_default();
        let keys = || help.split("--set ").skip(1).filter_map(|rest| rest.split_once('='));
        let is_taken = finding.code == Code::MissingFlag && finding.severity == Severity::Warning;
        is_taken && keys().next().is_some() && keys().all(|(key, _)| self.states(&[key]))
    }

    /// A file beside the one that is read.
    pub(crate) fn beside(&self, name: &str) -> Option<&str> {
        self.files.iter().find(|(known, _)| known == name).map(|(_, text)| text.as_str())
    }
}

/// Names of files that a text of a stack refers to and that are read with it: names within its folder, so that nothing outside of it is opened.
pub fn named_beside(text: &str) -> Vec<String> {
    const OPTION: &str = "pipeline_parallel_schedule_csv";
    let values = launch::lines(text).filter_map(|line| {
        let rest = line.split_once(OPTION)?.1.trim_start_matches(['=', ' ']);
        rest.split([' ', '\\']).next()
    });
    let names = values.map(|value| value.trim_matches(['"', '\'']).to_owned());
    let is_bare = |name: &String| !name.is_empty() && !name.contains(['/', '\\']) && name != "..";
    let schedule: Vec<String> = names.filter(is_bare).take(1).collect();
    let of_torchtitan = torchtitan::file::names(text);
    let others = if schedule.is_empty() { trainer::named_beside(text) } else { schedule };
    let mut names: Vec<String> = of_torchtitan.into_iter().chain(others).collect();
    let of_servers: Vec<String> =
        workers::named_beside(text).into_iter().filter(|name| !names.contains(name)).collect();
    names.extend(of_servers);
    let of_engine = megatron::deepspeed::named_beside(text).filter(|name| !names.contains(name));
    names.extend(of_engine);
    names.extend(nanotron::named_beside(text).filter(|name| !names.contains(name)));
    names.extend(checkpoint::named_beside(text));
    names
}

/// Files that a text names and that lie beside it, and those that they name: a command names a YAML, and that a configuration of DeepSpeed.
pub(crate) fn beside(text: &str, read: &dyn Fn(&str) -> Option<String>) -> Vec<(String, String)> {
    let mut files: Vec<(String, String)> = Vec::new();
    let mut names = named_beside(text);
    for _ in 0..2 {
        let found = names.iter().filter_map(|name| Some((name.clone(), read(name)?)));
        let found: Vec<(String, String)> = found.collect();
        names = found.iter().flat_map(|(_, text)| named_beside(text)).collect();
        files.extend(found);
    }
    files
}

/// What a foreign file says, as a scenario.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Imported {
    /// Text of the scenario; a part of one where there are errors.
    pub scenario: String,
    /// Errors and warnings, with places in the foreign file.
    pub findings: Vec<Finding>,
}

/// Whose file a text is, where it is one of a known stack.
pub fn recognise(text: &str) -> Option<Stack> {
    // Options with numbers alone are keys of TOML too, but no scenario's.
    let has_options = launch::lines(text).any(|line| line.starts_with("--"));
    if let Ok(root) = toml_span::parse(text) {
        if torchtitan::file::is_file(&root) {
            return Some(Stack::Torchtitan);
        }
        if !has_options {
            return None;
        }
    }
    // The beginning of a file that is too long says whose it is, and reading it says that it is too long.
    let text = head(text);
    let has = |marks: &[&str]| launch::has_any(text, marks);
    if elsewhere::servers::is_of_a_tool(text) || elsewhere::is_of_nemo(text) {
        None
    } else if has(&["kind: DynamoGraphDeployment"]) {
        Some(Stack::Dynamo)
    } else if has(&["vllm serve", "vllm.entrypoints"])
        || has(&client::OF_VLLM)
        || has(&["vllm/vllm-openai"]) && has(&["docker", "podman"])
        || workers::runs_vllm(text)
    {
        Some(Stack::Vllm)
    } else if has(&sglang::MODULES) || has(&["sglang serve"]) || has(&client::OF_SGLANG) {
        Some(Stack::Sglang)
    } else if has(&["trtllm-serve", client::OF_TRTLLM]) || trtllm::is_own_yaml(text) {
        Some(Stack::Trtllm)
    } else if workers::is_manifest(text) || workers::starts_by_variable(text) {
        Some(Stack::Vllm)
    } else if deepspeed::import::is_config(text) {
        Some(Stack::Deepspeed)
    } else if has(&["actor_rollout_ref"]) {
        Some(Stack::Verl)
    } else if has(&["--parallelism.", "--training.local_batch_size", "--training.seq_len", "torchtitan.train"])
        || torchtitan::configurations::is_script(text)
    {
        Some(Stack::Torchtitan)
    } else if nanotron::is_job(text) {
        Some(Stack::Nanotron)
    } else if megatron::swift::starts(text) {
        Some(Stack::Megatron)
    } else if trainer::is_job(text) {
        Some(Stack::Trainer)
    } else if bridge::import::has_overrides(text) {
        Some(Stack::Bridge)
    } else if has(&["--num-layers", "--tensor-model-parallel-size", "pretrain_", "MODEL_ARGS:"]) {
        Some(Stack::Megatron)
    } else if trainer::is_launch(text) {
        Some(Stack::Trainer)
    } else {
        None
    }
}

/// The beginning of a text, up to `BYTES_MAX` bytes.
pub fn head(text: &str) -> &str {
    let end = (0..=BYTES_MAX.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    &text[..end.unwrap_or(0)]
}

/// Reads a file of a stack.
pub fn import(stack: Stack, text: &str, machine: &Machine) -> Imported {
    if text.len() > BYTES_MAX {
        let what = format!("the file is longer than {} KiB", BYTES_MAX >> 10);
        return Imported::refused(Finding::error(Code::UnreadableScript, None, what));
    }
    let mut found = read(stack, text, machine);
    positional::said(text, &mut found.findings);
    found.findings.retain(|finding| !machine.answers(finding));
    found
}

fn read(stack: Stack, text: &str, machine: &Machine) -> Imported {
    match stack {
        Stack::Megatron => megatron::import(text, machine),
        Stack::Vllm | Stack::Sglang => workers::imported(text, machine),
        Stack::Trtllm if trtllm::is_script(text) || workers::is_split(text) => workers::imported(text, machine),
        Stack::Trtllm => trtllm::import(text, machine),
        Stack::Deepspeed => deepspeed::import::import(text, machine),
        Stack::Torchtitan => torchtitan::import::import(text, machine),
        Stack::Verl => verl::import(text, machine),
        Stack::Bridge => bridge::import::import(text, machine),
        Stack::Dynamo => dynamo::import(text, machine),
        Stack::Nanotron => nanotron::import(text, machine),
        Stack::Trainer => trainer::import(text, machine),
    }
}

impl Imported {
    /// A file of which nothing is read, and why.
    fn refused(why: impl Into<Finding>) -> Self {
        Self { findings: vec![why.into()], ..Self::default() }
    }
}

/// Writes the GPU of `[cluster]`.
fn write_gpu(flags: &mut flags::Flags<'_>, out: &mut document::Document, machine: &Machine) {
    match &machine.gpu {
        Some(gpu) => out.word("cluster", "gpu", gpu, "--gpu or --set cluster.gpu"),
        None => flags.findings.push(no_gpu()),
    }
}

/// An error about a file without a GPU, as all files are.
fn no_gpu() -> Finding {
    let help = "give `--set cluster.gpu=h100-sxm` (`import`: `--gpu h100-sxm`); `skrull-sim list gpus` shows all";
    Finding::error(Code::MissingFlag, None, "the file does not say which GPU it runs on").help(help)
}
