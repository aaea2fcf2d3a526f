//! Stages of fine-tuning against facts that are drawn one by one, and what must hold for any matrices.

use super::*;
use engine::random;

const FACTS: Counts = [300.0, 400.0, 250.0, 650.0];

/// A random row-stochastic matrix.
/// Facts stay what they are.
fn unchanged() -> Transition {
    let rows = std::array::from_fn(|from| std::array::from_fn(|to| if from == to { 1.0 } else { 0.0 }));
    Transition::of_probabilities(rows).expect("rows add up to 1")
}

fn matrix(stream: &mut random::Stream) -> Transition {
    let rows =
        std::array::from_fn(|_| std::array::from_fn(|_| f64::from(u32::try_from(stream.below(1000)).expect("small"))));
    Transition::of_counts(rows).expect("a row of zeros is not drawn")
}

fn sets() -> [TrainingSet; 7] {
    let kept = |upgraded, replay_ratio| TrainingSet::Kept { upgraded, replay_ratio };
    let (all, maybe, again) = (TrainingSet::Everything, TrainingSet::MaybeKnown, TrainingSet::Again);
    [all, maybe, again, kept(false, 0.0), kept(true, 0.0), kept(false, 0.7), kept(true, 1.0)]
}

fn close(found: f64, expected: f64) {
    assert!((found - expected).abs() < 1e-9 * (1.0 + expected.abs()), "{found}, expected {expected}");
}

#[test]
fn classes_are_those_of_the_taxonomy() {
    // Ten greedy answers: all right, some right, none right with and without a right sample.
    let of = |greedy, samples| Class::of(10, greedy, samples);
    assert_eq!([of(10, 0), of(3, 0), of(0, 2), of(0, 0)], Class::ALL);
}

#[test]
fn facts_are_conserved_whatever_is_trained() {
    for seed in 0..30 {
        let mut stream = random::stream(seed, "matrices");
        let mut effect = || Effect { trained: matrix(&mut stream), others: matrix(&mut stream) };
        let effects = [effect(), effect(), effect()];
        for first in sets() {
            for later in sets() {
                let stages = [(first, effects[0]), (later, effects[1]), (later, effects[2])];
                let course = course(&FACTS, 0.1, &stages);
                for outcome in &course.stages {
                    close(outcome.facts.iter().sum(), 1600.0);
                    assert!(outcome.examples.iter().all(|n| *n >= 0.0));
                    // A held-out fact is never an example.
                    assert!(outcome.examples.iter().sum::<f64>() <= 0.9 * 1600.0 + 1e-9);
                }
                assert_eq!(course.facts, course.stages[2].facts);
                assert!(Class::ALL.iter().all(|class| course.interval(*class)[0] <= course.facts[class.index()]));
            }
        }
    }
}

#[test]
fn training_that_does_nothing_gains_nothing_over_a_retest() {
    let retest = matrix(&mut random::stream(7, "matrices"));
    let effect = Effect::none(retest);
    for later in sets() {
        let course = course(&FACTS, 0.2, &[(TrainingSet::MaybeKnown, effect), (later, effect), (later, effect)]);
        for (found, expected) in course.facts.iter().zip(retested(&FACTS, &retest, 3)) {
            close(*found, expected);
        }
    }
}

#[test]
fn a_matrix_of_counts_gives_the_counts_back() {
    let counts =
        [[280.0, 20.0, 0.0, 0.0], [50.0, 300.0, 30.0, 20.0], [5.0, 40.0, 180.0, 25.0], [1.0, 9.0, 100.0, 540.0]];
    let after = Transition::of_counts(counts).expect("every class is there").step(&FACTS);
    for (class, n) in after.iter().enumerate() {
        close(*n, counts.iter().map(|row| row[class]).sum());
    }
}

#[test]
fn a_stage_on_partly_known_facts_trains_on_them_alone_and_the_next_on_what_the_paper_says() {
    // Trained: three of four MaybeKnown become HighlyKnown. Others: half of WeaklyKnown become MaybeKnown, one of ten HighlyKnown are lost.
    let trained = unchanged().with(Class::MaybeKnown, Class::HighlyKnown, 0.75);
    let others = unchanged().with(Class::WeaklyKnown, Class::MaybeKnown, 0.5);
    let others = others.with(Class::HighlyKnown, Class::MaybeKnown, 0.1);
    let effect = Effect { trained, others };
    let second =
        |set| course(&[100.0, 40.0, 20.0, 8.0], 0.0, &[(TrainingSet::MaybeKnown, effect), (set, effect)]).stages;
    let stages = second(TrainingSet::Kept { upgraded: true, replay_ratio: 0.5 });
    assert_eq!(stages[0].examples, [0.0, 40.0, 0.0, 0.0]);
    // 90 kept and 30 learned; 10 left of the trained, 10 upgraded and 10 forgotten, which nobody chooses.
    assert_eq!(stages[0].facts, [120.0, 30.0, 10.0, 8.0]);
    assert_eq!(stages[0].upgraded, 10.0);
    assert_eq!(stages[1].examples, [60.0, 20.0, 0.0, 0.0]);
    // Of the HighlyKnown 60 replayed stay and 54 of the others; 15 are learned. 5 trained and 10 other MaybeKnown, 6 forgotten, 5 upgraded.
    assert_eq!(stages[1].facts, [129.0, 26.0, 5.0, 8.0]);
    assert_eq!(second(TrainingSet::Kept { upgraded: true, replay_ratio: 0.0 })[1].examples, [0.0, 20.0, 0.0, 0.0]);
    assert_eq!(second(TrainingSet::Kept { upgraded: false, replay_ratio: 0.5 })[1].examples, [60.0, 10.0, 0.0, 0.0]);
    assert_eq!(second(TrainingSet::Again)[1].examples, [30.0, 10.0, 0.0, 0.0]);
}

#[test]
fn mean_and_deviation_are_those_of_facts_that_are_drawn_one_by_one() {
    let mut stream = random::stream(3, "matrices");
    let mut effect = || Effect { trained: matrix(&mut stream), others: matrix(&mut stream) };
    let set = TrainingSet::Kept { upgraded: true, replay_ratio: 0.4 };
    let stages = [(TrainingSet::MaybeKnown, effect()), (set, effect())];
    let expected = course(&FACTS, 0.25, &stages);
    let mut draws = random::stream(11, "facts");
    let mut uniform = || draws.unit();
    let n_runs = 400;
    let (mut sums, mut squares) = (Counts::default(), Counts::default());
    for _ in 0..n_runs {
        let mut counts = Counts::default();
        for start in Class::ALL {
            for _ in 0..FACTS[start.index()] as usize {
                let is_held_out = uniform() < 0.25;
                let (mut was_trained, mut before, mut now) = (false, start, start);
                for (set, effect) in &stages {
                    let is_chosen = !is_held_out && uniform() < set.share(was_trained, before, now);
                    let matrix = if is_chosen { &effect.trained } else { &effect.others };
                    let (mut left, mut to) = (uniform(), Class::HighlyKnown);
                    for class in Class::ALL {
                        to = class;
                        left -= matrix.probability(now, class);
                        if left < 0.0 {
                            break;
                        }
                    }
                    (was_trained, before, now) = (is_chosen, now, to);
                }
                counts[now.index()] += 1.0;
            }
        }
        for (class, n) in counts.iter().enumerate() {
            sums[class] += n;
            squares[class] += n * n;
        }
    }
    let n = f64::from(n_runs);
    for class in 0..4 {
        let mean = sums[class] / n;
        let deviation = (squares[class] / n - mean * mean).sqrt();
        // Five standard errors of the mean; the deviation of 400 draws is within 3.5 %, five of which are 18 %.
        let (facts, spread) = (expected.facts[class], expected.deviations[class]);
        assert!((mean - facts).abs() < 5.0 * spread / n.sqrt(), "{class}: {mean} drawn, {facts} expected");
        assert!((deviation / spread - 1.0).abs() < 0.18, "{class}: {deviation} drawn, {spread} expected");
    }
}

#[test]
fn what_is_no_matrix_is_refused() {
    let mut rows = [[0.25; 4]; 4];
    rows[2][1] = 0.5;
    assert!(
        Transition::of_probabilities(rows).expect_err("1.25").to_string().contains("`weakly_known` adds up to 1.25")
    );
    rows[2] = [1.5, -0.5, 0.0, 0.0];
    assert!(Transition::of_probabilities(rows).is_err());
    let mut counts = [[1.0; 4]; 4];
    counts[3] = [0.0; 4];
    assert!(Transition::of_counts(counts).expect_err("empty").to_string().contains("`unknown` adds up to 0"));
    counts[3] = [1e308; 4];
    assert!(Transition::of_counts(counts).is_err());
}
