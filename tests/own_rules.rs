//! Rules of somebody's own in shipped scenarios: written by hand, they have the figures of the built-in ones; a wrong one is refused in words.

use reports::PolicyResult;
use serve::own::{Own, Refusal};
use serve::replica::offer::Batch;
use skrull_sim::kinds::{Kind, serving::run::by_own};

fn shipped(name: &str, set: &[&str]) -> Box<dyn Kind> {
    super::checked(name, set).scenario.expect("it is right")
}

/// A policy of a scenario with other rules, and as it is.
fn both(scenario: &dyn Kind, policy: &str, mut own: Own<'_>) -> (Result<PolicyResult, Refusal>, PolicyResult) {
    let serving = scenario.serving().expect("a scenario of serving");
    let choice = serving.plain().find(|plain| plain.name == policy).expect("a policy that serves");
    let listed = scenario.run(&|_| {}).results.into_iter().find(|row| row.policy == policy).expect("its row");
    (by_own(serving, choice, &mut own), listed)
}

#[test]
fn a_router_by_hand_has_the_figures_of_the_built_in_one() {
    let scenario = shipped("serving/routers", &["trace.requests=400", "policies.run=[\"even\"]"]);
    let mut turns = 0;
    let in_turn = Own::default().routed(Box::new(|_, view| {
        turns += 1;
        view.candidates.get((turns - 1) % view.candidates.len()).copied()
    }));
    let (own, listed) = both(scenario.as_ref(), "even", in_turn);
    let own = own.expect("every replica is up");
    assert_eq!((own.status, &own.metrics), (listed.status, &listed.metrics));
    assert!(own.why.contains("by an own router"), "{}", own.why);
}

#[test]
fn a_batching_rule_by_hand_has_the_figures_of_the_built_in_one() {
    let set = ["trace.requests=400", "policies.run=[\"sarathi\"]", "policies.baseline=\"sarathi\""];
    let scenario = shipped("serving/azure-conv", &set);
    let first_come = Own::default().batched(Box::new(|offer| {
        let mut room = offer.tokens_max - offer.decode_tokens;
        let places = (offer.sequences_max - offer.n_running) as usize;
        let mut chunks = Vec::new();
        for prompt in offer.prompts.iter().chain(offer.waiting.iter().take(places)) {
            let tokens = prompt.tokens_max.min(room);
            if tokens > 0 {
                chunks.push((prompt.request, tokens));
                room -= tokens;
            }
        }
        Some(Batch { decodes: true, chunks, reserves_whole: true })
    }));
    let (own, listed) = both(scenario.as_ref(), "sarathi", first_come);
    assert_eq!(own.expect("within the limits").metrics, listed.metrics);
}

#[test]
fn a_rule_that_is_wrong_has_no_figures() {
    let scenario = shipped("serving/routers", &["trace.requests=20", "policies.run=[\"even\"]"]);
    let (own, _) = both(scenario.as_ref(), "even", Own::default().routed(Box::new(|_, _| Some(12))));
    assert_eq!(own, Err(Refusal::NoReplica { request: 0, replica: 12, last: 11 }));
}
