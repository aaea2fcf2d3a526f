//! Spread over draws of the requests: a choice serves what other seeds give, with costs as expected.

use std::collections::BTreeMap;

use engine::play::Case;
use rayon::prelude::*;
use reports::draws::Draws;
use scenario::serving::{Serving, ServingChoice};

use super::figures;

type Figures = BTreeMap<String, f64>;

/// Metrics that have a spread besides those with an interval.
const BUSY: &str = "busy_ratio";

/// What all draws give together with the first; none where the scenario draws once.
pub fn spread(scenario: &Serving, choice: &ServingChoice, first: &Figures) -> Option<Draws> {
    let values = |n: usize| {
        let drawn = scenario.drawn(n);
        figures(&drawn, &drawn.for_draw(choice), Case::Expected).values
    };
    let mut all: Vec<Figures> = (0..scenario.draws.len()).into_par_iter().map(values).collect();
    all.push(first.clone());
    let keys = serve::metrics::WITH_INTERVAL.iter().chain([&BUSY]);
    (all.len() > 1).then(|| Draws::of(&all, keys.copied()))
}
