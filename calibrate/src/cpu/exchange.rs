//! Collectives of the CPU device: every rank is a thread with memory of its own, and data moves by real copies.

use engine::task::Collective;
use rayon::ThreadPool;
use rayon::prelude::*;

/// Elements that a rank sends in and gets out, per rank, for `n` elements as the kind defines its size.
pub const fn sizes(kind: Collective, n: usize, n_ranks: usize) -> (usize, usize) {
    let piece = n.div_ceil(n_ranks);
    match kind {
        Collective::AllGather => (piece, piece * n_ranks),
        Collective::ReduceScatter => (piece * n_ranks, piece),
        Collective::AllReduce | Collective::AllToAll => (piece * n_ranks, piece * n_ranks),
        Collective::RingShift | Collective::SendRecv => (n, n),
    }
}

/// Runs a collective of `n` elements: rank r owns the r-th part of both slices. A thread per rank in `pool`.
pub fn run(kind: Collective, n: usize, n_ranks: usize, pool: &ThreadPool, out: &mut [f32], sent: &[f32]) {
    let piece = n.div_ceil(n_ranks);
    let (n_in, n_out) = sizes(kind, n, n_ranks);
    let of = |rank: usize| &sent[rank * n_in..(rank + 1) * n_in];
    let ranks = out[..n_ranks * n_out].par_chunks_mut(n_out).enumerate();
    let reduced = |rank: usize, out: &mut [f32]| {
        out.copy_from_slice(&of(rank)[rank * piece..(rank + 1) * piece]);
        for other in (0..n_ranks).filter(|&other| other != rank) {
            let share = &of(other)[rank * piece..(rank + 1) * piece];
            out.iter_mut().zip(share).for_each(|(sum, x)| *sum += x);
        }
    };
    pool.install(|| match kind {
        Collective::AllGather => ranks.for_each(|(_, out)| {
            out.chunks_mut(piece).enumerate().for_each(|(from, out)| out.copy_from_slice(of(from)));
        }),
        Collective::AllToAll => ranks.for_each(|(rank, out)| {
            for (from, out) in out.chunks_mut(piece).enumerate() {
                out.copy_from_slice(&of(from)[rank * piece..(rank + 1) * piece]);
            }
        }),
        Collective::ReduceScatter => ranks.for_each(|(rank, out)| reduced(rank, out)),
        Collective::AllReduce => {
            // Each rank reduces its share, then everyone gathers all shares.
            let mut shares = vec![0.0; piece * n_ranks];
            shares.par_chunks_mut(piece).enumerate().for_each(|(rank, out)| reduced(rank, out));
            ranks.for_each(|(_, out)| out.copy_from_slice(&shares));
        }
        Collective::RingShift => ranks.for_each(|(rank, out)| out.copy_from_slice(of((rank + n_ranks - 1) % n_ranks))),
        Collective::SendRecv => {
            ranks.filter(|(rank, _)| *rank + 1 == n_ranks).for_each(|(_, out)| out.copy_from_slice(of(0)));
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rank_ends_with_what_the_collective_promises() {
        let (n, n_ranks) = (6, 3);
        let pool = rayon::ThreadPoolBuilder::new().num_threads(n_ranks).build().expect("a pool");
        let play = |kind| {
            let (n_in, n_out) = sizes(kind, n, n_ranks);
            // Rank r sends 10 · r + position.
            let sent: Vec<f32> = (0..n_ranks * n_in).map(|i| (10 * (i / n_in) + i % n_in) as f32).collect();
            let mut out = vec![-1.0; n_ranks * n_out];
            run(kind, n, n_ranks, &pool, &mut out, &sent);
            out.chunks(n_out).map(<[f32]>::to_vec).collect::<Vec<Vec<f32>>>()
        };
        assert_eq!(play(Collective::AllGather), vec![vec![0.0, 1.0, 10.0, 11.0, 20.0, 21.0]; 3]);
        assert_eq!(play(Collective::AllToAll)[1], [2.0, 3.0, 12.0, 13.0, 22.0, 23.0]);
        assert_eq!(play(Collective::ReduceScatter), [[30.0, 33.0], [36.0, 39.0], [42.0, 45.0]]);
        assert_eq!(play(Collective::AllReduce), vec![vec![30.0, 33.0, 36.0, 39.0, 42.0, 45.0]; 3]);
        assert_eq!(play(Collective::RingShift)[0][0], 20.0);
        assert_eq!(play(Collective::SendRecv)[2], [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
    }
}
