//! A way of tokens to experts that is asked for where they travel as they would anyway.

use engine::dispatcher::DeepEpMode;
use input::diagnostic::{Code, Finding};
use input::reader::Place;
use serve::step_cost::ReplicaConfig;

use super::super::Serving;

/// DeepEP where no replica's exchange heeds it, and a mode of it where both are one.
pub(super) fn idle(serving: &Serving, at: Option<&Place>) -> Option<Finding> {
    let (at, mode) = (at?, serving.engine.experts.deep_ep?);
    if !serving.groups.iter().any(|group| group.model.experts.is_some()) {
        return None;
    }
    let heeds = |heeded: &dyn Fn(&ReplicaConfig<'_>) -> bool| {
        let mut choices = serving.choices.iter().filter(|choice| choice.refused.is_none());
        choices
            .any(|choice| serving.groups_of(choice).iter().any(|group| heeded(&serving.deployment_of(choice, group))))
    };
    let (what, help) = if !heeds(&|replica| replica.heeds_deep_ep()) {
        let help = "inside of a node, experts over more GPUs than a token visits are sent their tokens anyway, as DeepEP sends them; it needs several \
                    nodes, fewer GPUs, or `two_batch_overlap`";
        (format!("`engine.dispatcher = \"{}\"` changes nothing", mode.word()), help)
    } else if mode != DeepEpMode::Auto && !heeds(&|replica| replica.heeds_deep_ep_mode()) {
        let help = "`\"deepep\"` says the same: inside of a node the faster of both modes is taken; they differ between nodes, and beside `two_batch_overlap`";
        (format!("the mode of `engine.dispatcher = \"{}\"` changes nothing", mode.word()), help)
    } else {
        return None;
    };
    Some(Finding::warning(Code::NoEffect, at.clone(), what).help(help))
}
