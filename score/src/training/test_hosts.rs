//! Hosts of Megatron-LM's functional tests: how long a launch takes there, and what else the device waits for.
//!
//! The tests run models of a width of 512 in containers that log every step, without graphs, often with deterministic kernels. A layer's launches
//! are those of `engine::launch`, so one number per host is left: the time of a launch, Python and autograd with it. It is longer than on the hosts of
//! Megatron Bridge's runs (`constants.rs`), which are tuned for throughput. Units: microseconds, seconds.

use engine::Model;
use hw::Seconds;
use train::metrics::unexplained;
use train::problem::Problem;

use crate::table::Cells;

/// A host of the tests.
struct TestHost {
    /// Beginning of the cards' names.
    card: &'static str,
    launch_us: f64,
}

/// Fitted as the middle of predicted over measured of two dense models and one with experts: A100 on rows 193, 219 and 425, H100 on rows 105, 200 and
/// 410, GB200 on rows 48, 85 and 427.
const HOSTS: [TestHost; 3] = [
    TestHost { card: "a100", launch_us: 108.0 },
    TestHost { card: "h100", launch_us: 93.0 },
    TestHost { card: "gb200", launch_us: 95.0 },
];

/// In the names of runs of a release.
const RELEASE: &str = "_release";
/// By how much these hosts are off: a test takes up to 40 % longer in another container or on another machine of the same cards.
const OFF: f64 = 0.40;

/// Ending of the tests on one node of four GB200. Their machines are rented and read every micro-batch from storage that is far away: a step takes as
/// long per micro-batch on one stage as on four.
const ONE_NODE: &str = "_1node";
/// Time of such a read, seconds. Fitted on rows 69, 128 and 306.
const READ_S: f64 = 0.2;

/// Products of an iteration of Newton and Schulz, and its iterations (`--muon-num-ns-steps`).
const NEWTON_SCHULZ: [u32; 2] = [3, 5];
/// Launches of a matrix around these: momentum, norm, casts, transposition, scale, update.
const MUON_AROUND: u32 = 10;

/// Time of a launch, and by how much it is off. Release runs train for days on tuned hosts, as those of Bridge (`constants.rs`).
pub(super) fn launch(cells: &Cells<'_>, problem: &Problem) -> (Seconds, f64) {
    if cells.word("test").contains(RELEASE) {
        return (problem.execution.launches.each, unexplained::HOST);
    }
    let card = problem.cluster.gpu.name.as_str();
    let host = HOSTS.iter().find(|host| card.starts_with(host.card));
    (host.map_or(problem.execution.launches.each, |host| Seconds::new(host.launch_us * 1e-6)), OFF)
}

/// Time of a step in which the device waits for its host to do something else than launch passes: to read, and to launch the optimizer for every
/// matrix. Seconds.
pub(super) fn waits_s(cells: &Cells<'_>, problem: &Problem, n_micro_batches: u32) -> f64 {
    let is_read_far = cells.word("gpu").starts_with("GB") && cells.word("test").ends_with(ONE_NODE);
    let reads = if is_read_far { READ_S * f64::from(n_micro_batches) } else { 0.0 };
    let matrices = if cells.word("optimizer").contains("muon") { matrices(problem) } else { 0.0 };
    let owned = if cells.flag("distributed_optimizer") { matrices / f64::from(problem.layout.dp) } else { matrices };
    let launches = f64::from(NEWTON_SCHULZ[0] * NEWTON_SCHULZ[1] + MUON_AROUND);
    reads + owned * launches * problem.execution.launches.each.get()
}

/// Weight matrices of a rank: queries, keys, values (`--muon-split-qkv`) and output in every layer, and two of its feed-forward, or the router and two of
/// each expert.
fn matrices(problem: &Problem) -> f64 {
    let Model { n_layers, experts, .. } = &problem.model;
    let per_layer = 4 + experts.map_or(2, |experts| 1 + 2 * experts.n_routed / u64::from(problem.layout.ep));
    hw::real(n_layers * per_layer) / f64::from(problem.layout.pp)
}
