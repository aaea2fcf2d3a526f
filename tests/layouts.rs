//! A search of layouts against runs of each layout that is written by hand.

use skrull_sim::kinds::training::run as pipeline;

/// Sixteen layers on two nodes of two GPUs.
const BASE: &str = "kind = \"training\"\n\
    [model]\nname = \"llama-3.2-1b\"\n\
    [cluster]\ngpu = \"h100-sxm\"\nnodes = 2\ngpus_per_node = 2\n\
    [training]\nbatch_size = 8\n\
    [workload]\ntokens = 2048\n\
    [policies]\nrun = [\"megatron\"]\n";

/// What a framework may have in a layout, as docs/parallelism.md lists it.
struct Framework {
    name: &'static str,
    zero: &'static [u32],
    /// Schedules with their chunks.
    schedules: &'static [(&'static str, u32)],
    recompute: [&'static str; 3],
    /// Whether shares of gradients or parameters stand beside stages.
    shards_beside_stages: bool,
    /// Whether activations are sent to the host beside such a recompute.
    sends: fn(&str) -> bool,
}

const FRAMEWORKS: [Framework; 4] = [
    Framework {
        name: "formulas",
        zero: &[0, 1, 3],
        schedules: &[("1f1b", 1), ("interleaved", 3), ("zb-1p", 1)],
        recompute: ["\"none\"", "\"selective\"", "\"full\""],
        shards_beside_stages: true,
        sends: |_| true,
    },
    Framework {
        name: "megatron-core",
        zero: &[0, 1, 3],
        schedules: &[("1f1b", 1), ("interleaved", 3)],
        recompute: ["\"none\"", "[\"layernorm\", \"mlp\"]", "\"full\""],
        shards_beside_stages: false,
        sends: |recompute| recompute != "\"full\"",
    },
    Framework {
        name: "pytorch",
        zero: &[0, 2, 3],
        schedules: &[("1f1b", 1), ("interleaved", 3), ("zb-v", 2)],
        recompute: ["\"none\"", "\"selective\"", "\"full\""],
        shards_beside_stages: true,
        sends: |_| true,
    },
    Framework {
        name: "deepspeed",
        zero: &[0, 1, 2, 3],
        schedules: &[("1f1b", 1)],
        recompute: ["\"none\"", "\"selective\"", "\"full\""],
        shards_beside_stages: false,
        sends: |recompute| recompute == "\"full\"",
    },
];

/// A layout on four GPUs.
#[derive(Clone, Copy, Debug)]
struct Layout {
    tp: u32,
    pp: u32,
    cp: u32,
    zero: u32,
    schedule: (&'static str, u32),
    /// Whether the head counts as two layers when stages are cut.
    is_uneven: bool,
    recompute: &'static str,
    offload: &'static str,
    micro_batch: u32,
    products: &'static str,
}

/// A case: memory of a card, formats, and shares of activations on the host.
struct Case {
    memory_gib: u32,
    products: &'static [&'static str],
    offload: &'static [&'static str],
}

impl Layout {
    const fn dp(&self) -> u32 {
        4 / (self.tp * self.pp * self.cp)
    }

    /// What is written for it.
    fn keys(&self) -> Vec<String> {
        let Self { tp, pp, cp, zero, schedule: (schedule, chunks), recompute, offload, products, .. } = self;
        let mut keys = vec![
            format!(
                "parallel={{ dp = {}, tp = {tp}, pp = {pp}, cp = {cp}, zero = {zero}, schedule = \"{schedule}\", chunks = {chunks}, \
                 sequence_parallel = {} }}",
                self.dp(),
                *tp > 1
            ),
            format!("training.recompute={recompute}"),
            format!("training.offload_ratio={offload}"),
            format!("training.bucket_tokens={}", 2048 * self.micro_batch / cp),
            format!("training.products=\"{products}\""),
        ];
        keys.extend(self.is_uneven.then(|| "parallel.layers=[9, 7]".to_owned()));
        keys
    }
}

/// All of them with each of these values.
fn vary<T: Copy>(all: &[Layout], values: &[T], with: fn(Layout, T) -> Layout) -> Vec<Layout> {
    all.iter().flat_map(|&layout| values.iter().map(move |&value| with(layout, value))).collect()
}

impl Framework {
    /// Every layout of the lists that it has.
    fn layouts(&self, case: &Case) -> Vec<Layout> {
        let first = Layout {
            tp: 1,
            pp: 1,
            cp: 1,
            zero: 0,
            schedule: self.schedules[0],
            is_uneven: false,
            recompute: self.recompute[0],
            offload: "0",
            micro_batch: 1,
            products: "bf16",
        };
        let mut all = vary(&[first], &[1, 2], |of, tp| Layout { tp, ..of });
        all = vary(&all, &[1, 2], |of, pp| Layout { pp, ..of });
        all = vary(&all, &[1, 2], |of, cp| Layout { cp, ..of });
        all = vary(&all, self.zero, |of, zero| Layout { zero, ..of });
        all = vary(&all, self.schedules, |of, schedule| Layout { schedule, ..of });
        all = vary(&all, &[false, true], |of, is_uneven| Layout { is_uneven, ..of });
        all = vary(&all, &self.recompute, |of, recompute| Layout { recompute, ..of });
        all = vary(&all, case.offload, |of, offload| Layout { offload, ..of });
        all = vary(&all, &[1, 2], |of, micro_batch| Layout { micro_batch, ..of });
        all = vary(&all, case.products, |of, products| Layout { products, ..of });
        all.retain(|layout| self.has(layout));
        all
    }

    fn has(&self, of: &Layout) -> bool {
        let is_whole = of.tp * of.pp * of.cp <= 4 && 8 % (of.dp() * of.micro_batch) == 0;
        let is_sharded =
            of.zero == 0 || of.dp() * of.cp > 1 && (of.zero == 1 || of.pp == 1 || self.shards_beside_stages);
        // One stage has one order, and chunks are cut evenly here.
        let is_cut = of.pp > 1 && (!of.is_uneven || of.schedule.1 == 1) || of.schedule.0 == "1f1b" && !of.is_uneven;
        is_whole && is_sharded && is_cut && (of.offload == "0" || (self.sends)(of.recompute))
    }

    /// The same lists in the words of a search.
    fn search(&self, case: &Case) -> Vec<String> {
        let schedules: Vec<&str> = self.schedules.iter().map(|(name, _)| *name).collect();
        let (zero, products) = (self.zero, case.products);
        let (recompute, offload) = (self.recompute.join(", "), case.offload.join(", "));
        vec![
            "parallel.layout=\"search\"".to_owned(),
            format!(
                "search={{ tp = [1, 2], pp = [1, 2], cp = [1, 2], chunks = [3], micro_batch = [1, 2], zero = {zero:?}, \
                 schedules = {schedules:?}, recompute = [{recompute}], offload_ratio = [{offload}], sequence_parallel = [true], \
                 products = {products:?}, head_layers = [0, 2] }}"
            ),
        ]
    }

    /// Seconds of the step; `None` where the scenario is refused, or does not fit.
    fn step_s(&self, case: &Case, keys: Vec<String>) -> Option<f64> {
        let of_all =
            [format!("cluster.memory_gib={}", case.memory_gib), format!("training.framework=\"{}\"", self.name)];
        let set: Vec<&str> = of_all.iter().chain(&keys).map(String::as_str).collect();
        let checked = super::written(BASE.to_owned(), &set);
        checked.scenario.as_ref()?;
        let rows = pipeline::run(&super::training(checked), &|_| {}).result.results;
        rows[0].metrics.get("iteration_time_s").copied().filter(|_| rows[0].status.is_ok())
    }
}

#[test]
fn a_search_finds_what_runs_of_all_layouts_give() {
    for of in &FRAMEWORKS {
        for case in [
            Case { memory_gib: 80, products: &["bf16", "fp8"], offload: &["0"] },
            Case { memory_gib: 16, products: &["bf16"], offload: &["0", "1"] },
        ] {
            let all = of.layouts(&case).into_iter();
            let runs: Vec<(f64, Layout)> =
                all.filter_map(|layout| Some((of.step_s(&case, layout.keys())?, layout))).collect();
            assert!(runs.len() > 20, "{}, {} GiB: {} layouts fit", of.name, case.memory_gib, runs.len());
            let (least_s, best) = runs.iter().min_by(|a, b| a.0.total_cmp(&b.0)).expect("some fit");
            let found_s = of.step_s(&case, of.search(&case)).expect("a layout");
            let what = format!("{}, {} GiB: {found_s}, by hand {least_s} of {best:?}", of.name, case.memory_gib);
            assert!((found_s / least_s - 1.0).abs() < 1e-9, "{what}");
        }
    }
}
