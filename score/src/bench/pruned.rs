//! JSON of a client, read value by value and without what no reader looks at: texts of answers, bodies of requests, times of every token.
//!
//! A result with texts and token times has gigabytes; what is kept of a request has some hundred bytes. How much is kept of one value is bounded.

use std::cell::Cell;
use std::fmt;
use std::io::{BufReader, Read};

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use super::{BenchError, number};

/// Numbers, words, lists and objects that are kept of one value: some two gigabytes.
const PARTS_MAX: u64 = 30_000_000;
/// Letters that are kept of a text; no reader needs more than a name.
const LETTERS_MAX: usize = 256;
/// Keys whose values are passed over.
const PASSED_OVER: [&str; 9] = [
    "generated_texts",
    "generated_text",
    "output",
    "prompt",
    "prompts",
    "request",
    "request_args",
    "response",
    "inter_chunk_latency",
];
/// The key with a list of gaps for every request; each list becomes its sum.
const GAPS: &str = "itls";
/// The key with the moments of all tokens; the first and the last are kept.
const MOMENTS: &str = "output_token_times";

/// The values of a file, one after another.
pub struct Values<R: Read> {
    json: serde_json::Deserializer<serde_json::de::IoRead<BufReader<R>>>,
}

impl<R: Read> Values<R> {
    /// Of a file that begins here.
    pub fn of(source: R) -> Self {
        Self { json: serde_json::Deserializer::from_reader(BufReader::with_capacity(1 << 16, source)) }
    }

    /// The next value; `None` at the end of the file.
    pub fn next(&mut self) -> Result<Option<Value>, BenchError> {
        // Not at its end is said as an error that takes nothing.
        if self.json.end().is_ok() {
            return Ok(None);
        }
        let left = Cell::new(PARTS_MAX);
        let read = Part { left: &left, of: Of::Anything }.deserialize(&mut self.json);
        match read {
            Ok(value) => Ok(Some(value)),
            Err(_) if left.get() == 0 => Err(BenchError::TooLong { parts: PARTS_MAX }),
            Err(error) => Err(BenchError::Json { line: error.line(), what: error.to_string() }),
        }
    }

    /// Refuses what stands behind the last value.
    pub fn end(&mut self) -> Result<(), BenchError> {
        self.json.end().map_err(|error| BenchError::Json { line: error.line(), what: error.to_string() })
    }
}

/// What a value is part of.
#[derive(Clone, Copy, PartialEq)]
enum Of {
    Anything,
    /// A list with gaps of each request.
    EachGaps,
    /// Gaps of one request.
    Gaps,
    /// Moments of one request.
    Moments,
}

/// A value that is read.
#[derive(Clone, Copy)]
struct Part<'b> {
    left: &'b Cell<u64>,
    of: Of,
}

impl Part<'_> {
    /// Counts a part that is kept.
    fn keep<E: serde::de::Error>(&self) -> Result<(), E> {
        match self.left.get() {
            0 => Err(E::custom("too long")),
            left => {
                self.left.set(left - 1);
                Ok(())
            }
        }
    }
}

impl<'de> DeserializeSeed<'de> for Part<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Value, D::Error> {
        self.keep()?;
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Part<'_> {
    type Value = Value;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, is_so: bool) -> Result<Value, E> {
        Ok(Value::Bool(is_so))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Value, E> {
        Ok(number.into())
    }

    fn visit_u64<E>(self, number: u64) -> Result<Value, E> {
        Ok(number.into())
    }

    fn visit_f64<E>(self, number: f64) -> Result<Value, E> {
        Ok(Number::from_f64(number).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(Value::String(text.chars().take(LETTERS_MAX).collect()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Value, A::Error> {
        match self.of {
            Of::Anything => self.all(list, Of::Anything),
            Of::EachGaps => self.all(list, Of::Gaps),
            Of::Gaps => self.sum(list),
            Of::Moments => self.ends(list),
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut kept = Map::new();
        while let Some(key) = map.next_key::<String>()? {
            if PASSED_OVER.contains(&key.as_str()) {
                map.next_value::<IgnoredAny>()?;
                continue;
            }
            let of = match key.as_str() {
                GAPS => Of::EachGaps,
                MOMENTS => Of::Moments,
                _ => Of::Anything,
            };
            let value = map.next_value_seed(Part { of, ..self })?;
            kept.insert(key.chars().take(LETTERS_MAX).collect(), value);
        }
        Ok(Value::Object(kept))
    }
}

impl Part<'_> {
    fn all<'de, A: SeqAccess<'de>>(self, mut list: A, of: Of) -> Result<Value, A::Error> {
        let mut kept = Vec::new();
        while let Some(value) = list.next_element_seed(Part { of, ..self })? {
            kept.push(value);
        }
        Ok(Value::Array(kept))
    }

    fn sum<'de, A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        let mut sum = 0.0;
        while let Some(value) = self.passing(&mut list)? {
            sum += number(&value).unwrap_or(0.0);
        }
        self.visit_f64(sum)
    }

    fn ends<'de, A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        let mut kept = Vec::new();
        while let Some(value) = self.passing(&mut list)? {
            kept.truncate(1);
            kept.push(value);
        }
        Ok(Value::Array(kept))
    }

    /// The next value of a list of which no list is kept; what it takes is given back.
    fn passing<'de, A: SeqAccess<'de>>(self, list: &mut A) -> Result<Option<Value>, A::Error> {
        let left = self.left.get();
        let value = list.next_element_seed(Part { of: Of::Anything, ..self })?;
        self.left.set(left);
        Ok(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first(text: &str) -> Value {
        Values::of(text.as_bytes()).next().expect("JSON").expect("a value")
    }

    #[test]
    fn what_no_reader_looks_at_is_not_kept() {
        let text = r#"{"generated_texts": ["a", "b"], "itls": [[0.5, 0.25], []], "n": [1, -2, 2.5, true, null, "x"],
          "info": {"output_token_times": [1, 2, 3], "response": {"deep": [1]}}}"#;
        let kept = serde_json::json!({ "itls": [0.75, 0.0], "n": [1, -2, 2.5, true, null, "x"], "info": { "output_token_times": [1, 3] } });
        assert_eq!(first(text), kept);
        assert_eq!(first(&format!("\"{}\"", "é".repeat(1000))), Value::String("é".repeat(LETTERS_MAX)));
        assert_eq!(first(r#"{"output_token_times": [7]}"#), serde_json::json!({ "output_token_times": [7] }));
    }

    #[test]
    fn values_come_one_by_one_until_the_end() {
        let mut values = Values::of("{}\n[1] 2\n ".as_bytes());
        let mut all = Vec::new();
        while let Some(value) = values.next().expect("JSON") {
            all.push(value);
        }
        assert_eq!(all, [serde_json::json!({}), serde_json::json!([1]), serde_json::json!(2)]);
    }

    #[test]
    fn what_is_kept_of_one_value_is_bounded_and_what_is_summed_is_not() {
        let left = Cell::new(10);
        let part = Part { left: &left, of: Of::Anything };
        let mut json = serde_json::Deserializer::from_str("[1,2,3,4,5,6,7,8,9,10]");
        assert!(part.deserialize(&mut json).is_err() && left.get() == 0);
        let left = Cell::new(10);
        let part = Part { left: &left, of: Of::Anything };
        let mut json = serde_json::Deserializer::from_str(r#"{"itls": [[1,2,3,4,5,6,7,8,9,10]]}"#);
        assert_eq!(part.deserialize(&mut json).expect("bounded"), serde_json::json!({ "itls": [55.0] }));
    }
}
