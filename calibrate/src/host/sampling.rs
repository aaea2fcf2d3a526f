//! What sampling reads, apart: rows of a frontier and marks of picks, each by how much is read between two visits.
//!
//! A batch visits a row once, and touches a line of marks again and again. So both lie in different caches, and one figure for their distance says
//! nothing of either. They are measured together, because sampling does both. A run takes Σ rows · R(D) + Σ picks · (M(D) + c · fan-out): R and M
//! rise with the distance D, and are straight between knots in log D. Non-negative least squares find all three.

use engine::cost::residuals::Residuals;
use engine::cost::surface::{Axis, Surface};
use graph::host::{Job, Kernel};

use super::HostSample;
use crate::fit::non_negative::{Robust, non_negative};
use crate::fit::{residuals, ten_thousandths, unseen};

/// Ratio of neighbouring knots of R and M.
const RATIO: f64 = 3.0;
/// Least distance that is told from smaller ones: the first cache has it all.
const NEAR: f64 = 16_384.0;
/// Knots of a surface for one of R or M, so that logarithms between them follow the straight lines.
const FINER: u32 = 4;
/// Least part of the base that is told from nothing.
const LEAST: f64 = 0.01;
/// Part of a sample that is large enough to tell its time.
const TOLD: f64 = 0.25;
/// Rounds in which samples far off lose weight, and how far that is.
const ROBUST: Robust = Robust { rounds: 3, off: 0.2 };

/// Whether a kernel is a part of sampling.
pub fn is_part(kernel: Kernel) -> bool {
    matches!(kernel, Kernel::SampleRows | Kernel::SampleMarks)
}

/// Surfaces of rows and of marks, with the errors of whole samples that a fit of the others predicts.
pub fn fit(samples: &[&HostSample]) -> ([Surface; 2], Residuals) {
    let jobs = || samples.iter().flat_map(|sample| &sample.jobs);
    let furthest = |kernel| samples.iter().map(|sample| reach(&sample.jobs, kernel)).fold(NEAR, f64::max);
    let terms = Terms { knots: [Kernel::SampleRows, Kernel::SampleMarks].map(|kernel| knots(furthest(kernel))) };
    let fitted = |seen: &[&&HostSample]| terms.found(seen.iter().map(|sample| **sample));
    let ratios = unseen(samples, fitted, |sample, found| sample.seconds / terms.seconds(&sample.jobs, found));
    let found = terms.found(samples.iter().copied());
    let mut fan_outs: Vec<f64> = jobs().map(|job| job.point[0]).collect();
    fan_outs.sort_by(f64::total_cmp);
    fan_outs.dedup();
    (terms.surfaces(&found, &fan_outs), residuals(&ratios, samples.len()))
}

/// The distance beyond which a part of a sample lies that is large enough to tell its time.
fn reach(jobs: &[Job], kernel: Kernel) -> f64 {
    let mut own: Vec<&Job> = jobs.iter().filter(|job| job.kernel == kernel).collect();
    own.sort_by(|a, b| b.point[1].total_cmp(&a.point[1]));
    let mut left = TOLD * own.iter().map(|job| job.base_s()).sum::<f64>();
    let first = own.into_iter().find(|job| {
        left -= job.base_s();
        left <= 0.0
    });
    first.map_or(NEAR, |job| job.point[1])
}

/// Distances from what is near to the furthest one, in equal ratios.
fn knots(furthest: f64) -> Vec<f64> {
    let n = hw::whole(((furthest / NEAR).ln() / RATIO.ln()).round()).max(1);
    let ratio = (furthest / NEAR).max(RATIO).powf(1.0 / hw::real(n));
    (0..=n).map(|step| NEAR * ratio.powf(hw::real(step))).collect()
}

/// The coefficients: rises of R at its knots, of M at its own, and c.
struct Terms {
    knots: [Vec<f64>; 2],
}

impl Terms {
    /// Samples over their measured time, and what gives them back.
    fn found<'s>(&self, samples: impl Iterator<Item = &'s HostSample>) -> Vec<f64> {
        let over = |sample: &HostSample| self.of(&sample.jobs).into_iter().map(|n| n / sample.seconds).collect();
        let rows: Vec<Vec<f64>> = samples.map(over).collect();
        non_negative(&rows, &vec![1.0; rows.len()], ROBUST)
    }

    /// How often each coefficient counts in some jobs.
    fn of(&self, jobs: &[Job]) -> Vec<f64> {
        let [rows, marks] = &self.knots;
        let mut sum = vec![0.0; rows.len() + marks.len() + 1];
        for job in jobs {
            let (knots, first, n) = match job.kernel {
                Kernel::SampleRows => (rows, 0, job.reads / 2.0),
                _ => (marks, rows.len(), job.reads),
            };
            risen(knots, job.point[1]).zip(&mut sum[first..]).for_each(|(risen, sum)| *sum += n * risen);
            if job.kernel == Kernel::SampleMarks {
                *sum.last_mut().expect("there is c") += n * job.point[0];
            }
        }
        sum
    }

    fn seconds(&self, jobs: &[Job], found: &[f64]) -> f64 {
        self.of(jobs).iter().zip(found).map(|(n, each)| n * each).sum()
    }

    /// Corrections of the base over fan-outs and distances. A row takes as long whatever is drawn of it.
    fn surfaces(&self, found: &[f64], fan_outs: &[f64]) -> [Surface; 2] {
        let [rows, marks] = &self.knots;
        [self.surface(found, Job::rows, [&fan_outs[..1], rows]), self.surface(found, Job::marks, [fan_outs, marks])]
    }

    /// The same of one kernel, whose jobs `job` makes from a fan-out, an amount and a distance.
    fn surface(&self, found: &[f64], job: fn(u32, f64, f64) -> Job, [fan_outs, knots]: [&[f64]; 2]) -> Surface {
        let distances = finer(knots);
        let mut values = Vec::with_capacity(fan_outs.len() * distances.len());
        for fan_out in fan_outs {
            let fan_out = u32::try_from(hw::whole(*fan_out)).expect("fan-outs are small whole numbers");
            for apart in &distances {
                let one = job(fan_out, 1.0, *apart);
                let factor = self.seconds(std::slice::from_ref(&one), found) / one.base_s();
                values.push(ten_thousandths(factor.max(LEAST).ln()));
            }
        }
        let names = job(1, 1.0, NEAR).kernel.axes();
        let axes = [fan_outs.to_vec(), distances].into_iter().zip(names);
        Surface { axes: axes.map(|(knots, name)| Axis::new(name, knots)).collect(), values }
    }
}

/// What of the rise at each knot counts at a distance: all of those that are nearer, and a part of the next one.
fn risen(knots: &[f64], apart: f64) -> impl Iterator<Item = f64> {
    let part = move |pair: &[f64]| ((apart / pair[0]).ln() / (pair[1] / pair[0]).ln()).clamp(0.0, 1.0);
    std::iter::once(1.0).chain(knots.windows(2).map(part))
}

/// Knots with others between them.
fn finer(knots: &[f64]) -> Vec<f64> {
    let between = |pair: &[f64]| {
        let ratio = (pair[1] / pair[0]).powf(1.0 / f64::from(FINER));
        let low = pair[0];
        (0..FINER).map(move |step| (low * ratio.powf(f64::from(step))).round())
    };
    let mut all: Vec<f64> = knots.windows(2).flat_map(between).collect();
    all.extend(knots.last());
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A row takes 20 ns in a near cache and 10 ns more for every four times the distance; a mark 2 ns and 1 ns; a comparison 0.3 ns.
    fn by_law(rows_apart: f64, marks_apart: f64, fan_out: u32) -> HostSample {
        let (rows, picks) = (1000.0, 1000.0 * f64::from(fan_out));
        let steps = |apart: f64| (apart / NEAR).ln() / 4.0_f64.ln();
        let of_rows = rows * (20e-9 + 10e-9 * steps(rows_apart));
        let of_marks = picks * (2e-9 + 1e-9 * steps(marks_apart) + 0.3e-9 * f64::from(fan_out));
        let halves = |job: fn(u32, f64, f64) -> Job, n: f64, apart: f64| {
            // Two shares whose distances have the mean of one.
            [job(fan_out, n / 2.0, apart * 2.0), job(fan_out, n / 2.0, apart / 2.0)]
        };
        let jobs = [halves(Job::rows, rows, rows_apart), halves(Job::marks, picks, marks_apart)].concat();
        HostSample { jobs, seconds: of_rows + of_marks, spread: 1.0 }
    }

    #[test]
    fn rows_and_marks_are_told_apart_though_they_were_measured_together() {
        let mut samples = Vec::new();
        for size in 0..8 {
            for fan_out in [1, 5, 25] {
                let rows_apart = 16.0 * NEAR * f64::from(1 << size);
                // Marks come again sooner, by no fixed ratio.
                samples.push(by_law(rows_apart, rows_apart / (4.0 + f64::from(fan_out)), fan_out));
            }
        }
        let (surfaces, residuals) = fit(&samples.iter().collect::<Vec<_>>());
        assert!(residuals.p90_error < 0.02, "{residuals:?}");
        // An epoch has rows far behind its marks, as no sample did.
        for (rows_apart, marks_apart, fan_out) in [(1e7, 1e5, 10), (2e7, 5e4, 5)] {
            let epoch = by_law(rows_apart, marks_apart, fan_out);
            let predicted = |job: &Job| {
                let at = usize::from(job.kernel == Kernel::SampleMarks);
                job.base_s() * surfaces[at].factor(&job.point).0
            };
            let error = epoch.jobs.iter().map(predicted).sum::<f64>() / epoch.seconds - 1.0;
            assert!(error.abs() < 0.05, "{error}");
        }
    }
}
