//! Traces of the PyTorch profiler: JSON of events as Kineto writes them, of any length.
//!
//! An event is read, looked at and forgotten, so a trace of gigabytes needs the memory of its kernels. What matters: `kernel`, `gpu_memcpy` and
//! `gpu_memset` on a device, `cuda_runtime` and `cuda_driver` calls that launch them (joined by `correlation`), and `ProfilerStep#N`.
//! Moments are microseconds. Source: pytorch/kineto, libkineto/src/output_json.cpp; read 2026-11.

use std::cell::Cell;
use std::fmt;
use std::io::{self, Read};
use std::rc::Rc;

use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

use super::{Event, ProfilerError, Recorded, Window, ns_of_us};

/// Bytes of one event or of anything else beside them, at most.
const PART_BYTES_MAX: u64 = 16 << 20;

/// Reads a trace.
///
/// # Errors
/// What is wrong with it.
pub fn read(source: impl Read) -> Result<Recorded, ProfilerError> {
    let left = Rc::new(Cell::new(PART_BYTES_MAX));
    let mut recorded = Recorded::default();
    let mut refused = None;
    let source = Bounded { source, left: Rc::clone(&left) };
    let mut json = serde_json::Deserializer::from_reader(source);
    let root = Root { recorded: &mut recorded, left: &left, refused: &mut refused };
    let found = root.deserialize(&mut json).and_then(|()| json.end());
    // What was refused is told in its own words, not in those of the JSON reader.
    match (refused, found) {
        (Some(why), _) => Err(why),
        (None, Err(error)) => Err(error.into()),
        (None, Ok(())) if recorded.events.is_empty() => Err(ProfilerError::NoKernels),
        (None, Ok(())) => Ok(recorded),
    }
}

/// A source of which only so many bytes may belong to one part.
struct Bounded<R> {
    source: R,
    left: Rc<Cell<u64>>,
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.source.read(buffer)?;
        let left = self.left.get().checked_sub(n as u64);
        let long = || io::Error::other(format!("one event is longer than {} MiB", PART_BYTES_MAX >> 20));
        self.left.set(left.ok_or_else(long)?);
        Ok(n)
    }
}

/// The whole trace: an object around its events, or the events alone.
struct Root<'r> {
    recorded: &'r mut Recorded,
    left: &'r Cell<u64>,
    refused: &'r mut Option<ProfilerError>,
}

impl<'de> DeserializeSeed<'de> for Root<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Root<'_> {
    type Value = ();

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("an object with `traceEvents`, or a list of events")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let Self { recorded, left, refused } = self;
        let mut has_events = false;
        while let Some(key) = map.next_key::<String>()? {
            left.set(PART_BYTES_MAX);
            match key.as_str() {
                "traceEvents" => {
                    has_events = true;
                    map.next_value_seed(Root { recorded: &mut *recorded, left, refused: &mut *refused })?;
                }
                "distributedInfo" => ranks(recorded, &map.next_value()?),
                "deviceProperties" => devices(recorded, &map.next_value()?),
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        if !has_events {
            *refused = Some(ProfilerError::Unknown);
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut events: A) -> Result<(), A::Error> {
        while let Some(event) = events.next_element::<Value>()? {
            self.left.set(PART_BYTES_MAX);
            match take(self.recorded, &event) {
                Ok(true) => {}
                Ok(false) => return Err(A::Error::custom(format!("a kernel without `ts` and `dur`: {event}"))),
                Err(why) => {
                    *self.refused = Some(why);
                    return Err(A::Error::custom("refused"));
                }
            }
        }
        Ok(())
    }
}

/// A number that is a position.
fn index(value: &Value) -> Option<u32> {
    value.as_u64().and_then(|n| u32::try_from(n).ok())
}

/// What the file says of its rank.
fn ranks(recorded: &mut Recorded, info: &Value) {
    (recorded.rank, recorded.n_ranks) = (index(&info["rank"]), index(&info["world_size"]));
}

/// Names of devices.
fn devices(recorded: &mut Recorded, devices: &Value) {
    for device in devices.as_array().into_iter().flatten() {
        if let (Some(id), Some(name)) = (index(&device["id"]), device["name"].as_str()) {
            recorded.devices.insert(id, name.to_owned());
        }
    }
}

/// Takes an event where it matters; whether it is whole.
fn take(recorded: &mut Recorded, event: &Value) -> Result<bool, ProfilerError> {
    let (category, name) = (event["cat"].as_str().unwrap_or_default(), event["name"].as_str().unwrap_or_default());
    if event["ph"] != "X" {
        return Ok(true);
    }
    match category {
        "kernel" | "Kernel" | "gpu_memcpy" | "Memcpy" | "gpu_memset" | "Memset" => kernel(recorded, event, name),
        "cuda_runtime" | "cuda_driver" | "Runtime" => {
            if let (Some(id), Some(window)) = (event["args"]["correlation"].as_u64(), window(event)) {
                recorded.launched(id, window)?;
            }
            Ok(true)
        }
        _ => {
            let number = name.strip_prefix("ProfilerStep#").and_then(|number| number.parse().ok());
            if let (Some(number), Some(window)) = (number, window(event)) {
                recorded.step(number, window, category == "gpu_user_annotation");
            }
            Ok(true)
        }
    }
}

/// Keeps what ran on a device; false where it has no time.
fn kernel(recorded: &mut Recorded, event: &Value, name: &str) -> Result<bool, ProfilerError> {
    let Some(window) = window(event) else { return Ok(false) };
    let args = &event["args"];
    let name = recorded.name(name, args["Collective name"].as_str())?;
    let device = index(&args["device"]).or_else(|| index(&event["pid"])).unwrap_or(0);
    let launch = args["correlation"].as_u64().filter(|id| *id > 0);
    recorded.keep(Event { name, device, start: window.start, end: window.end, launch })?;
    Ok(true)
}

/// When an event was.
fn window(event: &Value) -> Option<Window> {
    let start = ns_of_us(event["ts"].as_f64()?)?;
    Some(Window { start, end: start.checked_add(ns_of_us(event["dur"].as_f64()?)?)? })
}
