//! What travels between pieces: activations forward, and gradients of the same size the other way.
//!
//! Device k of n holds the part [k/n, (k+1)/n] of a batch's activations, tensor groups one after another; a device receives the parts that
//! it will hold from those that hold them. What it holds already does not travel.

use super::Work;
use super::schedule::Schedule;

/// Activations that one piece hands to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// Index of the piece that makes them.
    pub from: usize,
    /// Index of the piece that needs them.
    pub to: usize,
    /// Size.
    pub bytes: u64,
}

/// A part of a flow: from the device at one position to that at another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// Position among the sending piece's devices.
    pub from: usize,
    /// Position among the receiving piece's devices.
    pub to: usize,
    /// Size.
    pub bytes: u64,
}

/// Flows into every piece, in piece order.
pub fn flows(work: &Work, schedule: &Schedule) -> Vec<Flow> {
    let mut last: Vec<Option<usize>> = vec![None; work.meta_ops.len()];
    let mut found = Vec::new();
    for (to, piece) in schedule.pieces.iter().enumerate() {
        found.extend(sources(work, piece.meta_op, &last).map(|(from, bytes)| Flow { from, to, bytes }));
        last[piece.meta_op] = Some(to);
    }
    found
}

/// Pieces that the next piece of a `MetaOp` hears from, with bytes, when `last` holds the latest piece of each.
pub fn sources<'a>(
    work: &'a Work,
    meta_op: usize,
    last: &'a [Option<usize>],
) -> impl Iterator<Item = (usize, u64)> + 'a {
    let training = &work.training;
    let own = last[meta_op].map(|from| (from, training.inner_bytes(work.meta_ops[meta_op].call)));
    let is_first = own.is_none();
    let preds = work.meta_ops[meta_op].preds.iter().filter(move |_| is_first);
    let others =
        preds.filter_map(move |&pred| Some((last[pred]?, training.output_bytes(work.meta_ops[pred].last_call))));
    own.into_iter().chain(others)
}

/// Parts of `bytes` that `n_to` devices need from `n_from`.
pub fn messages(bytes: u64, n_from: usize, n_to: usize) -> Vec<Message> {
    let (bytes, from_parts, to_parts) = (u128::from(bytes), n_from as u128, n_to as u128);
    let mut found = Vec::with_capacity(n_from + n_to);
    for to in 0..to_parts {
        // Part `to` begins at to/n_to, which lies in part `to·n_from/n_to` of the senders.
        let (first, end) = (to * from_parts / to_parts, ((to + 1) * from_parts).div_ceil(to_parts));
        for from in first..end {
            // Positions in units of 1/(n_from·n_to).
            let begin = (to * from_parts).max(from * to_parts);
            let until = ((to + 1) * from_parts).min((from + 1) * to_parts);
            let part = bytes * until / (from_parts * to_parts) - bytes * begin / (from_parts * to_parts);
            let narrow = |n: u128| usize::try_from(n).expect("positions fit");
            if part > 0 {
                let bytes = u64::try_from(part).expect("a part of what fits");
                found.push(Message { from: narrow(from), to: narrow(to), bytes });
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_add_up_and_equal_cuts_stay_where_they_are() {
        for (n_from, n_to) in [(1, 1), (4, 4), (3, 4), (8, 2), (2, 8), (5, 7)] {
            let parts = messages(1_000_003, n_from, n_to);
            assert_eq!(parts.iter().map(|part| part.bytes).sum::<u64>(), 1_000_003, "{n_from} to {n_to}");
            if n_from == n_to {
                assert!(parts.iter().all(|part| part.from == part.to));
            }
        }
        // From three devices to four, 12 bytes: the second of four needs one byte of the first and two of the second.
        let of_second: Vec<Message> = messages(12, 3, 4).into_iter().filter(|part| part.to == 1).collect();
        assert_eq!(of_second, [Message { from: 0, to: 1, bytes: 1 }, Message { from: 1, to: 1, bytes: 2 }]);
        // From four to two, of which device 0 keeps its quarter.
        let kept: Vec<Message> = messages(12, 4, 2).into_iter().filter(|part| part.from == part.to).collect();
        assert_eq!(kept, [Message { from: 0, to: 0, bytes: 3 }]);
    }
}
