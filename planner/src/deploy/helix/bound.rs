//! What no run passes: a linear program over the work, the links and the requests in flight, whatever paths and batches are chosen.
//!
//! The maximum flow of a placement is planned at typical batches, and runs have others. Here every batch may be the best one. In a span of
//! T seconds let P and D be the prompt and the generated tokens whose whole round lies in the span, and let node i do P_i and D_i of them,
//! counted times layers (all of its own, fewer where nodes may skip layers that are done). Then for any scheduler:
//!
//! - **Work.** A batch of p prompt and d generated tokens takes t_p(p) + t_d(d) per layer. With a = min_p t_p(p)/p over the prompts that
//!   a batch admits, its prompt tokens take at least a each, and each generated one its part t_d(d)/d. Batches of a node do not overlap,
//!   and every token that came is copied once at c seconds, so a·P_i + Σ_d y_id·t_d(d)/d + c·(tokens received) <= T, where y_id of the
//!   D_i were made in batches of d, at most the node's limit. Tokens that are not counted only make batches longer.
//! - **Links.** One message at a time: Σ tokens · bytes / bandwidth <= T on every hop; prompt and generated tokens keep to the hops.
//! - **Requests.** A request is at one place at a time, and in a batch of d each token takes all of t_d(d). So a generated token takes
//!   Σ t_d(d) per layer, its own copying, and of every hop the transmission and the latency; with mean requests in flight N all of this
//!   adds up to at most N·T (Little). Prompts of n tokens take at least n·a per layer. Large batches are cheap for nodes and slow for
//!   requests; the program weighs both.
//!
//! What a run did meets all rows, so max P + D at the same mix of P and D is no less than what it passed (to the nanoseconds to which a
//! run rounds its events). No fairness, order or waiting is assumed; that is why real schedulers stay below.
//!
//! Instead of N the caches may be what is limited: a generated token whose request holds h tokens takes h of the memory as long as it
//! takes, all requests together at most what the nodes of one layer have (or, with hops into the middle of nodes, all caches over M
//! layers). This holds in the long run while no cache is overfilled.
//!
//! For any placement the rows of nodes are added up per type, in layers times tokens: all P·M and D·M are done somewhere. A node with k
//! layers has the cache of k layers, and the layers held are at least M. A token makes at least ⌈M / longest range⌉ + 1 hops,
//! the first over a node's link with the coordinator.
//!
//! Where tokens have a limit of time, the times that requests spend in batches and on the way add up to at most that for every generated token.
//!
//! Units: tokens per second; times in seconds per token and layer; the program's flows are in units of the fastest node.

use good_lp::{Expression, ProblemVariables, Variable, constraint, variable};
use serve::pool::{Curve, Pool, Room};

use super::replay::TOKEN_BYTES;
use super::{HandOver, Held, Holding, Machines, Traffic};
use crate::deploy::RentalError;
use crate::deploy::inventory::Network;
use crate::milp::{self, Budget, Program, Unsolved};
use crate::proof::{Bound, Status};

/// Batches up to this size are looked at one by one; a larger one counts as if it took its requests no time.
const SIZES_MAX: u32 = 4096;
/// Seconds per token that are no more than what rounding leaves of a flat curve. They count as none: the bound stays one, and no number of the program is
/// beyond what its solver takes.
const ROUNDING_S: f64 = 1e-15;
/// How near to its limit a row binds.
const BINDS: f64 = 1.0 - 1e-6;

/// Times of a kind of node, per token and layer.
struct Speed {
    /// Least seconds of a prompt token.
    prompt_s: f64,
    /// Sizes of batches that no mixture of others beats: seconds of the node, seconds of a request.
    batches: Vec<(f64, f64)>,
}

impl Speed {
    fn new(prompt: &Curve, decode: &Curve, prompt_tokens: u32, decodes: u32) -> Self {
        let prompt_s = Some(prompt.least_s_per_token(prompt_tokens)).filter(|seconds| *seconds > ROUNDING_S);
        Self { prompt_s: prompt_s.unwrap_or(0.0), batches: batches(decode, decodes.max(1)) }
    }
}

/// The lower left hull of (t(d)/d, t(d)) over all sizes d that are allowed.
fn batches(decode: &Curve, decodes_max: u32) -> Vec<(f64, f64)> {
    let size = |d: u32| (decode.at(f64::from(d)) / f64::from(d), decode.at(f64::from(d)));
    let mut all: Vec<(f64, f64)> = (1..=decodes_max.min(SIZES_MAX)).map(size).collect();
    if decodes_max > SIZES_MAX {
        all.push((decode.least_s_per_token(decodes_max), 0.0));
    }
    all.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
    let mut hull: Vec<(f64, f64)> = Vec::new();
    for next in all {
        if hull.last().is_some_and(|last| next.1 >= last.1) {
            continue;
        }
        while let [.., a, b] = hull[..]
            && (b.0 - a.0) * (next.1 - a.1) <= (b.1 - a.1) * (next.0 - a.0)
        {
            hull.pop();
        }
        hull.push(next);
    }
    hull
}

/// Columns that both programs have.
struct Columns {
    variables: ProblemVariables,
    /// All tokens, in units.
    total: Variable,
    /// Part of the time that each node, or type, works; at most 1.
    busy: Vec<Variable>,
    /// Part of the room that requests take; at most 1.
    held: Variable,
    /// `made[i][class][j]`: tokens times layers that node i makes in its batches of hull point j.
    made: Vec<Vec<Vec<Variable>>>,
    /// Generated tokens by class: what a request holds of the room for a second, and the part of all tokens.
    classes: Vec<(f64, f64)>,
    /// What a request holds while its prompt is read.
    prompt_held: f64,
}

impl Columns {
    fn new(speeds: &[Speed], traffic: &Traffic, room: f64) -> Self {
        let mut variables = ProblemVariables::new();
        let all = Holding { tokens: 1.0, share: 1.0 };
        let holdings = match &traffic.held {
            Held::InFlight(_) => std::slice::from_ref(&all),
            Held::Cached(holdings) => holdings,
        };
        let generated = 1.0 - traffic.prompt_share;
        let classes: Vec<(f64, f64)> = holdings.iter().map(|of| (of.tokens / room, of.share * generated)).collect();
        let part = || variable().min(0.0).max(1.0);
        let mut column = || variables.add(variable().min(0.0));
        let total = column();
        let mut of_batches = |speed: &Speed| -> Vec<Variable> { speed.batches.iter().map(|_| column()).collect() };
        let made = speeds.iter().map(|speed| classes.iter().map(|_| of_batches(speed)).collect()).collect();
        let busy = speeds.iter().map(|_| variables.add(part())).collect();
        let held = variables.add(part());
        let prompt_held = if matches!(traffic.held, Held::InFlight(_)) { 1.0 / room } else { 0.0 };
        Self { variables, total, busy, held, made, classes, prompt_held }
    }

    /// Seconds of node i for what it makes, and the room that its requests take meanwhile.
    fn making(&self, i: usize, speed: &Speed) -> (Expression, Expression) {
        let (mut node_s, mut held) = (Expression::from(0.0), Expression::from(0.0));
        for (made, (holds, _)) in self.made[i].iter().zip(&self.classes) {
            for (&made, &(per_node, per_request)) in made.iter().zip(&speed.batches) {
                node_s.add_mul(per_node, made);
                held.add_mul(per_request * holds, made);
            }
        }
        (node_s, held)
    }

    /// Generated tokens take at most so long on average, in batches and on the way.
    fn in_time(&self, speeds: &[Speed], latency_s: f64, token_s_max: f64) -> good_lp::Constraint {
        let mut spent = Expression::from(0.0);
        for (of, speed) in self.made.iter().zip(speeds) {
            for made in of {
                made.iter().zip(&speed.batches).for_each(|(&made, batch)| spent.add_mul(batch.1, made));
            }
        }
        let generated: f64 = self.classes.iter().map(|class| class.1).sum();
        constraint!(spent <= (token_s_max - latency_s) * generated * self.total)
    }

    /// Room that a hop's tokens take when a prompt's spends `prompt_s` and a generated one `decode_s` seconds.
    fn on_the_way(&self, flows: &[Vec<Variable>], hop: usize, prompt_s: f64, decode_s: f64) -> Expression {
        let prompt = prompt_s * self.prompt_held * flows[0][hop];
        flows[1..].iter().zip(&self.classes).fold(prompt, |all, (flow, (holds, _))| all + decode_s * holds * flow[hop])
    }

    /// Maximises the tokens under rows, and says what binds; `unit` is in tokens per second.
    fn solve(self, constraints: Vec<good_lp::Constraint>, unit: f64, words: Words) -> Result<Bound, RentalError> {
        let wanted: Vec<Variable> = self.busy.iter().copied().chain([self.held]).collect();
        let objective = -1.0 * self.total;
        let program = Program { variables: self.variables, objective, constraints, start: Vec::new() };
        let solved = milp::minimise(program, &wanted, Budget::default()).map_err(|why| match why {
            Unsolved::Infeasible => RentalError::Infeasible("no token gets through".to_owned()),
            Unsolved::Stopped(why) => RentalError::Budget(why),
        })?;
        if solved.status != Status::Optimal {
            return Err(RentalError::Budget("the bound's linear program was not solved in time".to_owned()));
        }
        let n_busy = solved.values[..self.busy.len()].iter().filter(|value| **value >= BINDS).count();
        let is_full = solved.values.last().is_some_and(|value| *value >= BINDS);
        let mut binding = Vec::new();
        if is_full {
            binding.push(words.room);
        }
        if n_busy > 0 {
            binding.push(format!("{n_busy} of {} {} always at work", self.busy.len(), words.nodes));
        }
        let binding = if binding.is_empty() { "links".to_owned() } else { binding.join(", ") };
        Ok(Bound { value: (-solved.objective * unit).max(0.0), limit: binding })
    }
}

/// How limits are called.
struct Words {
    room: String,
    nodes: &'static str,
}

fn named(held: &Held) -> String {
    match held {
        Held::InFlight(n) => format!("{n:.1} requests in flight"),
        Held::Cached(_) => "full caches".to_owned(),
    }
}

/// Tokens per second of the fastest of some nodes, which make flows numbers near 1.
fn unit(seconds: impl Iterator<Item = f64>) -> f64 {
    let rates = seconds.map(|seconds| 1.0 / seconds).filter(|rate| rate.is_finite());
    let most = rates.fold(0.0, f64::max);
    if most > 0.0 { most } else { 1.0 }
}

/// Tokens whose keys and values fit every layer.
fn cache_tokens(pool: &Pool, enters_inside: bool) -> f64 {
    let held = |layer: u32| {
        let nodes = pool.nodes.iter().filter(|node| (node.first..node.end).contains(&layer));
        hw::real(nodes.map(|node| node.room.kv_tokens).sum())
    };
    if enters_inside {
        return hw::real(pool.nodes.iter().map(serve::pool::Node::cache).sum()) / f64::from(pool.n_layers);
    }
    (0..pool.n_layers).map(held).fold(f64::INFINITY, f64::min)
}

/// Nothing passes where there is no room for a request.
fn nothing(held: &Held) -> Bound {
    Bound { value: 0.0, limit: named(held) }
}

/// What no run over a pool passes.
///
/// # Errors
/// When the linear program is not solved.
pub fn on_pool(pool: &Pool, traffic: &Traffic) -> Result<Bound, RentalError> {
    let inside =
        |hop: usize| pool.hops[hop].to.is_some_and(|to| layers(pool, hop) < f64::from(pool.nodes[to].n_layers()));
    let enters_inside: Vec<bool> = (0..pool.nodes.len())
        .map(|node| (0..pool.hops.len()).any(|hop| pool.hops[hop].to == Some(node) && inside(hop)))
        .collect();
    let room = match traffic.held {
        Held::InFlight(n) => n,
        Held::Cached(_) => cache_tokens(pool, enters_inside.contains(&true)),
    };
    if room <= 0.0 {
        return Ok(nothing(&traffic.held));
    }
    let speed = |room: &Room, prompt: &Curve, decode: &Curve| {
        let prompts = pool.prompt_tokens_max.saturating_mul(room.prompts).max(traffic.prompt_max);
        Speed::new(prompt, decode, prompts, room.decodes)
    };
    let speeds: Vec<Speed> = pool.nodes.iter().map(|node| speed(&node.room, &node.prompt, &node.decode)).collect();
    // Copying is certain only where every token enters at the first layer.
    let copy = |node: usize| if enters_inside[node] { 0.0 } else { pool.activation_bytes / pool.copy_bytes_per_s };
    let unit = unit(speeds.iter().zip(&pool.nodes).map(|(speed, node)| speed.prompt_s * f64::from(node.n_layers())));
    let mut columns = Columns::new(&speeds, traffic, room);
    // `flows[0]` are prompts, then the classes.
    let flows: Vec<Vec<Variable>> = (0..=columns.classes.len())
        .map(|_| columns.variables.add_vector(variable().min(0.0), pool.hops.len()))
        .collect();
    let mut constraints = conserved(pool, &columns, &flows, traffic.prompt_share);
    let mut held = Expression::from(0.0);
    for (node, speed) in speeds.iter().enumerate() {
        let (mut work, made) = columns.making(node, speed);
        held += made;
        for hop in (0..pool.hops.len()).filter(|&hop| pool.hops[hop].to == Some(node)) {
            let read_s = layers(pool, hop) * speed.prompt_s + copy(node);
            work.add_mul(read_s, flows[0][hop]);
            flows[1..].iter().for_each(|flow| work.add_mul(copy(node), flow[hop]));
            held += columns.on_the_way(&flows, hop, read_s, copy(node));
        }
        constraints.push(constraint!(unit * work == columns.busy[node]));
    }
    for (hop, way) in pool.hops.iter().enumerate() {
        let seconds = pool.message_bytes(way) / way.bytes_per_s;
        let all: Expression = flows.iter().map(|flow| Expression::from(flow[hop])).sum();
        constraints.push(constraint!(unit * seconds * all <= 1.0));
        held += columns.on_the_way(&flows, hop, seconds, seconds + way.latency.to_seconds().get());
    }
    constraints.push(constraint!(unit * held == columns.held));
    columns.solve(constraints, unit, Words { room: named(&traffic.held), nodes: "nodes" })
}

/// Layers that a token does at the end of a hop.
fn layers(pool: &Pool, hop: usize) -> f64 {
    hw::real(pool.layers_done(hop))
}

/// Every kind of token leaves the coordinator in its part, leaves a node as it came, and is made there for all layers that it does.
fn conserved(pool: &Pool, columns: &Columns, flows: &[Vec<Variable>], prompt_share: f64) -> Vec<good_lp::Constraint> {
    let mut all = Vec::new();
    let shares = std::iter::once(prompt_share).chain(columns.classes.iter().map(|class| class.1));
    for (flow, share) in flows.iter().zip(shares) {
        let sum = |of: &dyn Fn(usize) -> f64| -> Expression {
            (0..pool.hops.len()).map(|hop| (hop, of(hop))).filter(|of| of.1 != 0.0).map(|(hop, n)| n * flow[hop]).sum()
        };
        let begins = |hop: usize| f64::from(u8::from(pool.hops[hop].from.is_none()));
        all.push(constraint!(sum(&begins) == share * columns.total));
        for node in 0..pool.nodes.len() {
            let is = |end: Option<usize>| f64::from(u8::from(end == Some(node)));
            let net = sum(&|hop| is(pool.hops[hop].to) - is(pool.hops[hop].from));
            all.push(constraint!(net == 0.0));
        }
    }
    for (made, flow) in (0..columns.classes.len()).zip(&flows[1..]) {
        for node in 0..pool.nodes.len() {
            let into = (0..pool.hops.len()).filter(|&hop| pool.hops[hop].to == Some(node));
            let comes: Expression = into.map(|hop| layers(pool, hop) * flow[hop]).sum();
            let made: Expression = columns.made[node][made].iter().map(|&of| Expression::from(of)).sum();
            all.push(constraint!(comes == made));
        }
    }
    all
}

impl Machines {
    /// What no run over any placement on these machines passes.
    ///
    /// # Errors
    /// When the linear program is not solved.
    pub fn any_placement(&self, traffic: &Traffic) -> Result<Bound, RentalError> {
        let n_layers = f64::from(self.n_layers);
        let count = |of: usize| self.nodes().filter(|node| self.type_of(*node) == of).count() as u64;
        let longest = |of: usize| self.types[of].rooms.last().map_or(0, |room| room.layers).min(self.n_layers);
        let kept: Vec<usize> = (0..self.types.len()).filter(|&of| count(of) > 0 && longest(of) > 0).collect();
        let speeds: Vec<Speed> = kept.iter().map(|&of| self.best_speed(of, traffic)).collect();
        let unit = unit(speeds.iter().map(|speed| speed.prompt_s * n_layers));
        let room = match traffic.held {
            Held::InFlight(n) => n,
            // The largest caches there can be, over all layers.
            Held::Cached(_) => {
                let most = |of: usize| (0..=longest(of)).map(|k| self.cache(of, k)).max().unwrap_or(0);
                hw::real(kept.iter().map(|&of| count(of) * most(of)).sum()) / n_layers
            }
        };
        if room <= 0.0 {
            return Ok(nothing(&traffic.held));
        }
        let mut columns = Columns::new(&speeds, traffic, room);
        let copy = if self.hand_over == HandOver::Strict { self.activation_bytes / self.copy_bytes_per_s } else { 0.0 };
        let mut constraints = Vec::new();
        let reads = columns.variables.add_vector(variable().min(0.0), kept.len());
        let (mut held, mut cache, mut n_held) = (Expression::from(0.0), Expression::from(0.0), Expression::from(0.0));
        for (i, (&of, speed)) in kept.iter().zip(&speeds).enumerate() {
            let n = hw::real(count(of));
            let (mut work, made) = columns.making(i, speed);
            held += made;
            held.add_mul(speed.prompt_s * columns.prompt_held, reads[i]);
            let copy_s = copy / f64::from(longest(of));
            work.add_mul(speed.prompt_s + copy_s, reads[i]);
            columns.made[i].iter().flatten().for_each(|&made| work.add_mul(copy_s, made));
            constraints.push(constraint!(unit / n * work == columns.busy[i]));
            // Nodes of the type with k layers, as parts.
            let with = columns.variables.add_vector(variable().min(0.0), longest(of) as usize + 1);
            constraints.push(constraint!(with.iter().map(|&nodes| Expression::from(nodes)).sum::<Expression>() == n));
            for (k, &nodes) in (0..=longest(of)).zip(&with) {
                n_held.add_mul(f64::from(k), nodes);
                cache.add_mul(hw::real(self.cache(of, k)) / (room * n_layers), nodes);
            }
        }
        constraints.push(constraint!(n_held >= n_layers));
        // Every token comes to a first node over a link of its own with the coordinator.
        let Network { within, between, coordinator, .. } = self.inventory.network;
        let widest = coordinator.map_or(within.bytes_per_s.max(between.bytes_per_s), |link| link.bytes_per_s);
        let border = widest / TOKEN_BYTES;
        let n_nodes = hw::real(self.nodes().len() as u64);
        constraints.push(constraint!(columns.total <= n_nodes * border / unit));
        let hops = f64::from(self.n_layers.div_ceil(kept.iter().map(|&of| longest(of)).max().unwrap_or(1))) + 1.0;
        let nearest = within.latency_s.min(between.latency_s);
        let latency_s = hops * coordinator.map_or(nearest, |link| nearest.min(link.latency_s));
        if traffic.token_s_max.is_finite() {
            constraints.push(columns.in_time(&speeds, latency_s, traffic.token_s_max));
        }
        let read: Expression = reads.iter().map(|&read| Expression::from(read)).sum();
        constraints.push(constraint!(read == n_layers * traffic.prompt_share * columns.total));
        for (class, &(holds, share)) in columns.classes.iter().enumerate() {
            let made: Expression = columns.made.iter().flat_map(|of| &of[class]).map(|&of| Expression::from(of)).sum();
            constraints.push(constraint!(made == n_layers * share * columns.total));
            held.add_mul(latency_s * holds * share, columns.total);
        }
        // Room that weights take is taken too.
        let weights = if matches!(traffic.held, Held::Cached(_)) { 1.0 - cache } else { Expression::from(0.0) };
        constraints.push(constraint!(unit * held + weights == columns.held));
        columns.solve(constraints, unit, Words { room: named(&traffic.held), nodes: "types of nodes" })
    }

    /// Times of a type of nodes with its widest limits.
    fn best_speed(&self, of: usize, traffic: &Traffic) -> Speed {
        let node = &self.types[of];
        let most = |limit: fn(&Room) -> u32| node.rooms.iter().map(limit).max().unwrap_or(0);
        let prompts = self.prompt_tokens_max.saturating_mul(most(|room| room.prompts)).max(traffic.prompt_max);
        Speed::new(&node.prompt, &node.decode, prompts, most(|room| room.decodes))
    }

    /// Tokens times layers of the cache of a node of a type with so many layers.
    fn cache(&self, of: usize, layers: u32) -> u64 {
        self.types[of].room(layers).filter(|_| layers > 0).map_or(0, |room| room.kv_tokens * u64::from(layers))
    }
}

#[cfg(test)]
mod tests;
