//! Attention of one token per sequence over caches in one piece and in shuffled pages, split and merged.

use super::super::attention::Heads;
use super::super::kernels::Decode;
use super::attention::{Inputs, index};
use super::{Check, Tensor};
use crate::device::DeviceError;

/// All cases.
pub fn all(check: &mut Check<'_>) -> Result<(), DeviceError> {
    sequences(check, &[300, 1, 129, 64], Heads { n: 8, n_kv: 2, dim: 128 }, 3, 16)?;
    sequences(check, &[77, 500], Heads { n: 16, n_kv: 1, dim: 64 }, 2, 48)?;
    sequences(check, &[100, 259], Heads { n: 10, n_kv: 2, dim: 64 }, 5, 64)
}

fn number(n: usize) -> i32 {
    i32::try_from(n).unwrap_or(0)
}

/// A cache in pages of random order, and the pages of each sequence. Places of no token hold no numbers.
fn paged(tensor: &Tensor, lengths: &[usize], wide: usize, (table, most, page): (&[usize], usize, usize)) -> Vec<u16> {
    let mut pages = vec![0xffff_u16; table.len() * page * wide];
    let mut from = 0;
    for (sequence, length) in lengths.iter().enumerate() {
        for token in 0..*length {
            let to = (table[sequence * most + token / page] * page + token % page) * wide;
            for x in 0..wide {
                pages[to + x] = super::bf16(tensor.values[from + x] as f32);
            }
            from += wide;
        }
    }
    pages
}

fn sequences(
    check: &mut Check<'_>,
    lengths: &[usize],
    heads: Heads,
    splits: usize,
    page: usize,
) -> Result<(), DeviceError> {
    let (n, wide, dim) = (lengths.len(), index(heads.n_kv * heads.dim), index(heads.dim));
    let inputs = Inputs::new(check, lengths.iter().map(|length| (1, *length)).collect(), heads)?;
    let (e_out, e_lse) = inputs.forward(&|_, _, _| true);
    // The kernel has its logarithms by sequences and heads.
    let e_lse: Vec<f64> = (0..e_lse.len()).map(|i| e_lse[i % index(heads.n) * n + i / index(heads.n)]).collect();
    let sizes: Vec<i32> = lengths.iter().map(|length| number(*length)).collect();
    let starts: Vec<i32> = (0..n).map(|i| number(lengths[..i].iter().sum())).collect();
    let most = lengths.iter().max().copied().unwrap_or(1).div_ceil(page);
    let table = check.random.order(most * n);
    let in_pages = |tensor: &Tensor| paged(tensor, lengths, wide, (&table, most, page));
    let [q, k, v] = inputs.tensors();
    let (k_pages, v_pages) = (check.upload(&in_pages(k))?, check.upload(&in_pages(v))?);
    let (sizes, starts) = (check.upload(&sizes)?, check.upload(&starts)?);
    let table = check.upload(&table.iter().map(|page| number(*page)).collect::<Vec<i32>>())?;
    let rows = n * index(heads.n);
    for pages in [None, Some((most, page))] {
        let parts =
            [check.blank(splits * rows * dim * 4)?, check.blank(splits * rows * 4)?, check.blank(splits * rows * 4)?];
        let (out, lse) = (check.blank(rows * dim * 2)?, check.blank(rows * 4)?);
        let places = Decode {
            qkv: if pages.is_some() { [q.at(), k_pages.at, v_pages.at] } else { inputs.at() },
            lengths: sizes.at,
            place: if pages.is_some() { table.at } else { starts.at },
            parts: [parts[0].at, parts[1].at, parts[2].at],
            out: [out.at, lse.at],
            pages,
            n,
            splits,
        };
        places.launch(check.driver, heads, check.on)?;
        let how = if pages.is_some() { "in pages" } else { "in one piece" };
        let name = |what: &str| format!("decode {what} {how}, {} heads of {}, {splits} splits", heads.n, heads.dim);
        check.half(name("result"), &out, &e_out)?;
        check.float(name("log-sum-exp"), &lse, &e_lse)?;
    }
    Ok(())
}
