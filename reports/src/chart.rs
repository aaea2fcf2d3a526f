//! Points of two figures as characters of a terminal: 80 columns wide at most, and complete without colour.
//!
//! A `·` is a point, a digit or letter one that no other point beats, named in the table below. An axis is logarithmic where its figures differ by
//! more than a hundredfold.

/// Columns and rows of the field.
const COLUMNS: usize = 64;
const ROWS: usize = 16;
/// Columns in front of the field, for figures.
const LEFT: usize = 13;
/// Names of points, in order.
const MARKS: &str = "123456789abcdefghijklmnopqrstuvwxyz";
/// The figures of an axis are shown by their logarithm from here on: largest over smallest.
const WIDE: f64 = 100.0;

/// Whether a text may hold colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ink {
    /// Letters alone.
    Plain,
    /// What no other point beats is green and bold.
    Colour,
}

impl Ink {
    /// For a terminal or not, with what `NO_COLOR` says (no-color.org: any text in it asks for none).
    pub fn of(is_terminal: bool, no_color: Option<&str>) -> Self {
        if is_terminal && no_color.is_none_or(str::is_empty) { Self::Colour } else { Self::Plain }
    }
}

/// The name of a point by its place in a list.
pub fn mark(place: usize) -> char {
    MARKS.chars().nth(place).unwrap_or('*')
}

/// One axis over figures.
struct Axis {
    low: f64,
    high: f64,
    is_log: bool,
}

impl Axis {
    fn new(figures: impl Iterator<Item = f64> + Clone) -> Self {
        let (low, high) = (figures.clone().fold(f64::INFINITY, f64::min), figures.fold(f64::NEG_INFINITY, f64::max));
        Self { low, high, is_log: low > 0.0 && high / low > WIDE }
    }

    /// The cell of a figure, of so many.
    fn cell(&self, figure: f64, n: usize) -> usize {
        let place = if self.is_log {
            (figure / self.low).ln() / (self.high / self.low).ln()
        } else {
            (figure - self.low) / (self.high - self.low)
        };
        let cell = if place.is_finite() { place * (n - 1) as f64 } else { 0.0 };
        usize::try_from(hw::whole(cell.max(0.0))).unwrap_or(0).min(n - 1)
    }

    /// What stands behind its name.
    const fn words(&self) -> &'static str {
        if self.is_log { " (logarithmic)" } else { "" }
    }
}

/// What an axis is called, and how its figures are written.
#[derive(Clone, Copy)]
pub struct Side<'a> {
    /// Its name.
    pub name: &'a str,
    /// A figure in its unit.
    pub figure: &'a dyn Fn(f64) -> String,
}

/// A field of points, with those of the front in their order; empty without points. Sides are those of both axes, across and up.
pub fn scatter(points: &[[f64; 2]], front: &[[f64; 2]], sides: [Side<'_>; 2], ink: Ink) -> String {
    let is_sound = |point: &&[f64; 2]| point.iter().all(|figure| figure.is_finite());
    let all: Vec<&[f64; 2]> = points.iter().chain(front).filter(is_sound).collect();
    if all.is_empty() {
        return String::new();
    }
    let axes = [0, 1].map(|axis| Axis::new(all.iter().map(move |point| point[axis])));
    let mut field = vec![vec![' '; COLUMNS]; ROWS];
    for point in &all {
        put(&mut field, &axes, point, '·');
    }
    // The first of a cell stays, so that the order of the table holds.
    for (place, point) in front.iter().enumerate().rev().filter(|(_, point)| is_sound(point)) {
        put(&mut field, &axes, point, mark(place));
    }
    drawn(&field, &axes, sides, ink)
}

fn put(field: &mut [Vec<char>], axes: &[Axis; 2], point: &[f64; 2], letter: char) {
    let (column, row) = (axes[0].cell(point[0], COLUMNS), axes[1].cell(point[1], ROWS));
    field[ROWS - 1 - row][column] = letter;
}

fn drawn(field: &[Vec<char>], [across, up]: &[Axis; 2], [below, beside]: [Side<'_>; 2], ink: Ink) -> String {
    let mut out = format!("{:>LEFT$}{}{}\n", "", beside.name, up.words());
    for (row, letters) in field.iter().enumerate() {
        let figure = match row {
            0 => (beside.figure)(up.high),
            _ if row == ROWS - 1 => (beside.figure)(up.low),
            _ => String::new(),
        };
        let line: String = letters.iter().map(|letter| inked(*letter, ink)).collect();
        out += format!("{figure:>width$} │{line}", width = LEFT - 2).trim_end();
        out.push('\n');
    }
    let (low, high) = ((below.figure)(across.low), (below.figure)(across.high));
    let gap = COLUMNS.saturating_sub(low.chars().count());
    out += &format!(
        "{:>width$}└{}\n{:>LEFT$}{low}{high:>gap$}\n{:>LEFT$}{}{}\n",
        "",
        "─".repeat(COLUMNS),
        "",
        "",
        below.name,
        across.words(),
        width = LEFT - 1
    );
    out
}

fn inked(letter: char, ink: Ink) -> String {
    if ink == Ink::Plain || letter == ' ' || letter == '·' {
        letter.to_string()
    } else {
        format!("\x1b[1;32m{letter}\x1b[0m")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quantity::significant;

    fn plain<'a>(names: [&'a str; 2]) -> [Side<'a>; 2] {
        names.map(|name| Side { name, figure: &significant })
    }

    #[test]
    fn points_stand_where_their_figures_say() {
        // Three corners: least and least is 1, most across and least up is 2; the third point is at the top left.
        let text = scatter(
            &[[0.0, 10.0], [0.0, 0.0], [4.0, 0.0]],
            &[[0.0, 0.0], [4.0, 0.0]],
            plain(["time", "memory"]),
            Ink::Plain,
        );
        let lines: Vec<Vec<char>> = text.lines().map(|line| line.chars().collect()).collect();
        assert_eq!(lines.len(), ROWS + 4);
        assert!(lines.iter().all(|line| line.len() <= 80), "{text}");
        assert_eq!((lines[1][LEFT], lines[ROWS][LEFT], lines[ROWS][LEFT + COLUMNS - 1]), ('·', '1', '2'), "{text}");
        assert!(text.starts_with("             memory\n") && text.ends_with("             time\n"), "{text}");
        assert!(text.lines().nth(1).is_some_and(|line| line.trim_start().starts_with("10.00 │")), "{text}");
    }

    #[test]
    fn wide_figures_are_drawn_by_their_logarithm() {
        // 1, 100 and 10,000 lie evenly: the middle one in the middle of 64 columns, 31.5 rounded up.
        let text = scatter(&[[1.0, 1.0], [100.0, 1.0], [1e4, 1.0]], &[], plain(["bytes", "s"]), Ink::Plain);
        let bottom: Vec<char> = text.lines().nth(ROWS).expect("the lowest row").chars().collect();
        let places: Vec<usize> = (0..bottom.len()).filter(|at| bottom[*at] == '·').collect();
        assert_eq!(places, [LEFT, LEFT + 32, LEFT + 63], "{text}");
        assert!(text.contains("bytes (logarithmic)"), "{text}");
        assert_eq!(scatter(&[[f64::NAN, 1.0]], &[], plain(["a", "b"]), Ink::Plain), "");
    }

    #[test]
    fn colour_is_for_terminals_that_do_not_refuse_it() {
        assert_eq!((Ink::of(true, None), Ink::of(true, Some(""))), (Ink::Colour, Ink::Colour));
        assert_eq!((Ink::of(false, None), Ink::of(true, Some("1"))), (Ink::Plain, Ink::Plain));
        let [plain, colour] = [Ink::Plain, Ink::Colour].map(|ink| scatter(&[], &[[1.0, 2.0]], plain(["a", "b"]), ink));
        assert!(!plain.contains('\u{1b}') && colour.contains("\u{1b}[1;32m1\u{1b}[0m"));
    }
}
