//! The continuous optimum of independent `MetaOps` and its cut to sizes that exist (Spindle, section 3.3).
//!
//! Malleable jobs on N devices whose time falls with their share: in the optimum all start and end together, at the C with
//!
//! Σ_m T_m⁻¹(C / L_m) = N
//!
//! (after Prasanna and Musicus, IEEE TPDS 1996), unless a job's largest size takes longer than that: then C is its time, and devices are left
//! over. Each job then runs on the two sizes around its share, so many layers on each that both together take C.

use train::multi_task::curve::Curve;

/// A job: layers and the curve of one.
#[derive(Clone, Copy, Debug)]
pub struct Job<'a> {
    /// Layers.
    pub n_layers: u32,
    /// Seconds of a layer.
    pub curve: &'a Curve,
}

/// The continuous optimum.
#[derive(Clone, Debug, PartialEq)]
pub struct Optimum {
    /// Seconds until all end.
    pub seconds: f64,
    /// Share of the devices that each job gets.
    pub devices: Vec<f64>,
}

/// More halvings change nothing in a 64-bit float.
const HALVINGS: u32 = 200;

/// Finds C by bisection.
pub fn optimum(jobs: &[Job<'_>], n_devices: u32) -> Optimum {
    let share = |job: &Job<'_>, seconds: f64| job.curve.devices(seconds / f64::from(job.n_layers));
    let shares = |seconds: f64| jobs.iter().map(|job| share(job, seconds)).collect::<Vec<f64>>();
    let total = |seconds: f64| shares(seconds).iter().sum::<f64>();
    let n = f64::from(n_devices);
    let fastest = |job: &Job<'_>| f64::from(job.n_layers) * job.curve.largest().1;
    let floor = jobs.iter().map(fastest).fold(0.0, f64::max);
    if jobs.is_empty() || total(floor) <= n {
        return Optimum { seconds: floor, devices: shares(floor) };
    }
    // At this time the jobs take turns on all devices, each no wider than its smallest size.
    let turns: f64 = jobs.iter().map(|job| f64::from(job.n_layers) * job.curve.smallest().1).sum();
    let widest = jobs.iter().map(|job| job.curve.smallest().0).max().unwrap_or(1);
    let (mut low, mut high) = (floor, turns * f64::from(widest).max(1.0));
    for _ in 0..HALVINGS {
        let middle = low + (high - low) / 2.0;
        if total(middle) > n {
            low = middle;
        } else {
            high = middle;
        }
    }
    Optimum { seconds: high, devices: shares(high) }
}

/// Layers on one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Index of the curve's point.
    pub size: usize,
    /// Layers.
    pub n_layers: u32,
}

/// Layers on the two sizes around a share, in real numbers: (size, layers), larger first, so that both take `seconds` together.
pub fn two_sizes(job: &Job<'_>, devices: f64, seconds: f64) -> Vec<(usize, f64)> {
    let points = job.curve.points();
    let layers = f64::from(job.n_layers);
    let above = points.partition_point(|&(n, _)| f64::from(n) < devices);
    if above == points.len() {
        return vec![(above - 1, layers)];
    }
    // Less than the smallest size: that size for less than the whole time.
    if above == 0 || f64::from(points[above].0) <= devices {
        return vec![(above, layers)];
    }
    let (slow, fast) = (points[above - 1].1, points[above].1);
    let on_more = ((layers * slow - seconds) / (slow - fast)).clamp(0.0, layers);
    vec![(above, on_more), (above - 1, layers - on_more)]
}

/// The same in whole layers; parts of none are left out.
pub fn whole_layers(job: &Job<'_>, devices: f64, seconds: f64) -> Vec<Part> {
    match two_sizes(job, devices, seconds)[..] {
        [(size, _)] => vec![Part { size, n_layers: job.n_layers }],
        [(more, on_more), (fewer, _)] => {
            let n_more = u32::try_from(hw::whole(on_more)).expect("at most all layers");
            let parts = [Part { size: more, n_layers: n_more }, Part { size: fewer, n_layers: job.n_layers - n_more }];
            parts.into_iter().filter(|part| part.n_layers > 0).collect()
        }
        _ => Vec::new(),
    }
}
