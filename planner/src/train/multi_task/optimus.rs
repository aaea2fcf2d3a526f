//! Task-level allocation after Optimus (EuroSys 2018), as Spindle's section 5.1 compares with it: every task runs as a sequence on devices of
//! its own, beside the others.
//!
//! Each task starts with the smallest number of devices that all its parts can run on; the next devices go where they shorten a task most
//! per device, (T(n) − T(n')) / (n' − n), while that is positive. Where there are more tasks than devices, the rest waits for the first
//! task that ends, longest first.

use train::multi_task::Work;
use train::multi_task::schedule::Turns;

use super::{Decided, Own, Slot};

/// A task as one job.
struct Job {
    meta_ops: Vec<usize>,
    /// Numbers of devices with the seconds of the whole task.
    points: Vec<(u32, f64)>,
    /// Index of the number that it got.
    at: usize,
}

impl Job {
    fn new(work: &Work, task: usize) -> Self {
        let meta_ops: Vec<usize> = (0..work.meta_ops.len()).filter(|&at| work.meta_ops[at].task == task).collect();
        let mut counts: Vec<u32> =
            meta_ops.iter().flat_map(|&at| work.curves[at].points().iter().map(|&(n, _)| n)).collect();
        counts.sort_unstable();
        counts.dedup();
        let seconds = |n: u32| {
            let parts = meta_ops.iter().map(|&at| {
                let size = work.curves[at].within(n)?;
                Some(f64::from(work.n_layers(at)) * work.curves[at].points()[size].1)
            });
            parts.sum::<Option<f64>>().map(|seconds| (n, seconds))
        };
        let points = counts.into_iter().filter_map(seconds).collect();
        Self { meta_ops, points, at: 0 }
    }

    fn devices(&self) -> u32 {
        self.points[self.at].0
    }

    fn seconds(&self) -> f64 {
        self.points[self.at].1
    }

    /// Seconds gained per device by the next number, where at most `free` devices more are enough for it.
    fn gain(&self, free: u32) -> Option<f64> {
        let (n, seconds) = self.points[self.at];
        let &(to, faster) = self.points.get(self.at + 1)?;
        (to - n <= free && faster < seconds).then(|| (seconds - faster) / f64::from(to - n))
    }
}

/// Decides.
pub fn decide(work: &Work) -> Decided {
    let mut jobs: Vec<Job> = (0..work.training.tasks.len()).map(|task| Job::new(work, task)).collect();
    let mut order: Vec<usize> = (0..jobs.len()).collect();
    order.sort_unstable_by(|&a, &b| jobs[b].seconds().total_cmp(&jobs[a].seconds()).then(a.cmp(&b)));
    let mut free = work.n_devices();
    let (mut running, mut waiting) = (Vec::new(), Vec::new());
    for task in order {
        if jobs[task].devices() <= free {
            free -= jobs[task].devices();
            running.push(task);
        } else {
            waiting.push(task);
        }
    }
    loop {
        let gains = running.iter().filter_map(|&task| jobs[task].gain(free).map(|gain| (gain, task)));
        let Some((_, task)) = gains.max_by(|a, b| a.0.total_cmp(&b.0).then(b.1.cmp(&a.1))) else { break };
        let before = jobs[task].devices();
        jobs[task].at += 1;
        free -= jobs[task].devices() - before;
    }
    let given = running.iter().map(|&task| format!("{} {}", work.training.tasks[task].name, jobs[task].devices()));
    let mut notes = vec![format!("GPUs of tasks: {}", given.collect::<Vec<_>>().join(", "))];
    if !waiting.is_empty() {
        notes.push(format!("{} tasks wait for GPUs of others", waiting.len()));
    }
    Decided { slots: lay(work, &jobs, &running, &waiting, free), turns: Turns::Off, notes }
}

/// Starts of all tasks: those that run at once, then the waiting ones as devices come free.
fn lay(work: &Work, jobs: &[Job], running: &[usize], waiting: &[usize], free: u32) -> Vec<Slot> {
    let mut slots = Vec::with_capacity(work.meta_ops.len());
    // Ends of running tasks with the devices that they give back.
    let mut ends: Vec<(f64, u32)> = Vec::new();
    let mut begin = |task: usize, start_s: f64, ends: &mut Vec<(f64, u32)>| {
        let mut at_s = start_s;
        let (job, n_devices) = (&jobs[task], jobs[task].devices());
        let size_of = |meta_op: usize| work.curves[meta_op].within(n_devices).expect("every part runs on them");
        let tensor = job.meta_ops.iter().map(|&at| work.sizes[at][size_of(at)].tensor).max().unwrap_or(1);
        let own = Some(Own { task, n_devices, tensor, until_s: start_s + job.seconds() });
        for &meta_op in &job.meta_ops {
            let wave = u32::try_from(slots.len()).expect("slots fit u32");
            let (n_layers, size) = (work.n_layers(meta_op), size_of(meta_op));
            let slot = Slot { meta_op, first: 0, n_layers, size, wave, start_s: at_s, own };
            at_s = slot.end_s(work);
            slots.push(slot);
        }
        ends.push((at_s, n_devices));
    };
    running.iter().for_each(|&task| begin(task, 0.0, &mut ends));
    let (mut free, mut now_s) = (free, 0.0);
    for &task in waiting {
        while jobs[task].devices() > free {
            ends.sort_by(|a, b| a.0.total_cmp(&b.0));
            let (end_s, n) = ends.remove(0);
            (now_s, free) = (end_s, free + n);
        }
        free -= jobs[task].devices();
        begin(task, now_s, &mut ends);
    }
    slots.sort_by(|a, b| a.start_s.total_cmp(&b.start_s).then(a.wave.cmp(&b.wave)));
    slots
}
