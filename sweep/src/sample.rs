//! Points of the axes: all of a grid, some at random, or Sobol' points. Every point once.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::axis::{Axis, NoGrid};
use crate::condition::Condition;
use crate::given::{Sample, Sweep};
use crate::sobol::Sobol;

/// Draws for each point that is wanted, at most: conditions may leave nothing.
const DRAWS_PER_POINT: u64 = 1000;

/// What is laid over the scenario.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Point {
    /// Keys and their values, in the order of the axes.
    pub set: Vec<(String, Value)>,
    /// Seed, where it is not the scenario's.
    pub seed: Option<u64>,
}

impl Point {
    /// Overrides as `--set` takes them. A value of JSON is one of TOML, but for tables.
    pub fn overrides(&self) -> Vec<String> {
        self.set.iter().map(|(key, value)| format!("{key}={value}")).collect()
    }

    /// The point of such values, one row for each axis.
    fn of(axes: &[Axis], rows: Vec<Vec<Value>>) -> Self {
        let pairs = axes.iter().zip(rows).flat_map(|(axis, row)| axis.keys.iter().cloned().zip(row));
        Self { set: pairs.collect(), seed: None }
    }

    /// Whether every condition holds.
    fn is_within(&self, conditions: &[Condition]) -> bool {
        let values: BTreeMap<&str, &Value> = self.set.iter().map(|(key, value)| (key.as_str(), value)).collect();
        conditions.iter().all(|condition| condition.holds(&values))
    }
}

/// Values of a grid, axis by axis.
#[derive(Clone, Debug)]
pub struct Grid<'a> {
    axes: &'a [Axis],
    conditions: &'a [Condition],
    values: Vec<Vec<Vec<Value>>>,
}

impl<'a> Grid<'a> {
    /// The grid of a sweep.
    ///
    /// # Errors
    /// When a range says no steps.
    pub fn of(sweep: &'a Sweep) -> Result<Self, NoGrid> {
        let values = sweep.axes.iter().map(Axis::listed).collect::<Result<_, _>>()?;
        Ok(Self { axes: &sweep.axes, conditions: &sweep.conditions, values })
    }

    /// Values of each axis.
    pub fn sizes(&self) -> Vec<usize> {
        self.values.iter().map(Vec::len).collect()
    }

    /// The point at a position on each axis, where the conditions hold.
    pub fn at(&self, position: &[usize]) -> Option<Point> {
        let rows = self.values.iter().zip(position).map(|(values, index)| values[*index].clone()).collect();
        Some(Point::of(self.axes, rows)).filter(|point| point.is_within(self.conditions))
    }

    /// The point with a number; the last axis is the fastest.
    fn numbered(&self, mut number: u64) -> Option<Point> {
        let mut position = vec![0; self.values.len()];
        for (index, size) in position.iter_mut().zip(self.sizes()).rev() {
            *index = usize::try_from(number % size as u64).expect("below a size");
            number /= size as u64;
        }
        self.at(&position)
    }

    /// Points with and without conditions; `None` beyond 2^64.
    pub fn n(&self) -> Option<u64> {
        self.sizes().into_iter().try_fold(1_u64, |n, size| n.checked_mul(size as u64))
    }
}

/// Every point of a sweep in order, each with each of its seeds.
///
/// # Errors
/// When the axes are no grid.
pub fn points(sweep: &Sweep) -> Result<Box<dyn Iterator<Item = Point> + '_>, NoGrid> {
    let plain: Box<dyn Iterator<Item = Point> + '_> = match sweep.sample {
        Sample::Grid => {
            let grid = Grid::of(sweep)?;
            let n = grid.n().ok_or(NoGrid::Endless)?;
            Box::new((0..n).filter_map(move |number| grid.numbered(number)))
        }
        Sample::Random { points, seed } => {
            let mut stream = engine::random::stream(seed, "sweep");
            let n_axes = sweep.axes.len();
            drawn(sweep, points, move || (0..n_axes).map(|_| stream.unit()).collect())
        }
        Sample::Sobol { points } => {
            let mut sobol = Sobol::new(sweep.axes.len());
            drawn(sweep, points, move || sobol.next())
        }
    };
    let seeds = sweep.seeds();
    Ok(Box::new(
        plain.flat_map(move |point| seeds.clone().into_iter().map(move |seed| Point { seed, ..point.clone() })),
    ))
}

/// So many different points within the conditions.
fn drawn<'a>(
    sweep: &'a Sweep,
    n: u64,
    mut next: impl FnMut() -> Vec<f64> + 'a,
) -> Box<dyn Iterator<Item = Point> + 'a> {
    let mut seen = BTreeSet::new();
    let draws = (0..n.saturating_mul(DRAWS_PER_POINT).min(u64::from(u32::MAX))).map(move |_| {
        let shares = next();
        let rows = sweep.axes.iter().zip(shares).map(|(axis, share)| axis.drawn(share)).collect();
        Point::of(&sweep.axes, rows)
    });
    let is_new = move |point: &Point| point.is_within(&sweep.conditions) && seen.insert(point.overrides());
    Box::new(draws.filter(is_new).take(usize::try_from(n).unwrap_or(usize::MAX)))
}
