//! Reports of Nsight Systems: the SQLite that `nsys export --type sqlite` writes.
//!
//! What matters: kernels, copies and fills of a device, the calls that launch them (joined by process and `correlationId`), and NVTX ranges that mark
//! steps. Moments are nanoseconds. A range marks a step where its name is `ProfilerStep#N`, `step N`, `iteration N`, `iter N` or `train_step N`;
//! ranges of such a name without a number are counted in order. Source: docs.nvidia.com/nsight-systems, SQLite export schema; read 2026-11.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Seek};

use super::sqlite::{Cell, Database, MAGIC, SqliteError};
use super::{Event, NS_MAX, ProfilerError, Recorded, Window};

/// Strings of a report by their number.
type Names = BTreeMap<u64, String>;

/// What an NVTX range of a step is called.
const STEPS: [&str; 5] = ["profilerstep", "train_step", "iteration", "step", "iter"];
hw::words! {
    /// What runs on a device, each kind in a table of its own.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Ran: table, column {
        Kernel = ("CUPTI_ACTIVITY_KIND_KERNEL", "demangledName"),
        Copy = ("CUPTI_ACTIVITY_KIND_MEMCPY", "copyKind"),
        Fill = ("CUPTI_ACTIVITY_KIND_MEMSET", "deviceId"),
    }
}

impl Ran {
    /// The name of a row that says so much more.
    fn name(self, said: Option<u64>, names: &Names) -> &str {
        match self {
            Self::Kernel => said.and_then(|id| names.get(&id)).map_or("kernel", String::as_str),
            Self::Copy => COPIES.iter().find(|(kind, _)| Some(*kind) == said).map_or("Memcpy", |(_, name)| name),
            Self::Fill => "Memset",
        }
    }
}

/// Kinds of copies, as the driver counts them.
const COPIES: [(u64, &str); 4] = [(1, "Memcpy HtoD"), (2, "Memcpy DtoH"), (8, "Memcpy DtoD"), (10, "Memcpy PtoP")];

/// Whether bytes that begin so are a report.
pub fn is_report(head: &[u8]) -> bool {
    head.starts_with(MAGIC)
}

/// Reads a report.
///
/// # Errors
/// What is wrong with it.
pub fn read(source: impl Read + Seek) -> Result<Recorded, ProfilerError> {
    let mut database = Database::open(source)?;
    let mut recorded = Recorded::default();
    let names = names(&mut database)?;
    for kind in Ran::ALL {
        ran(&mut database, &mut recorded, kind, &names)?;
    }
    if recorded.events.is_empty() {
        return Err(ProfilerError::NoKernels);
    }
    launches(&mut database, &mut recorded)?;
    steps(&mut database, &mut recorded)?;
    devices(&mut database, &mut recorded)?;
    Ok(recorded)
}

/// Shows some columns of a table, where the report has it.
fn each(
    database: &mut Database<impl Read + Seek>,
    table: &str,
    columns: &[&str],
    mut take: impl FnMut(i64, &[Cell]) -> Result<(), ProfilerError>,
) -> Result<(), ProfilerError> {
    let Some(found) = database.table(table)? else { return Ok(()) };
    let places = columns.iter().map(|column| found.column(column)).collect::<Result<Vec<usize>, SqliteError>>()?;
    database.rows(&found, &places, &mut take)
}

/// Names of kernels by their number.
fn names(database: &mut Database<impl Read + Seek>) -> Result<Names, ProfilerError> {
    let mut wanted = BTreeSet::new();
    each(database, Ran::Kernel.table(), &[Ran::Kernel.column()], |_, cells| {
        wanted.extend(cells[0].count());
        Ok(())
    })?;
    texts(database, &wanted)
}

/// Strings of a report that are wanted. Their number is the row's, where the column is empty.
fn texts(database: &mut Database<impl Read + Seek>, wanted: &BTreeSet<u64>) -> Result<Names, ProfilerError> {
    let mut found = Names::new();
    each(database, "StringIds", &["id", "value"], |row, cells| {
        let id = cells[0].count().or_else(|| u64::try_from(row).ok());
        if let (Some(id), Some(text)) = (id.filter(|id| wanted.contains(id)), cells[1].text()) {
            found.insert(id, text.to_owned());
        }
        Ok(())
    })?;
    Ok(found)
}

/// What joins a kernel with its call: correlations count anew in each process.
fn join(global: &Cell, correlation: &Cell) -> Option<u64> {
    let process = global.count()? >> 24 & 0xff_ffff;
    Some(process << 32 | correlation.count().filter(|id| *id > 0)? & 0xffff_ffff)
}

fn window(start: &Cell, end: &Cell) -> Option<Window> {
    let window = Window { start: start.count()?, end: end.count()? };
    (window.start <= window.end && hw::real(window.end) <= NS_MAX).then_some(window)
}

/// Keeps what ran on devices.
fn ran(
    database: &mut Database<impl Read + Seek>,
    recorded: &mut Recorded,
    kind: Ran,
    names: &Names,
) -> Result<(), ProfilerError> {
    let columns = ["start", "end", "deviceId", "globalPid", "correlationId", kind.column()];
    each(database, kind.table(), &columns, |_, cells| {
        let window = window(&cells[0], &cells[1]).ok_or(ProfilerError::NoTime { table: kind.table() })?;
        let device = cells[2].count().and_then(|id| u32::try_from(id).ok()).unwrap_or(0);
        let name = recorded.name(kind.name(cells[5].count(), names), None)?;
        let launch = join(&cells[3], &cells[4]);
        recorded.keep(Event { name, device, start: window.start, end: window.end, launch })
    })
}

/// Keeps the calls that launched what ran.
fn launches(database: &mut Database<impl Read + Seek>, recorded: &mut Recorded) -> Result<(), ProfilerError> {
    let mut joins: Vec<u64> = recorded.events.iter().filter_map(|event| event.launch).collect();
    joins.sort_unstable();
    each(database, "CUPTI_ACTIVITY_KIND_RUNTIME", &["start", "end", "globalTid", "correlationId"], |_, cells| {
        let join = join(&cells[2], &cells[3]).filter(|join| joins.binary_search(join).is_ok());
        if let (Some(join), Some(window)) = (join, window(&cells[0], &cells[1])) {
            recorded.launched(join, window)?;
        }
        Ok(())
    })
}

/// Keeps the ranges that mark steps.
fn steps(database: &mut Database<impl Read + Seek>, recorded: &mut Recorded) -> Result<(), ProfilerError> {
    const COLUMNS: [&str; 4] = ["start", "end", "text", "textId"];
    let mut wanted = BTreeSet::new();
    each(database, "NVTX_EVENTS", &COLUMNS, |_, cells| {
        wanted.extend(cells[3].count());
        Ok(())
    })?;
    let texts = texts(database, &wanted)?;
    let mut uncounted = Vec::new();
    each(database, "NVTX_EVENTS", &COLUMNS, |_, cells| {
        let text = cells[2].text().or_else(|| texts.get(&cells[3].count()?).map(String::as_str));
        match (text.and_then(step_named), window(&cells[0], &cells[1])) {
            (Some(Some(number)), Some(window)) => recorded.step(number, window, false),
            (Some(None), Some(window)) => uncounted.push(window),
            _ => {}
        }
        Ok(())
    })?;
    if recorded.host_steps.is_empty() {
        uncounted.sort_unstable_by_key(|window| window.start);
        (0..).zip(uncounted).for_each(|(number, window)| recorded.step(number, window, false));
    }
    Ok(())
}

/// Whether a range marks a step, and the step's number where the name has one.
fn step_named(text: &str) -> Option<Option<u64>> {
    let text = text.trim().to_ascii_lowercase();
    let rest = STEPS.iter().find_map(|name| text.strip_prefix(name))?;
    let number = rest.trim_start_matches([' ', '#', ':', '=', '_', '-']);
    if number.is_empty() { Some(None) } else { number.parse().ok().map(Some) }
}

/// Names of devices.
fn devices(database: &mut Database<impl Read + Seek>, recorded: &mut Recorded) -> Result<(), ProfilerError> {
    each(database, "TARGET_INFO_GPU", &["id", "name"], |row, cells| {
        let id = cells[0].count().or_else(|| u64::try_from(row).ok()).and_then(|id| u32::try_from(id).ok());
        if let (Some(id), Some(name)) = (id, cells[1].text()) {
            recorded.devices.insert(id, name.to_owned());
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_marks_a_step_by_its_name() {
        for (text, found) in [
            ("ProfilerStep#7", Some(Some(7))),
            ("iteration 12", Some(Some(12))),
            ("step: 3", Some(Some(3))),
            ("train_step", Some(None)),
            ("stepping", None),
            ("forward", None),
        ] {
            assert_eq!(step_named(text), found, "{text}");
        }
    }
}
