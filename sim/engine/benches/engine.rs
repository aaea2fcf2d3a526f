//! Speed of the event queue and of tasks through resources. Estimates: 25 ns per event, 300 ns per task.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use engine::cost::fixed::Fixed;
use engine::play::{Case, Machine};
use engine::queue::Queue;
use engine::task::{LaneId, Op, Role, Stream, Task};
use engine::{TaskGraph, simulate};
use hw::Time;
use hw::topology::Topology;

fn queue(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("queue");
    for pending in [64_u64, 1024, 100_000] {
        let mut queue = Queue::with_capacity(pending as usize);
        let mut random = engine::random::stream(1, "queue");
        (0..pending).for_each(|slot| _ = queue.push(Time::from_ns(random.below(1000)), slot as u32));
        group.throughput(Throughput::Elements(1));
        group.bench_function(format!("pop and push, {pending} pending"), |bencher| {
            bencher.iter(|| {
                let event = queue.pop().expect("pending events");
                if event.sequence > 4_000_000_000 {
                    queue = Queue::with_capacity(pending as usize);
                    (0..pending).for_each(|slot| _ = queue.push(event.at, slot as u32));
                }
                queue.push(event.at + hw::Span::from_ns(random.below(1000)), event.slot)
            });
        });
    }
    group.finish();
}

fn tasks(criterion: &mut Criterion) {
    let gpu = hw::catalog::gpu("h100-sxm").expect("listed");
    let topology = Topology::of(&hw::catalog::cluster(&gpu, 4, 8));
    let n = 320_000_u32;
    let mut graph = TaskGraph::new(32);
    let ops: Vec<_> = (0..64).map(|ns| graph.add_op(Op::Host { ns: 100 + ns })).collect();
    for index in 0..n {
        let task = Task {
            op: ops[(index % 61) as usize],
            lane: LaneId(index % 32),
            stream: Stream::Compute,
            role: Role::Forward,
            micro_batch: 0,
            meeting: None,
        };
        let before = index.checked_sub(33).map(engine::task::TaskId);
        graph.add_task(task, before.as_slice());
    }
    let cost = Fixed::default();
    let machine =
        Machine { cost: &cost, topology: &topology, memory_bytes: 1, case: Case::Expected, speed_changes: &[] };
    let mut group = criterion.benchmark_group("engine");
    group.throughput(Throughput::Elements(u64::from(n))).sample_size(20);
    group.bench_function("tasks through 32 ranks", |bencher| bencher.iter(|| simulate(&graph, &machine)));
    group.finish();
}

criterion_group!(benches, queue, tasks);
criterion_main!(benches);
