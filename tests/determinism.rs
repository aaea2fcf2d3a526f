//! The same scenario gives the same bytes, on any number of threads, outside `measured`.

use skrull_sim::kinds::training::run as pipeline;

fn bytes(threads: usize) -> String {
    let checked = super::check(&super::root().join("scenarios/quickstart.toml"));
    let scenario = super::training(checked);
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("threads");
    let mut result = pool.install(|| pipeline::run(&scenario, &|_| {})).result;
    for row in &mut result.results {
        row.measured = reports::Measured::default();
    }
    reports::json::render(&result).expect("finite figures")
}

#[test]
fn threads_and_repetition_change_nothing() {
    let one = bytes(1);
    assert_eq!(one, bytes(8));
    assert_eq!(one, bytes(8));
}
