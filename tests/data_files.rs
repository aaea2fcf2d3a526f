//! Lengths from files that other programs wrote: an index of Megatron-LM, and Arrow's files and streams.

use std::path::{Path, PathBuf};

use input::diagnostic::Source;
use scenario::Overrides;
use skrull_sim::kinds::{self, Checked};

fn folder() -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("data-files");
    std::fs::create_dir_all(&folder).expect("a folder");
    folder
}

/// The quickstart with a workload of its own.
fn read(workload: &str) -> Checked {
    let text = format!(
        "[model]\nname = \"qwen2.5-0.5b\"\n[cluster]\ngpu = \"h100-sxm\"\nnodes = 1\n[parallel]\ndp = 8\n[training]\nbatch_size = 3\n\
         bucket_tokens = 4096\n[workload]\n{workload}\n[policies]\nrun = [\"deepspeed\"]\n"
    );
    kinds::check(Source { path: "scenario.toml".to_owned(), text }, &folder(), &Overrides::default())
}

fn lengths(workload: &str) -> Vec<u64> {
    super::training(read(workload)).problem.workload.lengths
}

/// Rows that sequences are packed into: as many sequences as best fit packs into them, so one more asks for another row.
#[test]
fn a_batch_of_rows_has_the_sequences_that_fill_them() {
    let rows = |workload: &str| lengths(&format!("row_tokens = 8192\n{workload}"));
    let fits = |lengths: &[u64]| planner::train::pack::best_fit_decreasing(lengths, 8192).len() <= 3;
    let (found, more) = (rows("lengths = \"wikipedia\""), lengths("lengths = \"wikipedia\"\nmax_tokens = 8192"));
    assert!(fits(&found) && found.iter().all(|tokens| *tokens <= 8192), "{found:?}");
    assert!(found.len() > more.len() && found.starts_with(&more), "the same draws: {found:?}");
    let held: u64 = found.iter().sum();
    assert!(held > 3 * 8192 * 9 / 10, "short ones fill what long ones leave: {held}");
    assert_eq!(rows("tokens = 2048").len(), 12);
    assert_eq!(rows("list = [8192, 4096, 4096]"), [8192, 4096, 4096, 8192]);
    assert_eq!(rows("tokens = 10000\nlonger = \"cut\""), [8192, 1808, 8192, 1808]);
    let words = format!("{:?}", read("row_tokens = 8192\nmax_tokens = 9000\ntokens = 2048").findings);
    assert!(words.contains("1 to 8192"), "{words}");
}

/// An index as `indexed_dataset.py` writes it, tokens of two bytes.
fn index(lengths: &[i32]) -> Vec<u8> {
    let mut bytes = b"MMIDIDX\0\0".to_vec();
    bytes.extend(1_u64.to_le_bytes());
    bytes.push(8);
    bytes.extend((lengths.len() as u64).to_le_bytes());
    bytes.extend((lengths.len() as u64 + 1).to_le_bytes());
    bytes.extend(lengths.iter().flat_map(|tokens| tokens.to_le_bytes()));
    let mut place = 0_i64;
    for tokens in lengths {
        bytes.extend(place.to_le_bytes());
        place += 2 * i64::from(*tokens);
    }
    bytes.extend((0..=lengths.len() as u64).flat_map(u64::to_le_bytes));
    bytes
}

#[test]
fn an_index_of_megatron_has_the_lengths() {
    std::fs::write(folder().join("train_text_document.idx"), index(&[100, 2000, 30])).expect("written");
    assert_eq!(lengths("file = \"train_text_document.idx\""), [100, 2000, 30]);
    std::fs::write(folder().join("cut.idx"), &index(&[100, 2000, 30])[..60]).expect("written");
    let words = format!("{:?}", read("file = \"cut.idx\"").findings);
    assert!(words.contains("it promises 3 sequences and 4 documents, and is too short for them"), "{words}");
}

/// A table of pyarrow's among the files of the scenario.
fn bring(name: &str) {
    let bytes = std::fs::read(super::root().join("packed/src/tests").join(name)).expect("a table");
    std::fs::write(folder().join(name), bytes).expect("written");
}

#[test]
fn arrow_has_lengths_as_numbers_and_as_lists() {
    bring("lengths.arrows");
    for field in ["input_ids", "length"] {
        assert_eq!(lengths(&format!("file = \"lengths.arrows\"\nfield = \"{field}\"")), [300, 1, 40], "{field}");
    }
    let words = |name: &str, field: &str| {
        bring(name);
        format!("{:?}", read(&format!("file = \"{name}\"\nfield = \"{field}\"")).findings)
    };
    for name in ["table.arrow", "table.arrows"] {
        assert!(words(name, "input_ids").contains("line 4: `0` is not a length"));
        // A moment is no length, so its column is not read.
        assert!(words(name, "when").contains("each line needs `when` as such a number"));
    }
    assert!(words("packed.arrows", "input_ids").contains("its buffers are compressed"));
}
