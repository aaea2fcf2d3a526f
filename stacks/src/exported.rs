//! What tests of exports share: deployments, what a target writes of them, and what it cannot say.

use serve::deployment::{self, Deployment, Range, Replica, Stage};
use serve::replica::Role;

use crate::example::engine;
use crate::export::{ExportError, Planned, Words};
use crate::settings::Settings;
use crate::targets::export;

/// So many copies of a replica of Llama 3 70B on `n` GPUs, all of one tensor group.
pub(crate) fn replica((name, role): (&str, Role), copies: u32, n: u32, batcher: &str) -> Replica {
    let stage =
        Stage { machine: 0, gpus: Range::new(0, n), tensor: n, ffn_gpus: 0, on_host: None, layers: Range::new(0, 80) };
    Replica { name: name.to_owned(), copies, role, stages: vec![stage], engine: engine(batcher) }
}

/// Such replicas on six nodes of eight H200.
pub(crate) fn deployed(replicas: Vec<Replica>) -> Deployment {
    let (name, gpu) = ("a".to_owned(), "h200-sxm".to_owned());
    let rented = deployment::Machine { name, gpu, n_gpus: 48, gpus_per_node: 8, ..deployment::Machine::default() };
    Deployment { replicas, ..Deployment::new("llama-3-70b", 80, vec![rented]) }
}

/// Text of the first file that a target makes of deployments.
pub(crate) fn written(target: &str, deployments: &[Deployment], settings: &Settings) -> Result<String, ExportError> {
    let files = export(target, &Planned::Serving { deployments, settings }, &Words::default())?;
    Ok(files[0].text().into_owned())
}

/// What a target cannot say of deployments.
pub(crate) fn unsaid(target: &str, deployments: &[Deployment], settings: &Settings) -> Vec<String> {
    match written(target, deployments, settings) {
        Err(ExportError::NotExpressible { what, .. }) => what,
        other => panic!("{target}: {other:?}"),
    }
}
