//! Lists of layers as Python expressions: `([0]*3+[1]*11)`, `[1,0]*8` or a number.

/// What `frequency` reads, in words.
pub(super) fn allowed(n_layers: u64) -> String {
    format!(
        "allowed is a number N for every N-th layer, or a list of {n_layers} times 0 or 1, for example `([0]*1+[1]*{})`",
        n_layers.saturating_sub(1)
    )
}

/// Layers with experts (1) and without (0), as `--moe-layer-freq` says; nothing where it says no layer or another number of them.
pub(super) fn frequency(text: &str, n_layers: u64) -> Option<Vec<u8>> {
    let n = usize::try_from(n_layers).unwrap_or(usize::MAX);
    if let Ok(every) = text.parse::<usize>() {
        return (every > 0).then(|| (0..n).map(|index| u8::from(index % every == 0)).collect());
    }
    let bare: String =
        text.chars().filter(|letter| !letter.is_whitespace() && *letter != '(' && *letter != ')').collect();
    let mut list = Vec::new();
    for term in bare.split('+') {
        let (items, times) =
            term.split_once('*').map_or((term, Some(1)), |(items, times)| (items, times.parse::<usize>().ok()));
        let items = items.strip_prefix('[').and_then(|items| items.strip_suffix(']'))?;
        let items: Option<Vec<u8>> = items.split(',').map(|item| item.parse().ok().filter(|item| *item < 2)).collect();
        let (items, times) = (items?, times?);
        if items.len().saturating_mul(times) > n {
            return None;
        }
        list.extend(items.repeat(times));
    }
    (list.len() == n).then_some(list)
}

/// Layers with a window (1) and without (0), as `--window-attn-skip-freq` says: every N-th one attends to all tokens.
pub(super) fn windows(text: &str, n_layers: u64) -> Option<Vec<u8>> {
    match text.parse::<u64>() {
        Ok(every) => {
            (every > 0).then(|| (1..=n_layers).map(|number| u8::from(!number.is_multiple_of(every))).collect())
        }
        Err(_) => frequency(text, n_layers),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_those_of_python() {
        assert_eq!(frequency("([0]*1+[1]*3)", 4), Some(vec![0, 1, 1, 1]));
        assert_eq!(frequency("[0,1]*2", 4), Some(vec![0, 1, 0, 1]));
        assert_eq!(frequency("2", 4), Some(vec![1, 0, 1, 0]));
        assert_eq!(windows("2", 4), Some(vec![1, 0, 1, 0]));
        assert_eq!(windows("[1,1,1,0]", 4), Some(vec![1, 1, 1, 0]));
        assert!(windows("0", 4).is_none());
        assert!(frequency("[1]*3", 4).is_none());
        assert!(frequency("[1]*99999999999", 4).is_none());
        assert!(frequency("__import__('os')", 4).is_none());
    }
}
