//! Speed of schedule synthesis. Estimate: some microseconds per pass.

use criterion::{Criterion, criterion_group, criterion_main};

/// Every schedule on 16 ranks with 64 ragged micro-batches. Aim: below 10 ms each.
fn schedules(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("schedule synthesis");
    group.sample_size(20);
    for schedule in train::schedule::SCHEDULES {
        let mut pipeline = train::schedule::Pipeline::equal(16, schedule, 64, [0, 0, 0]);
        let mut random = engine::random::stream(1, "schedules");
        let lengths: Vec<u64> = (0..64).map(|_| 10_000 + random.below(20_000)).collect();
        for grid in [&mut pipeline.forward, &mut pipeline.input, &mut pipeline.weight] {
            grid.iter_mut().for_each(|row| row.copy_from_slice(&lengths));
        }
        group.bench_function(schedule.name, |bencher| bencher.iter(|| (schedule.order)(&pipeline)));
    }
    group.finish();
}

criterion_group!(benches, schedules);
criterion_main!(benches);
