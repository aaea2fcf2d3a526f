//! Servers over several nodes: what joins them. Scripts take the node's position and the address of the first node from variables, as those of training do.

use std::collections::BTreeSet;

use serve::deployment::{Deployment, Replica};

use super::Unsayable;

/// A node's position, from 0.
const POSITION: &str = "${NODE_RANK:-0}";
/// Address of the first node.
const LEADER: &str = "${MASTER_ADDR:-127.0.0.1}";

/// Nodes of one copy, which have as many of its GPUs each. Where a machine has several of them, they are filled.
pub(super) fn n_nodes(deployment: &Deployment, replica: &Replica) -> Result<u32, Unsayable> {
    let of_stages: BTreeSet<u32> = replica.stages.iter().map(|stage| stage.machine).collect();
    let (mut n_nodes, mut per_nodes, mut shares) = (0, BTreeSet::new(), BTreeSet::new());
    let mut is_filled = true;
    for machine in of_stages {
        let known = deployment.machines.get(machine as usize).ok_or(Unsayable::NoMachine)?;
        let (n_gpus, per_node) = (replica.n_gpus_on(machine), known.gpus_per_node.max(1));
        is_filled &= n_gpus <= per_node || n_gpus.is_multiple_of(per_node);
        n_nodes += n_gpus.div_ceil(per_node);
        shares.insert(n_gpus.min(per_node));
        per_nodes.insert(per_node);
    }
    if !is_filled || shares.len() > 1 {
        let per_node = per_nodes.first().copied().unwrap_or(1);
        return Err(Unsayable::Nodes { n_gpus: replica.n_gpus(), per_node });
    }
    Ok(n_nodes)
}

/// What joins nodes of vLLM, all of this version: their number, this one's position, the address of the first.
pub(crate) fn vllm_across(n: u32, at: &str, leader: &str) -> String {
    format!("--nnodes {n} --node-rank {at} --master-addr {leader}")
}

/// The same of SGLang.
pub(crate) fn sglang_across(n: u32, at: &str, leader: &str) -> String {
    format!("--nnodes {n} --node-rank {at} --dist-init-addr {leader}:20000")
}

/// Nodes of vLLM besides the first answer no requests.
pub(super) fn vllm_script(n_nodes: u32) -> Vec<String> {
    let follower = format!("$([ \"{POSITION}\" = 0 ] || echo --headless)");
    vec![vllm_across(n_nodes, POSITION, LEADER), follower]
}

pub(super) fn sglang_script(n_nodes: u32) -> Vec<String> {
    vec![sglang_across(n_nodes, POSITION, LEADER)]
}

/// TensorRT-LLM's nodes are joined in front of the command.
pub(super) const fn in_place(_n_nodes: u32) -> Vec<String> {
    Vec::new()
}

/// How MPI starts a process for each GPU of TensorRT-LLM on several nodes (`examples/llm-api/llm_mgmn_trtllm_serve.sh`).
pub(super) fn srun(n_nodes: u32, n_gpus: u32) -> String {
    if n_nodes < 2 {
        return String::new();
    }
    let per_node = n_gpus / n_nodes;
    format!("srun --nodes {n_nodes} --ntasks {n_gpus} --ntasks-per-node {per_node} --mpi pmix trtllm-llmapi-launch ")
}

/// What a script of several nodes has to be told.
pub(super) const fn remark(n_nodes: u32) -> &'static str {
    if n_nodes > 1 {
        "# It runs on every node of a copy: NODE_RANK is the position of the node from 0, MASTER_ADDR the address of the first.\n"
    } else {
        ""
    }
}
