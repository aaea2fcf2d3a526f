//! A sweep that was killed, cut or parted has the bytes of one that was not: the oracle is the undisturbed file.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use proptest::prelude::*;
use reports::{PolicyResult, RunResult};
use sweep::play::{Played, Shard, Work, play};
use sweep::{Outcome, Point, Sweep, key};

/// A folder that goes when it is dropped.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static N: AtomicUsize = AtomicUsize::new(0);
        let name = format!("skrull-sim-sweep-{}-{}", std::process::id(), N.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).expect("a folder");
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

fn sweep(text: &str) -> Sweep {
    let mut findings = Vec::new();
    sweep::given::read(text, &mut findings).unwrap_or_else(|| panic!("{findings:?}"))
}

/// 60 points of two axes; the chunk does not divide them.
fn grid() -> Sweep {
    sweep(
        "scenario = \"s\"\nchunk = 7\n[[axis]]\nkey = \"a.x\"\nfrom = 1\nto = 10\nsteps = 10\n[[axis]]\nkey = \"a.y\"\n\
         values = [1, 2, 3, 4, 5, 6]\n[front]\nleast = [\"cost\"]\n",
    )
}

/// A row that is a function of the point; every fifth point is wrong.
fn outcome(point: &Point) -> Outcome {
    let value = |index: usize| point.set[index].1.as_f64().expect("a number");
    if value(0) % 5.0 == 0.0 {
        let what = input::diagnostic::Finding::error(input::diagnostic::Code::OutOfRange, None, "`a.x` is \"wrong\"");
        return Outcome::Wrong(vec![what]);
    }
    let cost = (value(0) - 3.0).powi(2) + (value(1) - 4.0).powi(2);
    let row = PolicyResult {
        policy: "p".to_owned(),
        status: engine::verdict::Ended::Ok,
        metrics: [("cost".to_owned(), cost)].into(),
        ..PolicyResult::default()
    };
    Outcome::Ran(Box::new(RunResult { results: vec![row], ..RunResult::default() }))
}

/// Plays a sweep in a folder, and stops after so many points where that is asked.
fn played(sweep: &Sweep, folder: &Path, shard: Option<Shard>, stop_after: usize, until: Option<f64>) -> Played {
    let n = AtomicUsize::new(0);
    let run = |point: &Point| {
        n.fetch_add(1, Ordering::Relaxed);
        outcome(point)
    };
    let is_stopped = || n.load(Ordering::Relaxed) > stop_after;
    let keys = key::Keys::new("1", "", folder, &[]);
    let work = Work { keys, run: &run, is_stopped: &is_stopped, progress: &|_, _| {}, shard, until };
    play(sweep, folder, &work).expect("a sweep")
}

fn whole(sweep: &Sweep) -> Vec<u8> {
    let folder = Folder::new();
    assert!(played(sweep, &folder.0, None, usize::MAX, None).is_whole);
    std::fs::read(folder.0.join("points.jsonl")).expect("rows")
}

#[test]
fn every_point_has_a_row_and_failures_are_rows() {
    let text = String::from_utf8(whole(&grid())).expect("text");
    assert_eq!(text.lines().count(), 60);
    // Of ten values of x, 5 and 10 are wrong, with six values of y each.
    assert_eq!(text.lines().filter(|line| line.contains("\"status\":\"wrong\"")).count(), 12);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn a_file_that_is_cut_at_any_byte_is_finished_to_the_same_bytes(cut in 0.0..1.0_f64, garbage in any::<bool>()) {
        let (sweep, folder) = (grid(), Folder::new());
        let expected = whole(&sweep);
        let n = (cut * expected.len() as f64) as usize;
        let mut left = expected[..n].to_vec();
        // A machine that lost its power may leave zeros in the last block.
        if garbage {
            left.extend([0; 40]);
        }
        std::fs::write(folder.0.join("points.jsonl"), &left).expect("a file");
        let n_rows = expected[..n].iter().filter(|byte| **byte == b'\n').count();
        let played = played(&sweep, &folder.0, None, usize::MAX, None);
        prop_assert_eq!(played.n_new, 60 - n_rows, "whole rows are not run again");
        prop_assert_eq!(std::fs::read(folder.0.join("points.jsonl")).expect("rows"), expected);
    }

    #[test]
    fn a_sweep_that_is_stopped_again_and_again_loses_nothing(stops in prop::collection::vec(0_usize..30, 1..6)) {
        let (sweep, folder) = (grid(), Folder::new());
        let mut n_rows = 0;
        for stop in stops {
            let lines = played(&sweep, &folder.0, None, stop, None).lines.len();
            prop_assert!(lines >= n_rows, "{} rows after {}", lines, n_rows);
            n_rows = lines;
        }
        played(&sweep, &folder.0, None, usize::MAX, None);
        prop_assert_eq!(std::fs::read(folder.0.join("points.jsonl")).expect("rows"), whole(&sweep));
    }
}

#[test]
fn points_that_ended_before_a_stop_are_kept() {
    // One chunk has all 60 points. Threads may each lose the point that they are at.
    let (sweep, folder) = (Sweep { chunk: 256, ..grid() }, Folder::new());
    let stopped = played(&sweep, &folder.0, None, 50, None);
    let n_rows = stopped.lines.len();
    assert!(!stopped.is_whole && (20..=50).contains(&n_rows), "{n_rows} rows");
    assert!(stopped.counted().ends_with("; stopped: the same command goes on\n"));
    assert_eq!(played(&sweep, &folder.0, None, usize::MAX, None).n_new, 60 - n_rows);
    assert_eq!(std::fs::read(folder.0.join("points.jsonl")).expect("rows"), whole(&sweep));
}

#[test]
fn parts_together_are_one_run() {
    let (sweep, folder) = (grid(), Folder::new());
    let n_new: usize =
        (1..=4).map(|index| played(&sweep, &folder.0, Some(Shard { index, n: 4 }), usize::MAX, None).n_new).sum();
    assert_eq!(n_new, 60, "every point is in one part");
    assert_eq!(played(&sweep, &folder.0, None, usize::MAX, None).n_new, 0);
    assert_eq!(std::fs::read(folder.0.join("points.jsonl")).expect("rows"), whole(&sweep));
}

#[test]
fn a_changed_sweep_keeps_what_it_shares_with_the_earlier_one() {
    let (first, folder) = (grid(), Folder::new());
    played(&first, &folder.0, None, usize::MAX, None);
    let second = sweep(
        "scenario = \"s\"\n[[axis]]\nkey = \"a.x\"\nvalues = [11, 3, 4]\n[[axis]]\nkey = \"a.y\"\nvalues = [6, 1]\n",
    );
    assert_eq!(played(&second, &folder.0, None, usize::MAX, None).n_new, 2, "those with the new value");
    assert_eq!(std::fs::read(folder.0.join("points.jsonl")).expect("rows"), whole(&second));
    assert_eq!(played(&first, &folder.0, None, usize::MAX, None).n_new, 0, "and back again nothing is run");
    assert_eq!(std::fs::read(folder.0.join("points.jsonl")).expect("rows"), whole(&first));
}

#[test]
fn refining_finds_the_best_of_the_grid_with_fewer_points_and_resumes() {
    let (sweep, folder) = (grid(), Folder::new());
    let refined = played(&sweep, &folder.0, None, usize::MAX, Some(0.0));
    assert!(refined.n_new < 60, "{} points", refined.n_new);
    assert!(refined.lines.iter().any(|line| line.contains("\"cost\":0.0")), "x = 3, y = 4");
    let expected = std::fs::read(folder.0.join("points.jsonl")).expect("rows");
    std::fs::write(folder.0.join("points.jsonl"), &expected[..expected.len() / 2]).expect("half of it");
    played(&sweep, &folder.0, None, usize::MAX, Some(0.0));
    assert_eq!(std::fs::read(folder.0.join("points.jsonl")).expect("rows"), expected);
}
