//! A server of a file with what stands around it, and what is told to the router in front of several.

use std::ops::Range;

use super::Replicas;
use crate::launch::Launch;

/// A command that starts a server, and what stands around it.
#[derive(Debug)]
pub(super) struct Started {
    /// Its name.
    pub(super) name: String,
    /// How many there are.
    pub(super) replicas: Replicas,
    /// What its nodes say of their GPU.
    pub(super) label: Option<String>,
    /// Whether it reads prompts or generates, where what stands around it says so.
    pub(super) role: Option<&'static str>,
    /// Pods of a group that are one server.
    pub(super) n_pods: Option<u64>,
    /// GPUs of such a pod.
    pub(super) gpus_of_pod: Option<u64>,
    /// Position of what began it.
    pub(super) engine: usize,
    /// The command.
    pub(super) launch: Launch,
}

impl Started {
    /// One that stands for itself.
    pub(super) const fn plain(name: String, replicas: Replicas, engine: usize, launch: Launch) -> Self {
        Self { name, replicas, label: None, role: None, n_pods: None, gpus_of_pod: None, engine, launch }
    }
}

/// A policy as a router is told it.
#[derive(Clone, Debug)]
pub(super) struct Policy {
    /// Its word.
    pub(super) word: String,
    /// Where it stands.
    pub(super) at: Option<Range<usize>>,
}
