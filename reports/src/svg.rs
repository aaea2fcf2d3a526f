//! Pictures of a step as inline SVG: Gantt by hand (it must stay small), charts by plotters.
//!
//! Colours are those of Okabe and Ito, which colour-blind readers tell apart.

use std::fmt::Write;

use plotters::prelude::*;
use sim::task::{Role, Stream};

use crate::{Picture, RunResult};

const WIDTH: f64 = 1120.0;
const LABEL_WIDTH: f64 = 150.0;
const ROW: f64 = 8.0;
/// Rows of the Gantt at most; more ranks are left out and the caption says so.
const ROWS_MAX: usize = 96;

/// Colour of a role.
#[must_use]
pub const fn colour(role: Role) -> &'static str {
    match role {
        Role::Forward => "#0072B2",
        Role::Backward => "#D55E00",
        Role::Recompute => "#E69F00",
        Role::ContextExchange => "#009E73",
        Role::GradientSync => "#CC79A7",
        Role::ParameterGather => "#F0E442",
        Role::Optimizer => "#000000",
        Role::Offload => "#56B4E9",
    }
}

/// Escapes text for SVG and HTML.
#[must_use]
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// Gantt of ranks and their busy streams.
#[must_use]
pub fn gantt(picture: &Picture<'_>) -> String {
    let span = hw_f64(picture.timeline.span().as_ns()).max(1.0);
    let scale = (WIDTH - LABEL_WIDTH) / span;
    let mut rows: Vec<(u32, Stream)> = picture.graph.tasks.iter().map(|task| (task.rank.0, task.stream)).collect();
    rows.sort_unstable();
    rows.dedup();
    rows.truncate(ROWS_MAX);
    let height = ROW * hw_f64(rows.len() as u64) + 44.0;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"Gantt of {}\" font-family=\"sans-serif\" font-size=\"8\">\n",
        escape(picture.policy)
    );
    let mut bars: Vec<Vec<(f64, f64, Role)>> = vec![Vec::new(); rows.len()];
    for (index, task) in picture.graph.tasks.iter().enumerate() {
        let Ok(row) = rows.binary_search(&(task.rank.0, task.stream)) else { continue };
        let at = |time: hw::Time| LABEL_WIDTH + hw_f64(time.as_ns()) * scale;
        let (start, end) = (at(picture.timeline.start[index]), at(picture.timeline.end[index]));
        match bars[row].last_mut() {
            // Bars of one colour that touch, or whose gap nobody would see, are one.
            Some((_, last, role)) if *role == task.role && start - *last < 0.4 => *last = last.max(end),
            Some((first, last, role)) if *last - *first < 0.3 => (*last, *role) = (last.max(end), task.role),
            _ if end > start => bars[row].push((start, end, task.role)),
            _ => {}
        }
    }
    for (row, ((rank, stream), bars)) in rows.iter().zip(&bars).enumerate() {
        let y = 14.0 + ROW * hw_f64(row as u64);
        let name = crate::trace::stream_name(*stream);
        write!(svg, "<text x=\"0\" y=\"{:.1}\" fill=\"currentColor\">rank {rank} {name}</text>", y + 7.0)
            .expect("writing to a string");
        for (start, end, role) in bars {
            let (width, fill) = ((end - start).max(0.2), colour(*role));
            write!(
                svg,
                "<rect x=\"{start:.2}\" y=\"{y:.1}\" width=\"{width:.2}\" height=\"{:.1}\" fill=\"{fill}\"/>",
                ROW - 1.0
            )
            .expect("writing to a string");
        }
        svg.push('\n');
    }
    let y = height - 18.0;
    for (index, role) in Role::ALL.into_iter().enumerate() {
        let x = LABEL_WIDTH + 120.0 * hw_f64(index as u64);
        write!(
            svg,
            "<rect x=\"{x:.0}\" y=\"{y:.0}\" width=\"9\" height=\"9\" fill=\"{}\"/><text x=\"{:.0}\" y=\"{:.0}\" font-size=\"10\" fill=\"currentColor\">{}</text>",
            colour(role),
            x + 13.0,
            y + 8.0,
            role.name()
        )
        .expect("writing to a string");
    }
    svg.push_str("</svg>\n");
    svg
}

fn hw_f64(n: u64) -> f64 {
    hw::Tokens(n).as_f64()
}

/// Draws with plotters into an SVG of that size; a chart that cannot be drawn is left empty.
fn draw(
    size: (u32, u32),
    plot: impl FnOnce(&DrawingArea<SVGBackend<'_>, plotters::coord::Shift>) -> Result<(), Box<dyn std::error::Error>>,
) -> String {
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        if plot(&area).is_err() {
            return String::new();
        }
    }
    svg.replacen("<svg width=", "<svg style=\"max-width:100%;height:auto\" width=", 1)
}

const BLUE_: RGBColor = RGBColor(0, 114, 178);
const ORANGE: RGBColor = RGBColor(213, 94, 0);
const GREEN_: RGBColor = RGBColor(0, 158, 115);

/// Bars of a value per label.
#[must_use]
pub fn bars(title: &str, rows: &[(String, f64)]) -> String {
    let top = rows.iter().map(|(_, value)| *value).fold(0.0, f64::max) * 1.15;
    let n = rows.len();
    draw((540, 260), |area| {
        area.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(area)
            .caption(title, ("sans-serif", 15))
            .margin(8)
            .x_label_area_size(28)
            .y_label_area_size(48)
            .build_cartesian_2d((0..n).into_segmented(), 0.0..top.max(1e-9))?;
        let name = |at: &SegmentValue<usize>| match at {
            SegmentValue::CenterOf(index) => rows.get(*index).map_or_else(String::new, |(name, _)| name.clone()),
            _ => String::new(),
        };
        chart.configure_mesh().disable_x_mesh().x_labels(n + 1).x_label_formatter(&name).draw()?;
        chart.draw_series(rows.iter().enumerate().map(|(index, (_, value))| {
            let mut bar = Rectangle::new(
                [(SegmentValue::Exact(index), 0.0), (SegmentValue::Exact(index + 1), *value)],
                BLUE_.filled(),
            );
            bar.set_margin(0, 0, 18, 18);
            bar
        }))?;
        Ok(())
    })
}

/// Share of sequences and of tokens by power-of-two length.
#[must_use]
pub fn lengths(lengths: &[u64]) -> String {
    let first = lengths.iter().map(|length| length.max(&1).ilog2()).min().unwrap_or(0);
    let last = lengths.iter().map(|length| length.max(&1).ilog2()).max().unwrap_or(0);
    let total = hw_f64(lengths.iter().sum()).max(1.0);
    let n = hw_f64(lengths.len() as u64).max(1.0);
    let bin = |power: u32| lengths.iter().filter(move |length| length.max(&&1).ilog2() == power);
    let shares: Vec<(u32, f64, f64)> = (first..=last)
        .map(|power| (power, hw_f64(bin(power).count() as u64) / n, hw_f64(bin(power).sum()) / total))
        .collect();
    let top = shares.iter().map(|(_, a, b)| a.max(*b)).fold(0.0, f64::max) * 1.15;
    draw((540, 260), |area| {
        area.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(area)
            .caption("sequence lengths of the first step", ("sans-serif", 15))
            .margin(8)
            .x_label_area_size(32)
            .y_label_area_size(48)
            .build_cartesian_2d(f64::from(first)..f64::from(last + 1), 0.0..top.max(1e-9))?;
        let tokens = |at: &f64| format!("{:.0}", 2.0_f64.powf(*at));
        chart.configure_mesh().disable_x_mesh().x_desc("tokens").x_label_formatter(&tokens).draw()?;
        let half = |offset: f64, pick: fn(&(u32, f64, f64)) -> f64, colour: RGBColor| {
            shares
                .iter()
                .map(|row| {
                    let x = f64::from(row.0) + offset;
                    Rectangle::new([(x + 0.05, 0.0), (x + 0.45, pick(row))], colour.filled())
                })
                .collect::<Vec<_>>()
        };
        chart
            .draw_series(half(0.0, |row| row.1, BLUE_))?
            .label("sequences")
            .legend(|(x, y)| Rectangle::new([(x, y - 4), (x + 10, y + 4)], BLUE_.filled()));
        chart
            .draw_series(half(0.5, |row| row.2, ORANGE))?
            .label("tokens")
            .legend(|(x, y)| Rectangle::new([(x, y - 4), (x + 10, y + 4)], ORANGE.filled()));
        chart.configure_series_labels().position(SeriesLabelPosition::UpperLeft).background_style(WHITE).draw()?;
        Ok(())
    })
}

/// Memory over time of the fullest and the emptiest rank, with the device's limit.
#[must_use]
pub fn memory(picture: &Picture<'_>) -> String {
    let gib = |bytes: u64| hw_f64(bytes) / 1_073_741_824.0;
    let ms = |time: hw::Time| hw_f64(time.as_ns()) / 1e6;
    let end = hw_f64(picture.timeline.span().as_ns()) / 1e6;
    let ranks = 0..picture.timeline.memory.len();
    let fullest = ranks.clone().max_by_key(|&rank| picture.timeline.peak_memory_bytes(rank)).unwrap_or(0);
    let emptiest = ranks.min_by_key(|&rank| picture.timeline.peak_memory_bytes(rank)).unwrap_or(0);
    let steps = |rank: usize| {
        let mut line: Vec<(f64, f64)> = Vec::new();
        for mark in picture.timeline.memory.get(rank).into_iter().flatten() {
            if let Some(&(_, before)) = line.last() {
                line.push((ms(mark.at), before));
            }
            line.push((ms(mark.at), gib(mark.bytes)));
        }
        line
    };
    let limit = gib(picture.device_memory_bytes);
    draw((1120, 260), |area| {
        area.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(area)
            .caption(format!("memory, {}", picture.policy), ("sans-serif", 15))
            .margin(8)
            .x_label_area_size(32)
            .y_label_area_size(48)
            .build_cartesian_2d(0.0..end.max(1e-9), 0.0..limit * 1.1)?;
        chart.configure_mesh().x_desc("ms").y_desc("GiB").draw()?;
        for (rank, name, colour) in [(fullest, "fullest", ORANGE), (emptiest, "emptiest", BLUE_)] {
            chart
                .draw_series(LineSeries::new(steps(rank), colour.stroke_width(1)))?
                .label(format!("{name}: rank {rank}"))
                .legend(move |(x, y)| Rectangle::new([(x, y - 1), (x + 12, y + 1)], colour.filled()));
        }
        chart
            .draw_series(LineSeries::new([(0.0, limit), (end, limit)], GREEN_.stroke_width(2)))?
            .label("device")
            .legend(|(x, y)| Rectangle::new([(x, y - 1), (x + 12, y + 1)], GREEN_.filled()));
        chart.configure_series_labels().position(SeriesLabelPosition::LowerRight).background_style(WHITE).draw()?;
        Ok(())
    })
}

/// Stacked shares of the step per policy: computing, exposed communication, waiting.
#[must_use]
pub fn shares(result: &RunResult) -> String {
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {}\" role=\"img\" aria-label=\"shares of the step\" font-family=\"sans-serif\" font-size=\"12\">",
        26 * result.results.len() + 24
    );
    let parts = [
        ("compute_busy_ratio", "computing", "#0072B2"),
        ("comm_exposed_ratio", "exposed communication", "#009E73"),
        ("wait_ratio", "waiting for slower ranks", "#BBBBBB"),
    ];
    let scale = WIDTH - LABEL_WIDTH;
    for (index, row) in result.results.iter().enumerate() {
        let y = 26 * index;
        write!(svg, "<text x=\"0\" y=\"{}\" fill=\"currentColor\">{}</text>", y + 15, escape(&row.policy))
            .expect("writing to a string");
        let mut x = LABEL_WIDTH;
        for (key, _, colour) in parts {
            let share = row.metrics.get(key).copied().unwrap_or(0.0);
            write!(
                svg,
                "<rect x=\"{x:.1}\" y=\"{y}\" width=\"{:.1}\" height=\"20\" fill=\"{colour}\"/>",
                share * scale
            )
            .expect("writing to a string");
            x += share * scale;
        }
    }
    let y = 26 * result.results.len() + 6;
    for (index, (_, name, colour)) in parts.iter().enumerate() {
        let x = LABEL_WIDTH + 220.0 * hw_f64(index as u64);
        write!(svg, "<rect x=\"{x:.0}\" y=\"{y}\" width=\"10\" height=\"10\" fill=\"{colour}\"/><text x=\"{:.0}\" y=\"{}\" fill=\"currentColor\">{name}</text>", x + 15.0, y + 10).expect("writing to a string");
    }
    svg.push_str("</svg>\n");
    svg
}
