//! Exchanges of several GPUs against plain loops. Inputs are small whole numbers, whose sums bf16 holds exactly.

use engine::task::Collective;

use super::super::nccl::Peers;
use super::{Check, bf16, value};
use crate::device::DeviceError;

/// Every kind, with its name.
const KINDS: [(Collective, &str); 6] = [
    (Collective::AllGather, "all-gather"),
    (Collective::ReduceScatter, "reduce-scatter"),
    (Collective::AllReduce, "all-reduce"),
    (Collective::AllToAll, "all-to-all"),
    (Collective::RingShift, "ring shift"),
    (Collective::SendRecv, "send and receive"),
];
/// Elements, as each kind counts them; the last number is no multiple of any group.
const ELEMENTS: [usize; 2] = [1, 100_003];

/// All cases: of two GPUs, and of all.
pub fn all(check: &mut Check<'_>, peers: &mut Peers) -> Result<(), DeviceError> {
    let mut groups = vec![2, peers.len()];
    groups.dedup();
    for n in groups {
        for kind in KINDS {
            for elements in ELEMENTS {
                one(check, peers, kind, elements, n as usize)?;
            }
        }
    }
    Ok(())
}

fn one(
    check: &mut Check<'_>,
    peers: &mut Peers,
    (kind, name): (Collective, &str),
    elements: usize,
    n: usize,
) -> Result<(), DeviceError> {
    let (sent, _) = crate::cpu::exchange_sizes(kind, elements, n);
    let mut small = || (0..sent).map(|_| bf16(check.random.below(9) as f32 - 4.0)).collect::<Vec<u16>>();
    let inputs: Vec<Vec<u16>> = (0..n).map(|_| small()).collect();
    let found = peers.exchange(kind, elements, &inputs)?;
    let inputs: Vec<Vec<f64>> = inputs.iter().map(|input| input.iter().copied().map(value).collect()).collect();
    let (mut wrong, mut of) = (0, 0);
    for (rank, found) in found.iter().enumerate() {
        let expected = expected(kind, &inputs, rank, elements.div_ceil(n));
        wrong += expected.iter().zip(found).filter(|(expected, found)| **expected != value(**found)).count();
        of += expected.len();
    }
    check.exact(format!("{name} of {elements} on {n} GPUs"), wrong, of)
}

/// What a rank has after an exchange; nothing where the kind leaves it alone.
fn expected(kind: Collective, sent: &[Vec<f64>], rank: usize, piece: usize) -> Vec<f64> {
    let n = sent.len();
    let sum = |at: usize| sent.iter().map(|of| of[at]).sum::<f64>();
    let own = rank * piece..(rank + 1) * piece;
    match kind {
        Collective::AllGather => sent.concat(),
        Collective::AllReduce => (0..n * piece).map(sum).collect(),
        Collective::ReduceScatter => own.map(sum).collect(),
        Collective::AllToAll => sent.iter().flat_map(|of| of[own.clone()].to_vec()).collect(),
        Collective::RingShift => sent[(rank + n - 1) % n].clone(),
        Collective::SendRecv if rank + 1 == n => sent[0].clone(),
        Collective::SendRecv => Vec::new(),
    }
}
