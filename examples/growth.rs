//! How simulation time grows with GPUs, micro-batches and layers: `cargo run --release --example growth`.
//!
//! Prints a table and writes docs/images/growth.svg. One step of Mixtral 8x22B with tensor 8, pipeline 8 and ragged micro-batches,
//! one thread; each point is the median of five runs of planning, ordering, lowering and playing at both ends of the interval.

use std::error::Error;
use std::time::Instant;

use plotters::prelude::*;
use skrull_sim::kinds;
use skrull_sim::kinds::training::run as pipeline;
use skrull_sim::scenario::{self, Overrides};

const RUNS: usize = 5;

/// Median seconds of a step with keys laid over the shipped scenario, and its model's layers.
fn seconds(set: &[String], n_layers: Option<u64>) -> Result<f64, Box<dyn Error>> {
    let (source, folder) = scenario::find("scale/12k-gpus")?;
    let checked = kinds::check(source, &folder, &Overrides { set: set.to_vec(), ..Overrides::default() });
    let scenario = checked.scenario.ok_or_else(|| format!("{:?}", checked.findings))?;
    let mut scenario = scenario.training().expect("a training step").clone();
    if let Some(n_layers) = n_layers {
        scenario.problem.model.n_layers = n_layers;
    }
    let mut times: Vec<f64> = (0..RUNS)
        .map(|_| {
            let begun = Instant::now();
            let run = pipeline::run(&scenario, &|_| {});
            assert_eq!(run.result.results[0].status, "ok", "{}", run.result.results[0].why);
            begun.elapsed().as_secs_f64()
        })
        .collect();
    times.sort_by(f64::total_cmp);
    Ok(times[RUNS / 2])
}

/// A curve: name, what grows, (value, seconds).
type Curve = (&'static str, Vec<(f64, f64)>);

fn curves() -> Result<Vec<Curve>, Box<dyn Error>> {
    let keys = |nodes: u64, batch: u64| vec![format!("cluster.nodes={nodes}"), format!("training.batch_size={batch}")];
    let mut gpus = Vec::new();
    for nodes in [8_u64, 32, 128, 512, 1536] {
        // Eight micro-batches per pipeline at every size.
        gpus.push(((nodes * 8) as f64, seconds(&keys(nodes, nodes * 10), None)?));
    }
    let mut micro_batches = Vec::new();
    for factor in [1_u64, 2, 4, 8, 16] {
        micro_batches.push(((factor * 8) as f64, seconds(&keys(64, 640 * factor), None)?));
    }
    let mut layers = Vec::new();
    for n_layers in [8_u64, 16, 32, 64, 128] {
        let mut set = keys(64, 2560);
        set.push("cluster.memory_gib=10000".to_owned());
        layers.push((n_layers as f64, seconds(&set, Some(n_layers))?));
    }
    Ok(vec![
        ("GPUs, 8 micro-batches each", gpus),
        ("micro-batches, 512 GPUs", micro_batches),
        ("layers, 512 GPUs", layers),
    ])
}

fn main() -> Result<(), Box<dyn Error>> {
    rayon::ThreadPoolBuilder::new().num_threads(1).build_global()?;
    let curves = curves()?;
    for (name, points) in &curves {
        println!("{name}");
        points.iter().for_each(|(value, seconds)| println!("  {value:>8}  {:9.1} ms", seconds * 1e3));
    }
    let area = SVGBackend::new("docs/images/growth.svg", (900, 420)).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .margin(16)
        .x_label_area_size(44)
        .y_label_area_size(64)
        .build_cartesian_2d((8.0..16_000.0).log_scale(), (0.001..2.0).log_scale())?;
    chart.configure_mesh().x_desc("GPUs, micro-batches or layers").y_desc("seconds").draw()?;
    let colours = [RGBColor(0, 114, 178), RGBColor(230, 159, 0), RGBColor(0, 158, 115)];
    for ((name, points), colour) in curves.iter().zip(colours) {
        chart
            .draw_series(LineSeries::new(points.iter().copied(), colour.stroke_width(3)).point_size(4))?
            .label(*name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], colour.stroke_width(3)));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE)
        .border_style(BLACK)
        .draw()?;
    area.present()?;
    Ok(())
}
