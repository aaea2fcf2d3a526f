//! A plan as options of torchtitan and as its recipe, with the pipeline schedule as a file beside them.

pub(crate) mod configurations;
pub(crate) mod file;
pub mod import;
mod recipe;
mod release;

use train::Problem;
use train::layout::{ContextExchange, Zero};
use train::problem::Loss;
use train::schedule::Placement;

use crate::export::{Even, ExportError, File, Planned, Target, Words, comments, expressible, training};
use crate::fields::Stack;
use crate::{schedule, weeks};

const NAME: &str = "torchtitan";
const VERSION: &str = "torchtitan 0.3 (torchtitan/config/configs.py)";

/// The target.
pub const TARGET: Target =
    Target::new(NAME, "options of a run, a recipe with them, and the pipeline schedule as CSV", VERSION, write);

/// An option: its section and name, and its value as the command line has it.
type Given = (&'static str, &'static str, String);

fn write(planned: &Planned<'_>, words: &Words) -> Result<Vec<File>, ExportError> {
    let (problem, plan) = training(planned, NAME)?;
    let (found, mut told) = expressible((problem, plan), NAME, Stack::Torchtitan)?;
    told.extend(weeks::remarks(words.weeks.as_ref(), problem, false));
    let mut given = degrees(problem, found);
    let mut files = Vec::new();
    if problem.layout.pp > 1 {
        given.extend(pipeline(problem, found)?);
        files = schedule::write(planned, words)?;
    }
    if problem.execution.framework.is_compiled() {
        given.push(("compile", "enable", "True".to_owned()));
        if problem.layout.tp == 1 && problem.execution.loss == Loss::Unfused {
            given.push(("compile", "components", "model".to_owned()));
        }
        if problem.execution.overlap.tensor > 0.0 {
            given.push(("compile", "enable_async_tensor_parallel", "True".to_owned()));
        }
    }
    let mut text = words.comments(VERSION) + &comments(&told);
    let kept = problem.execution.recompute.name();
    text += &format!("# Activation checkpointing is set by recipe.py: {kept}. Model: {}.\n", problem.model.name);
    for (section, name, value) in &given {
        // Its reader takes switches without a value.
        text += &match value.as_str() {
            "True" => format!("--{section}.{name}\n"),
            "False" => format!("--{section}.no_{name}\n"),
            value => format!("--{section}.{name}={value}\n"),
        };
    }
    files.insert(0, File::new("options.txt", text));
    files.push(File::new("recipe.py", recipe::text(problem, &given, words, &told)));
    Ok(files)
}

/// Sizes and degrees.
fn degrees(problem: &Problem, found: Even) -> Vec<Given> {
    let layout = &problem.layout;
    let replicas = if layout.zero == Zero::Off { layout.dp } else { layout.replicate };
    let shards = layout.dp / replicas;
    // A pipeline cuts the local batch, which is a flush, into micro-batches; without one the local batch is a micro-batch, and gradients are added up over them.
    let of_step = found.batch / u64::from(layout.dp);
    let of_flush = problem.flush_every().map_or(of_step, |every| of_step.min(every as u64 * found.micro_batch));
    let local = if layout.pp > 1 { of_flush } else { found.micro_batch };
    let numbers = [
        ("training", "seq_len", found.tokens),
        ("training", "local_batch_size", local),
        ("training", "global_batch_size", found.batch),
        ("parallelism", "data_parallel_replicate_degree", replicas.into()),
        ("parallelism", "data_parallel_shard_degree", shards.into()),
        ("parallelism", "tensor_parallel_degree", layout.tp.into()),
        ("parallelism", "context_parallel_degree", layout.cp.into()),
        ("parallelism", "expert_parallel_degree", layout.ep.into()),
        ("parallelism", "pipeline_parallel_degree", layout.pp.into()),
    ];
    let mut given: Vec<Given> = numbers.into_iter().map(|(section, name, n)| (section, name, n.to_string())).collect();
    if layout.tp > 1 {
        let is_cut = if layout.sequence_parallel { "True" } else { "False" };
        given.push(("parallelism", "enable_sequence_parallel", is_cut.to_owned()));
    }
    if layout.cp > 1 {
        // A ring passes the shards on; all-gather has them all at once.
        let method = if layout.exchange == ContextExchange::Gather { "allgather" } else { "alltoall" };
        given.push(("parallelism", "context_parallel_rotate_method", method.to_owned()));
    }
    given
}

/// The schedule's file, and how stages are cut and placed; otherwise which layers of stages its rule does not give.
fn pipeline(problem: &Problem, found: Even) -> Result<Vec<Given>, ExportError> {
    let layers: Vec<u64> = train::stage::stages(problem).iter().map(|stage| stage.n_layers().into()).collect();
    // With a file its runtime plays what is listed; the class says how many stages a rank has, and where.
    let (class, usual) = match problem.schedule.placement {
        Placement::V => ("ZBVZeroBubble", 2),
        Placement::Loop if problem.layout.chunks > 1 => ("Interleaved1F1B", 2),
        Placement::Loop | Placement::Linear | Placement::Bidirectional => ("1F1B", 1),
    };
    let is_usual = layers.len() as u64 == usual * u64::from(problem.layout.pp);
    let (less, each) = cut(&layers, is_usual).ok_or_else(|| {
        let what = vec![format!("stages of {layers:?} layers")];
        ExportError::NotExpressible { target: NAME, what }
    })?;
    let mut words = vec![
        ("parallelism", "pipeline_parallel_microbatch_size", found.micro_batch.to_string()),
        ("parallelism", "pipeline_parallel_first_stage_less_layers", less[0].to_string()),
        ("parallelism", "pipeline_parallel_last_stage_less_layers", less[1].to_string()),
        ("parallelism", "pipeline_parallel_schedule", class.to_owned()),
        ("parallelism", "pipeline_parallel_schedule_csv", "schedule.csv".to_owned()),
        // Captured by default, which its reader of options refuses beside a pipeline.
        ("training", "disable_cuda_graphs", "True".to_owned()),
    ];
    if !is_usual {
        words.push(("parallelism", "pipeline_parallel_layers_per_stage", each.to_string()));
    }
    Ok(words)
}

/// Layers that the first and the last stage have less, and those of a stage, by which torchtitan cuts a model into these stages
/// (`distributed/pipeline_parallel.py`: ends count as layers, and the first stages take what is over). Where the number of stages is not the usual one
/// of a schedule, the layers of a stage have to give it.
fn cut(layers: &[u64], is_usual: bool) -> Option<([u64; 2], u64)> {
    let n = layers.len() as u64;
    let most = layers.iter().max()?;
    let less = (0..=*most).flat_map(|first| (0..=*most).map(move |last| [first, last]));
    less.filter_map(|less| {
        let all = layers.iter().sum::<u64>() + less[0] + less[1];
        let each = all.div_ceil(n);
        let is_taken = less.iter().all(|less| *less <= all / n) && (is_usual || all.div_ceil(each) == n);
        (is_taken && stages(all, n, less) == layers).then_some((less, each))
    })
    .next()
}

/// Layers of so many stages, ends counted, as torchtitan cuts them.
pub(crate) fn stages(all: u64, n_stages: u64, less: [u64; 2]) -> Vec<u64> {
    // The first stages take one more layer each; the ends count as layers of theirs.
    let mut layers: Vec<u64> = (0..n_stages).map(|stage| all / n_stages + u64::from(stage < all % n_stages)).collect();
    let last = layers.len() - 1;
    layers[0] = layers[0].saturating_sub(less[0]);
    layers[last] = layers[last].saturating_sub(less[1]);
    layers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_are_cut_by_the_rule_of_torchtitan_or_not_at_all() {
        assert_eq!(cut(&[8, 8, 8, 8], false), Some(([0, 0], 8)));
        // 32 layers and an end on both sides over 8 stages.
        assert_eq!(stages(34, 8, [1, 1]), [4, 5, 4, 4, 4, 4, 4, 3]);
        for layers in [vec![4, 5, 4, 4, 4, 4, 4, 3], vec![7, 9, 9, 7], vec![6, 8, 8, 8]] {
            let (less, _) = cut(&layers, true).expect("its rule");
            let all = layers.iter().sum::<u64>() + less[0] + less[1];
            assert_eq!(stages(all, layers.len() as u64, less), layers, "{less:?}");
        }
        assert_eq!(cut(&[4, 9, 2, 9], true), None);
    }
}
