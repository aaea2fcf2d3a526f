//! How many GPUs a job has: what its launcher starts, and what its batch system gives.

use input::diagnostic::{Code, Finding};

use super::Launch;
use super::starter::Starter;
use crate::Machine;
use crate::batch;
use crate::environment;
use crate::flags::{Flag, of_words};
use crate::shell::{UNKNOWN, Word};

/// The list of nodes and slots of DeepSpeed.
const INCLUDED: [&str; 2] = ["include", "i"];
/// Processes of a node: each has a GPU.
const PROCESSES: [&str; 1] = ["nproc-per-node"];
/// Tasks of a node; each is a process, unless a task starts processes of its own.
const TASKS: [&str; 3] = ["ntasks-per-node", "npernode", "ppn"];
/// GPUs of a node.
const OF_A_NODE: [&str; 4] = ["gpus-per-node", "gres", "num-gpus", "gpus-on-node"];
/// All processes, or all GPUs.
const ALL: [&str; 6] = ["ntasks", "n", "np", "num-processes", "gpus", "G"];
/// Nodes.
const NODES: [&str; 5] = ["nnodes", "nodes", "N", "num-nodes", "num-machines"];
/// Programs of Open MPI, whose `-N` is `-npernode` (`mpirun(1)`).
const OF_MPI: [&str; 3] = ["mpirun", "mpiexec", "orterun"];
/// Words for as many processes as a node has devices (`determine_local_world_size` of PyTorch's `distributed/run.py`).
const AS_MANY: [&str; 2] = ["gpu", "auto"];

/// Flags of the words in front of a program. Where one of them starts the processes, tasks of the batch system are nodes, and left out.
pub(super) fn launcher(before: &[Word], batch: Vec<Flag>) -> Vec<Flag> {
    let starter = Starter::of(before).map(|(starter, _)| starter);
    let of_mpi = before.iter().find(|word| OF_MPI.contains(&word.text().rsplit('/').next().unwrap_or_default()));
    let own = of_words(before).into_iter().map(|flag| {
        let (name, glued) = batch::apart(&flag.name);
        let name = if name == "N" && of_mpi.is_some() { TASKS[1].to_owned() } else { name };
        let whole = starter.and_then(|starter| starter.whole(&name)).map(str::to_owned);
        let flag =
            Flag { name: whole.unwrap_or(name), values: glued.into_iter().chain(flag.values).collect(), at: flag.at };
        of_map(flag)
    });
    let starts = starter.is_some_and(Starter::fills_a_node);
    let is_kept = |flag: &Flag| !starts || !is_one(flag, &TASKS) && !is_one(flag, &["ntasks", "n", "np"]);
    let listed: Vec<Flag> = own.clone().filter_map(|flag| included(&flag)).collect();
    // What the command says counts before what the batch system gives.
    batch.into_iter().chain(own).chain(listed).filter(is_kept).collect()
}

/// `--map-by ppr:4:node` of Open MPI as tasks of a node.
fn of_map(flag: Flag) -> Flag {
    let value = flag.values.first().filter(|_| flag.name == "map-by");
    let per_node = value.and_then(|value| value.strip_prefix("ppr:")?.split_once(":node")).map(|(n, _)| n.to_owned());
    match per_node {
        Some(n) => Flag { name: TASKS[1].to_owned(), values: vec![n], at: flag.at },
        None => flag,
    }
}

/// GPUs of `deepspeed --include NODE:SLOT,SLOT`, where one node is named (`parse_node_config`); unknown where its slots are no numbers.
fn included(flag: &Flag) -> Option<Flag> {
    let value = flag.values.first().filter(|value| is_one(flag, &INCLUDED) && !value.contains('@'))?;
    let (_, slots) = value.split_once(':')?;
    let mut slots: Vec<Option<u32>> = slots.split(',').map(|slot| slot.parse().ok()).collect();
    slots.sort_unstable();
    slots.dedup();
    let number = if slots.contains(&None) { UNKNOWN.to_string() } else { slots.len().to_string() };
    Some(Flag { name: OF_A_NODE[2].to_owned(), values: vec![number], at: flag.at.clone() })
}

/// Errors about processes that find no device: their launcher starts them, and they stop.
pub(super) fn not_enough(before: &[Word], launch: &Launch) -> Option<Finding> {
    let starter = Starter::of(before).map(|(starter, _)| starter);
    if let Some(flag) = launch.launcher.iter().find(|flag| included(flag).is_some_and(|one| number(&one).is_none())) {
        let what = format!("`--include {}` is no list of slots", flag.value());
        let help =
            "write their numbers with commas between them, `--include localhost:0,1,2,3`: DeepSpeed takes no range";
        let is_known = !flag.value().contains(UNKNOWN);
        return is_known.then(|| Finding::error(Code::WrongFlag, Some(flag.at.clone()), what).help(help));
    }
    let devices = environment::devices(&launch.environment)?;
    let by = environment::of_devices(&launch.environment)?;
    let (total, per_node) = gpus(&launch.launcher);
    let n_nodes = known(&launch.launcher, &NODES).unwrap_or(1);
    let processes = per_node.or(total.filter(|_| n_nodes == 1)).filter(|processes| *processes > devices)?;
    // DeepSpeed's own numbers count before the variable.
    starter.filter(|starter| !starter.has_own_devices())?;
    let what = format!("{processes} processes of a node, and `{by}` shows {devices} devices");
    let help = "name as many devices as there are processes, or start fewer";
    let flag = last(&launch.launcher, &PROCESSES).or_else(|| last(&launch.launcher, &ALL));
    Some(Finding::error(Code::WrongFlag, flag.map(|flag| flag.at.clone()), what).help(help))
}

/// `#SBATCH --nodes=4`, `#SBATCH -N 4` and the like.
pub(super) fn batch_options(text: &str) -> Vec<Flag> {
    // Nobody puts values into these lines, but for a script in a text in place.
    let known = |value: String| if value.contains('$') { UNKNOWN.to_string() } else { value };
    let asked = batch::options(text).into_iter();
    asked.map(|one| Flag { name: one.name, values: one.value.map(known).into_iter().collect(), at: one.at }).collect()
}

fn is_one(flag: &Flag, names: &[&str]) -> bool {
    names.contains(&flag.name.as_str())
}

/// The last flag of some names.
fn last<'f>(launcher: &'f [Flag], names: &[&str]) -> Option<&'f Flag> {
    launcher.iter().rev().find(|flag| is_one(flag, names))
}

/// The number of a flag: that of nodes may be a range, that of GPUs may have their type in front.
fn number(flag: &Flag) -> Option<u32> {
    // What stands behind the first word is a program that the launcher starts.
    let value = flag.values.first()?;
    let word = if is_one(flag, &NODES) {
        // `torchrun --nnodes 2:4` is elastic: what it starts with at least.
        value.split([':', '-']).next()?
    } else {
        let of_gpus = value.split(',').find(|part| !flag.name.contains("gres") || part.starts_with("gpu"))?;
        // A type alone is one GPU; `torchrun --nproc_per_node gpu` is as many as there are.
        if flag.name.contains("gres") && of_gpus == "gpu" { "1" } else { of_gpus.rsplit(':').next()? }
    };
    word.parse().ok().filter(|number| *number > 0)
}

/// Flags of a program with the nodes of its batch system where it is told as many as only a shell knows (`--nnodes $SLURM_NNODES`).
pub(crate) fn with_nodes(mut flags: Vec<Flag>, launcher: &[Flag]) -> Vec<Flag> {
    let Some(nodes) = known(launcher, &NODES) else { return flags };
    let open = flags.iter_mut().filter(|flag| flag.name == NODES[0] && flag.value().contains(UNKNOWN));
    open.for_each(|flag| flag.values = vec![nodes.to_string()]);
    flags
}

/// The number of the last flag of some names whose number is known.
fn known(launcher: &[Flag], names: &[&str]) -> Option<u32> {
    launcher.iter().rev().filter(|flag| is_one(flag, names)).find_map(number)
}

/// GPUs of a node: as many as processes on it, else as many as it has.
fn of_a_node(launcher: &[Flag]) -> Option<u32> {
    let tasks = known(launcher, &TASKS);
    let of_tasks = known(launcher, &["gpus-per-task"]).zip(tasks).map(|(each, tasks)| each.saturating_mul(tasks));
    // One task on a node with several GPUs starts the others itself.
    let processes = known(launcher, &PROCESSES).or(tasks.filter(|tasks| *tasks > 1));
    processes.or_else(|| known(launcher, &OF_A_NODE)).or(of_tasks).or(tasks)
}

/// GPUs that a launcher starts, and how many of a node; `None` where it does not say.
pub fn gpus(launcher: &[Flag]) -> (Option<u32>, Option<u32>) {
    let (of_a_node, total) = (of_a_node(launcher), known(launcher, &ALL));
    let stated = known(launcher, &NODES);
    let share = total.zip(stated).filter(|(total, nodes)| total.is_multiple_of(*nodes));
    let per_node = of_a_node.or(share.map(|(total, nodes)| total / nodes));
    // Without the flag `torchrun` starts one node; a number that cannot be read is no one.
    let is_said = last(launcher, &NODES).is_some();
    let nodes = if is_said || total.is_some() { stated } else { Some(1) };
    let all = per_node.zip(nodes).map(|(per_node, nodes)| nodes.saturating_mul(per_node));
    (all.or(total), per_node)
}

/// The same on a machine: where nodes are said, and each has as many processes as GPUs or a number that only a shell knows, it has as many as the command line
/// says, or as is usual for the card.
pub(crate) fn gpus_on(launcher: &[Flag], machine: &Machine) -> (Option<u32>, Option<u32>) {
    let found = gpus(launcher);
    if found.0.is_some() || found.1.is_some() || open_of_a_node(launcher).is_none() {
        return found;
    }
    let per_node = machine.per_node();
    known(launcher, &NODES).map_or(found, |nodes| (Some(nodes.saturating_mul(per_node)), Some(per_node)))
}

/// The flag of processes of a node whose number nothing says.
fn open_of_a_node(launcher: &[Flag]) -> Option<&Flag> {
    let flag = [&PROCESSES[..], &OF_A_NODE, &TASKS].into_iter().find_map(|names| last(launcher, names))?;
    let value = flag.value();
    (value.contains(UNKNOWN) || AS_MANY.contains(&value.as_str())).then_some(flag)
}

/// GPUs of a node that the environment shows, where a launcher starts as many processes as there are.
pub(super) fn shown(launch: &Launch) -> Option<Flag> {
    let flag = last(&launch.launcher, &PROCESSES).filter(|flag| AS_MANY.contains(&flag.value().as_str()))?;
    let devices = environment::devices(&launch.environment)?;
    Some(Flag { name: PROCESSES[0].to_owned(), values: vec![devices.to_string()], at: flag.at.clone() })
}

/// The same where the command line states the GPUs of a node alone: as many nodes of them as there are.
pub(crate) fn with_stated(gpus: (Option<u32>, Option<u32>), machine: &Machine) -> (Option<u32>, Option<u32>) {
    match (gpus, machine.gpus_per_node) {
        ((Some(total), Some(per_node)), Some(stated)) if machine.nodes.is_none() && per_node > 0 => {
            (Some((total / per_node).saturating_mul(stated)), Some(stated))
        }
        _ => gpus,
    }
}

/// Warnings about numbers of nodes and GPUs that only a shell knows, where nothing else says them.
pub fn unknown_gpus(launcher: &[Flag], machine: &Machine) -> Vec<Finding> {
    if machine.nodes.is_some() || gpus(launcher).0.is_some() {
        return Vec::new();
    }
    let of_a_node = open_of_a_node(launcher).filter(|_| machine.gpus_per_node.is_none() && !machine.is_named());
    let nodes = last(launcher, &NODES).filter(|flag| flag.value().contains(UNKNOWN));
    let has_nodes = known(launcher, &NODES).is_some();
    let of_a_node = of_a_node.filter(|flag| has_nodes || flag.value().contains(UNKNOWN));
    let taken = if has_nodes { format!(": {}, as usual, are taken", machine.per_node()) } else { String::new() };
    let open = nodes.into_iter().map(|flag| (flag, String::new())).chain(of_a_node.map(|flag| (flag, taken)));
    let unknown = open.map(|(flag, taken)| {
        let (name, value) = (&flag.name, flag.value());
        let what = if value.contains(UNKNOWN) {
            format!("the value of `--{name}` is known only when the script runs{taken}")
        } else {
            format!("`--{name} {value}` is as many as a node has GPUs{taken}")
        };
        let help =
            "give `--set cluster.nodes=…` and `--set cluster.gpus_per_node=…`, or write the number into the script";
        Finding::warning(Code::UnknownValue, Some(flag.at.clone()), what).help(help)
    });
    unknown.collect()
}
