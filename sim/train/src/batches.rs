//! Sequences of a batch that micro-batches of all replicas hold at once.

use crate::problem::Problem;

/// Sequences of a micro-batch on all replicas together, where all sequences are alike; `None` where they are packed.
pub fn together(problem: &Problem) -> Option<u64> {
    let lengths = &problem.workload.lengths;
    let tokens = lengths.first().copied().filter(|first| lengths.iter().all(|other| other == first))?;
    let held = problem.bucket_tokens * u64::from(problem.layout.cp) / tokens.max(1);
    Some(held.max(1) * u64::from(problem.layout.dp))
}

/// The multiples of a number around another one that is none; 0 is left out.
pub fn around(n: u64, of: u64) -> Vec<u64> {
    let below = n / of * of;
    [below, below + of].into_iter().filter(|near| *near > 0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_batches_are_the_multiples_on_both_sides() {
        for of in 1..20 {
            for n in (1_u64..100).filter(|n| n % of != 0) {
                let multiples = (1..200).filter(|near| near % of == 0);
                let brute: Vec<u64> = multiples.filter(|near| near.abs_diff(n) < of).collect();
                assert_eq!(around(n, of), brute, "{n}, {of}");
            }
        }
    }
}
