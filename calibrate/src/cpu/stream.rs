//! A stream of the CPU device: a thread that runs its commands in order, and the board where all threads write their marks.

use std::sync::mpsc::{Receiver, SyncSender};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use engine::task::{Document, Op, Pass};
use rayon::ThreadPool;

use super::exchange;
use super::kernels::{self, Heads, Ramp, Saved, View};

/// Times of marks, in nanoseconds since the device was opened.
pub struct Board {
    origin: Instant,
    times: Mutex<Vec<Option<u64>>>,
    changed: Condvar,
}

impl Board {
    pub const fn new(origin: Instant) -> Self {
        Self { origin, times: Mutex::new(Vec::new()), changed: Condvar::new() }
    }

    fn set(&self, mark: usize) {
        let now = u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let mut times = self.times.lock().expect("no thread panics with the board in hand");
        if times.len() <= mark {
            times.resize(mark + 1, None);
        }
        times[mark] = Some(now);
        self.changed.notify_all();
    }

    fn wait(&self, mark: usize) {
        let times = self.times.lock().expect("no thread panics with the board in hand");
        let absent = |times: &mut Vec<Option<u64>>| times.get(mark).is_none_or(Option::is_none);
        drop(self.changed.wait_while(times, absent).expect("no thread panics with the board in hand"));
    }

    /// All of the first `n` marks, and an empty board; `None` when they are not there after `limit`, or when nobody will write them.
    pub fn all(&self, n: usize, limit: Duration, is_dead: impl Fn() -> bool) -> Option<Vec<u64>> {
        let begun = Instant::now();
        let mut times = self.times.lock().expect("no thread panics with the board in hand");
        while times.len() < n || times.iter().any(Option::is_none) {
            let left = limit.checked_sub(begun.elapsed()).filter(|_| !is_dead())?;
            let step = left.min(Duration::from_millis(200));
            times = self.changed.wait_timeout(times, step).expect("no thread panics with the board in hand").0;
        }
        Some(std::mem::take(&mut *times).into_iter().flatten().collect())
    }
}

/// What a stream is told.
pub enum Command {
    /// Run an operation; with a sender, poison the result before and say whether every element was written with a number.
    Run(Op, Option<SyncSender<bool>>),
    /// Write the time.
    Mark(usize),
    /// Wait for a mark of another stream.
    Wait(usize),
    /// Read from these operands from now on.
    Operands(Arc<Vec<f32>>),
    /// Have a result buffer of so many elements.
    Room(usize),
}

/// Thread of a stream.
pub struct Worker {
    pool: Arc<ThreadPool>,
    board: Arc<Board>,
    operands: Arc<Vec<f32>>,
    results: Vec<f32>,
    /// Next operand and next result.
    cursors: [usize; 2],
    ranks: Option<ThreadPool>,
}

impl Worker {
    pub const fn new(pool: Arc<ThreadPool>, board: Arc<Board>, operands: Arc<Vec<f32>>) -> Self {
        Self { pool, board, operands, results: Vec::new(), cursors: [0; 2], ranks: None }
    }

    /// Runs commands until nobody sends any more.
    pub fn work(mut self, commands: &Receiver<Command>) {
        while let Ok(command) = commands.recv() {
            match command {
                Command::Run(op, None) => {
                    self.run(&op, false);
                }
                Command::Run(op, Some(answer)) => {
                    let is_written = self.run(&op, true);
                    // Whoever asked may have given up.
                    let _ = answer.send(is_written);
                }
                Command::Mark(mark) => self.board.set(mark),
                Command::Wait(mark) => self.board.wait(mark),
                Command::Operands(operands) => (self.operands, self.cursors[0]) = (operands, 0),
                Command::Room(n) => self.results = vec![0.0; n],
            }
        }
    }

    /// Runs one operation on the next operands; with `poison`, whether all results are numbers.
    fn run(&mut self, op: &Op, poison: bool) -> bool {
        if let Op::Host { ns } = op {
            let begun = Instant::now();
            while begun.elapsed() < Duration::from_nanos(*ns) {
                std::hint::spin_loop();
            }
            return true;
        }
        let (n_in, n_out) = footprint(op).expect("reserved before it is sent");
        let take = |cursor: &mut usize, n: usize, all: usize| {
            assert!(n <= all, "reserved before it is sent");
            let from = if *cursor + n > all { 0 } else { *cursor };
            *cursor = from + n.next_multiple_of(16);
            from
        };
        let operands = Arc::clone(&self.operands);
        let from = take(&mut self.cursors[0], n_in, operands.len());
        let operands = &operands[from..from + n_in];
        let from = take(&mut self.cursors[1], n_out, self.results.len());
        let results = &mut self.results[from..from + n_out];
        if poison {
            results.fill(f32::NAN);
        }
        match op {
            Op::Collective { kind, bytes, shape } => {
                let n_ranks = shape.n_ranks as usize;
                if self.ranks.as_ref().is_none_or(|pool| pool.current_num_threads() != n_ranks) {
                    let pool = rayon::ThreadPoolBuilder::new().num_threads(n_ranks).build();
                    self.ranks = Some(pool.expect("threads for the ranks"));
                }
                let pool = self.ranks.as_ref().expect("just made");
                exchange::run(*kind, size(bytes.div_ceil(4)), n_ranks, pool, results, operands);
            }
            Op::Copy { .. } => results.copy_from_slice(operands),
            op => {
                let threads = self.pool.current_num_threads();
                self.pool.install(|| compute(op, results, operands, threads));
            }
        }
        // A message writes on its last rank only.
        let whole = !matches!(op, Op::Collective { kind: engine::task::Collective::SendRecv, .. });
        !poison || !whole || results.iter().all(|x| x.is_finite())
    }
}

fn size(n: u64) -> usize {
    usize::try_from(n).unwrap_or(usize::MAX / 64)
}

/// Elements of operands and of results; `None` where they cannot be counted.
pub fn footprint(op: &Op) -> Option<(usize, usize)> {
    let mul = |a: u64, b: u64| a.checked_mul(b).map(size);
    match op {
        Op::Gemm { m, n, k, .. } => Some((mul(*m, *k)?.checked_add(mul(*k, *n)?)?, mul(*m, *n)?)),
        Op::GroupedGemm { rows, n, k, .. } => {
            let all: u64 = rows.iter().sum();
            let weights = mul(rows.len() as u64, k.checked_mul(*n)?)?;
            Some((mul(all, *k)?.checked_add(weights)?, mul(all, *n)?))
        }
        Op::Attention { documents, n_heads, n_kv_heads, head_dim, pass, .. } => {
            let queries: u64 = documents.iter().map(|document| document.queries).sum();
            let keys: u64 = documents.iter().map(|document| document.keys.max(1)).sum();
            let (q, kv) =
                (mul(queries, n_heads.checked_mul(*head_dim)?)?, mul(keys, n_kv_heads.checked_mul(*head_dim)?)?);
            let rows = mul(queries, *n_heads)?;
            Some(match pass {
                Pass::Forward => (q + 2 * kv, q + rows),
                Pass::Backward => (2 * q + 2 * kv + 2 * rows, q + 2 * kv),
            })
        }
        // Two read, one written, four bytes each.
        Op::Elementwise { bytes } => Some((2 * size(bytes.div_ceil(12)), size(bytes.div_ceil(12)))),
        Op::Embedding { tokens, row_bytes } => {
            let (row, n) = (size(row_bytes.div_ceil(4)), mul(*tokens, row_bytes.div_ceil(4))?);
            Some((n.max(row), n))
        }
        Op::Collective { kind, bytes, shape } => {
            let (n_in, n_out) = exchange::sizes(*kind, size(bytes.div_ceil(4)), shape.n_ranks as usize);
            Some((n_in.checked_mul(shape.n_ranks as usize)?, n_out.checked_mul(shape.n_ranks as usize)?))
        }
        Op::Copy { bytes, .. } => Some((size(bytes.div_ceil(4)), size(bytes.div_ceil(4)))),
        Op::Host { .. } | Op::Sequence(_) | Op::Slowed { .. } | Op::Launched { .. } => Some((0, 0)),
    }
}

/// Kernels of the compute pool.
fn compute(op: &Op, results: &mut [f32], operands: &[f32], threads: usize) {
    match op {
        Op::Gemm { m, n, k, .. } => gemm(results, operands, [size(*m), size(*n), size(*k)], threads),
        Op::GroupedGemm { rows, n, k, .. } => {
            let (n, k) = (size(*n), size(*k));
            let (mut results, mut operands) = (results, operands);
            for &m in rows {
                let (out, left) = (results, operands);
                let m = size(m);
                let (now, later) = out.split_at_mut(m * n);
                gemm(now, &left[..m * k + k * n], [m, n, k], threads);
                (results, operands) = (later, &left[m * k + k * n..]);
            }
        }
        Op::Attention { documents, n_heads, n_kv_heads, head_dim, pass, .. } => {
            let heads = Heads { n: size(*n_heads), n_kv: size(*n_kv_heads), dim: size(*head_dim) };
            attention(results, operands, documents, heads, *pass);
        }
        Op::Elementwise { .. } => {
            let (a, b) = operands.split_at(operands.len() / 2);
            kernels::elementwise(results, a, b);
        }
        Op::Embedding { row_bytes, .. } => kernels::gather(results, operands, size(row_bytes.div_ceil(4))),
        _ => {}
    }
}

fn gemm(out: &mut [f32], operands: &[f32], [m, n, k]: [usize; 3], threads: usize) {
    let (left, right) = operands.split_at(m * k);
    kernels::product(out, n, View::rows(left, k), View::rows(right, n), [m, n, k], false, threads);
}

fn cut<'a>(from: &mut &'a [f32], n: usize) -> &'a [f32] {
    let (now, later) = from.split_at(n);
    *from = later;
    now
}

fn attention(mut results: &mut [f32], mut operands: &[f32], documents: &[Document], heads: Heads, pass: Pass) {
    let (row, kv_row) = (heads.n * heads.dim, heads.n_kv * heads.dim);
    for document in documents {
        let ramp = Ramp::of(document);
        let (q, kv, rows) = (ramp.queries * row, ramp.keys * kv_row, ramp.queries * heads.n);
        let n_out = if pass == Pass::Forward { q + rows } else { q + 2 * kv };
        let (now, later) = std::mem::take(&mut results).split_at_mut(n_out);
        results = later;
        let [queries, keys, values] = [q, kv, kv].map(|n| cut(&mut operands, n));
        let (first, rest) = now.split_at_mut(q);
        match pass {
            Pass::Forward => kernels::attention_forward(first, rest, [queries, keys, values], ramp, heads),
            Pass::Backward => {
                let [gradient, lse, delta] = [q, rows, rows].map(|n| cut(&mut operands, n));
                let saved = Saved { q: queries, k: keys, v: values, gradient, lse, delta };
                let (dk, dv) = rest.split_at_mut(kv);
                kernels::attention_backward([first, dk, dv], saved, ramp, heads);
            }
        }
    }
}
