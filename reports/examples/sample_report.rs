//! Writes a synthetic report to standard output, to look at the layout; its figures are invented.

use reports::{Picture, html, table};

#[path = "../tests/support/sample.rs"]
mod sample;

fn main() {
    let run = sample::run();
    let lengths = sample::lengths();
    let steps = [sample::step(32, 150, true), sample::step(32, 150, true), sample::step(32, 150, false)];
    let pictures: Vec<_> = ["deepspeed", "longalign-sorted", "skrull"]
        .into_iter()
        .zip(&steps)
        .map(|(policy, (graph, timeline))| Picture {
            policy,
            step: None,
            graph,
            timeline,
            lengths: &lengths,
            device_memory_bytes: sample::DEVICE_BYTES,
        })
        .collect();
    eprint!("{}", table::render(&run));
    print!("{}", html::render(&run, &pictures, &[]));
}
