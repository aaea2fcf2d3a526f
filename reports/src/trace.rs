//! Chrome and Perfetto trace of a step: ranks are processes, streams are threads, memory is a counter.
//!
//! Timestamps are microseconds with three decimals, that is whole nanoseconds.

use std::fmt::Write;

use sim::task::Stream;

use crate::Picture;

/// Name of a stream.
#[must_use]
pub const fn stream_name(stream: Stream) -> &'static str {
    match stream {
        Stream::Compute => "compute",
        Stream::IntraNode => "intra-node network",
        Stream::InterNode => "inter-node network",
        Stream::HostToDevice => "host to device",
        Stream::DeviceToHost => "device to host",
    }
}

fn micros(ns: u64) -> String {
    format!("{}.{:03}", ns / 1000, ns % 1000)
}

/// The trace as one JSON object.
#[must_use]
pub fn render(picture: &Picture<'_>) -> String {
    let mut text = String::with_capacity(picture.graph.tasks.len() * 120);
    text.push_str("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n");
    let mut separator = "";
    let mut event = |body: std::fmt::Arguments<'_>| {
        write!(text, "{separator}{{{body}}}").expect("writing to a string");
        separator = ",\n";
    };
    for rank in 0..picture.graph.n_ranks {
        event(format_args!(
            "\"ph\":\"M\",\"pid\":{rank},\"name\":\"process_name\",\"args\":{{\"name\":\"rank {rank}\"}}"
        ));
        for stream in Stream::ALL {
            let (tid, name) = (stream.index(), stream_name(stream));
            event(format_args!(
                "\"ph\":\"M\",\"pid\":{rank},\"tid\":{tid},\"name\":\"thread_name\",\"args\":{{\"name\":\"{name}\"}}"
            ));
        }
    }
    for (index, task) in picture.graph.tasks.iter().enumerate() {
        let (start, end) = (picture.timeline.start[index].as_ns(), picture.timeline.end[index].as_ns());
        let micro_batch = if task.micro_batch == u32::MAX { "-".to_owned() } else { task.micro_batch.to_string() };
        event(format_args!(
            "\"ph\":\"X\",\"pid\":{},\"tid\":{},\"ts\":{},\"dur\":{},\"name\":\"{}\",\"args\":{{\"micro_batch\":\"{micro_batch}\"}}",
            task.rank.0,
            task.stream.index(),
            micros(start),
            micros(end - start),
            task.role.name()
        ));
    }
    for (rank, marks) in picture.timeline.memory.iter().enumerate() {
        for mark in marks {
            let (at, bytes) = (micros(mark.at.as_ns()), mark.bytes);
            event(format_args!(
                "\"ph\":\"C\",\"pid\":{rank},\"ts\":{at},\"name\":\"memory\",\"args\":{{\"bytes\":{bytes}}}"
            ));
        }
    }
    text.push_str("\n]}\n");
    text
}
