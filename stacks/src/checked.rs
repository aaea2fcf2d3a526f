//! Deployments of a plan's file beside the independent checker, as far as the file says what they are for: a plan may have been edited.
//!
//! The model is that of its name, in the formats of its checkpoint's path where settings have one. Where no shipped model has this name and depth, or
//! settings give other formats, what follows from them is not checked.

use engine::model::{Model, of_checkpoint};
use serve::check::{Refusal, Site, check};
use serve::deployment::Deployment;

use crate::checkpoint::served;
use crate::export::ExportError;
use crate::settings::Settings;

/// The key of formats.
const WEIGHTS: &str = "engine.weights";

/// Checks deployments.
///
/// # Errors
/// What cannot be of them.
pub fn deployments(deployments: &[Deployment], settings: &Settings) -> Result<(), ExportError> {
    let of = |deployment: &Deployment| {
        let found = refusals(deployment, settings);
        found.into_iter().map(|refusal| format!("{}: {refusal}", deployment.model)).collect::<Vec<_>>()
    };
    let what: Vec<String> = deployments.iter().flat_map(of).collect();
    if what.is_empty() { Ok(()) } else { Err(ExportError::Wrong { what }) }
}

fn refusals(deployment: &Deployment, settings: &Settings) -> Vec<Refusal> {
    let known = of_checkpoint(served(deployment, settings)).filter(|model| is_of(deployment, model));
    let is_known = known.is_some();
    let Some(mut model) = known.or_else(|| of_checkpoint(STAND_IN)) else { return Vec::new() };
    model.name.clone_from(&deployment.model);
    let mut site = Site::of(&model, &deployment.machines);
    // Other formats may take less.
    if settings.contains_key(WEIGHTS) {
        (site.parameter_bytes, site.kv_bytes) = (0.0, 0.0);
    }
    let mut found = check(deployment, &site).err().unwrap_or_default();
    found.retain(|refusal| is_known || !is_of_model(refusal));
    found
}

/// A model in the place of one that is not known, of which nothing is asked.
const STAND_IN: &str = "llama-3-8b";

/// Whether a refusal follows from the model.
const fn is_of_model(refusal: &Refusal) -> bool {
    matches!(refusal, Refusal::OtherModel { .. } | Refusal::Tensor { .. } | Refusal::Memory { .. })
}

/// Whether a model is the one of a deployment: files of models may have the name of a shipped one.
fn is_of(deployment: &Deployment, model: &Model) -> bool {
    model.n_layers == u64::from(deployment.n_layers)
}

#[cfg(test)]
mod tests {
    use serve::deployment::{Machine, Range, Replica, Stage};
    use serve::replica::Role;

    use super::*;

    /// Two copies of two GPUs each, of eight.
    fn of(model: &str, n_layers: u32) -> Deployment {
        let machine = Machine {
            name: "a".to_owned(),
            gpu: "h200-sxm".to_owned(),
            n_gpus: 8,
            gpus_per_node: 8,
            ..Machine::default()
        };
        let stage = Stage {
            machine: 0,
            gpus: Range::new(0, 2),
            tensor: 2,
            ffn_gpus: 0,
            on_host: None,
            layers: Range::new(0, n_layers),
        };
        let engine = crate::example::engine("vllm-v1");
        let replica = Replica { name: "both".to_owned(), copies: 2, role: Role::Both, stages: vec![stage], engine };
        Deployment { replicas: vec![replica], ..Deployment::new(model, n_layers, vec![machine]) }
    }

    fn why(deployment: Deployment) -> String {
        deployments(&[deployment], &Settings::new()).map_or_else(|why| why.to_string(), |()| String::new())
    }

    #[test]
    fn a_plan_that_was_edited_is_checked_against_its_machines_and_its_model() {
        for (model, n_layers) in [("llama-3-70b", 80), ("of-a-file", 12)] {
            assert_eq!(why(of(model, n_layers)), "");
            let mut many = of(model, n_layers);
            many.replicas[0].copies = 99;
            assert!(why(many).contains("takes GPUs up to 198 of `a`, which has 8"));
        }
        let mut odd = of("llama-3-70b", 80);
        odd.replicas[0].stages[0].tensor = 3;
        assert!(why(odd).contains("tensor degree 3 on 2 GPUs"));
        // 117 billion parameters are 62 GB in the checkpoint's four bits, and 233 GB in two bytes each; the shape alone does not say which.
        let mut packed = of("gpt-oss-120b", 36);
        packed.machines[0].memory = Some(hw::Bytes(60 << 30));
        let path = |name: &str| Settings::from([("model.name".to_owned(), name.into())]);
        assert!(deployments(std::slice::from_ref(&packed), &path("openai/gpt-oss-120b")).is_ok());
        for other in [Settings::new(), path("openai/gpt-oss-20b")] {
            assert!(deployments(std::slice::from_ref(&packed), &other).is_err());
        }
        // 70 billion parameters of two bytes are more than what is there.
        let mut small = of("llama-3-70b", 80);
        small.machines[0].memory = Some(hw::Bytes(24 << 30));
        assert!(why(small).contains("141"));
    }
}
