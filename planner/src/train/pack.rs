//! Packing algorithms that at least two policies share. Items are named by their index; ties go to the lower index.

/// Longest processing time first: each item, heaviest first, to the lightest bin.
pub fn longest_first(weights: &[f64], n_bins: usize) -> Vec<Vec<usize>> {
    let mut order: Vec<usize> = (0..weights.len()).collect();
    order.sort_by(|&a, &b| weights[b].total_cmp(&weights[a]).then(a.cmp(&b)));
    let mut bins = vec![Vec::new(); n_bins];
    let mut load = vec![0.0_f64; n_bins];
    for item in order {
        let lightest = (0..n_bins).min_by(|&a, &b| load[a].total_cmp(&load[b])).expect("at least one bin");
        load[lightest] += weights[item];
        bins[lightest].push(item);
    }
    bins
}

/// Best fit decreasing: each item, largest first, to the fullest bin that still takes it, else to a new one.
/// Items above the capacity get a bin of their own.
pub fn best_fit_decreasing(sizes: &[u64], capacity: u64) -> Vec<Vec<usize>> {
    let mut order: Vec<usize> = (0..sizes.len()).collect();
    order.sort_by(|&a, &b| sizes[b].cmp(&sizes[a]).then(a.cmp(&b)));
    let mut bins: Vec<(u64, Vec<usize>)> = Vec::new();
    for item in order {
        let fits = bins.iter().enumerate().filter(|(_, (used, _))| used + sizes[item] <= capacity);
        match fits.max_by_key(|(index, (used, _))| (*used, std::cmp::Reverse(*index))).map(|(index, _)| index) {
            Some(index) => {
                bins[index].0 += sizes[item];
                bins[index].1.push(item);
            }
            None => bins.push((sizes[item], vec![item])),
        }
    }
    bins.into_iter().map(|(_, items)| items).collect()
}

/// Next fit: items in order, a new bin whenever the next one does not fit.
pub fn next_fit(sizes: &[u64], capacity: u64) -> Vec<Vec<usize>> {
    let mut bins: Vec<Vec<usize>> = Vec::new();
    let mut used = 0;
    for (item, &size) in sizes.iter().enumerate() {
        match bins.last_mut().filter(|_| used + size <= capacity) {
            Some(bin) => {
                bin.push(item);
                used += size;
            }
            None => {
                bins.push(vec![item]);
                used = size;
            }
        }
    }
    bins
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_cases_by_hand() {
        // 5 | 4, then 3 to the 4 (7), then 2 to the 5 (7).
        assert_eq!(longest_first(&[3.0, 5.0, 2.0, 4.0], 2), [vec![1, 2], vec![3, 0]]);
        // 7 alone; 5 opens; 4 opens (5 + 4 = 9 fits 10: joins 5); 3 fits with 7 exactly.
        assert_eq!(best_fit_decreasing(&[4, 7, 5, 3], 10), [vec![1, 3], vec![2, 0]]);
        assert_eq!(next_fit(&[4, 7, 3, 1], 10), [vec![0], vec![1, 2], vec![3]]);
    }
}
