//! `result.json`: one object, stable keys, units in the key names; figures that are not finite are absent.

use crate::RunResult;

/// The result as a file, with a final newline.
///
/// # Errors
/// Never for a result made of finite figures.
pub fn render(result: &RunResult) -> Result<String, serde_json::Error> {
    let mut result = result.clone();
    for row in &mut result.results {
        row.metrics.retain(|_, value| value.is_finite());
        row.interval.retain(|_, ends| ends.iter().all(|end| end.is_finite()));
    }
    result.speedup_ratio.retain(|_, value| value.is_finite());
    Ok(serde_json::to_string_pretty(&result)? + "\n")
}

/// Reads a result file.
///
/// # Errors
/// When the text is no result.
pub fn parse(text: &str) -> Result<RunResult, serde_json::Error> {
    serde_json::from_str(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_survive_a_round_trip_and_nan_is_absent() {
        let mut result = crate::table::tests::sample();
        let text = render(&result).expect("finite");
        assert_eq!(parse(&text).expect("own output"), result);
        result.results[0].metrics.insert("tokens_per_s".to_owned(), f64::NAN);
        assert!(!render(&result).expect("finite").contains("tokens_per_s\": n"));
    }
}
