//! Graph scenarios through the shell: files as people have them, what was removed of them, plan files, and the catalogue's machines.

use std::io::Write;
use std::path::{Path, PathBuf};

use input::diagnostic::{self, Source};
use reports::RunResult;
use scenario::{self, Overrides};
use skrull_sim::kinds::{self, Checked};

/// A folder that is removed with the test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("skrull-sim-graph-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a temporary folder");
        Self(path)
    }

    fn write(&self, name: &str, bytes: &[u8]) {
        let path = self.0.join(name);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("a temporary folder");
        std::fs::File::create(path).and_then(|mut file| file.write_all(bytes)).expect("a temporary file");
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

fn of_text(text: String, folder: &Path) -> Checked {
    kinds::check(Source { path: "graph.toml".to_owned(), text }, folder, &Overrides::default())
}

/// A small scenario of caches with these lines under `[graph]`.
fn caching(graph: &str) -> String {
    format!(
        "kind = \"graph\"\n[objective]\nis = \"caching\"\n[graph]\n{graph}\ntrain_ratio = 1.0\n[network]\nhidden = 8\n[sampling]\nfan_out = \
         [4, 2]\nbatch = 2\n[cache]\ngib = 0.0\n[cluster]\ngpu = \"a100-sxm-40g\"\nnodes = 1\ngpus_per_node = 2\n[policies]\nrun = \
         [\"dgl-uva\", \"legion\"]\n"
    )
}

fn run(text: String, folder: &Path) -> RunResult {
    let checked = of_text(text, folder);
    let messages = diagnostic::render(&checked.source, &checked.findings);
    checked.scenario.unwrap_or_else(|| panic!("{messages}")).run(&|_| {})
}

fn messages(text: String, folder: &Path) -> String {
    let checked = of_text(text, folder);
    assert!(checked.scenario.is_none());
    diagnostic::render(&checked.source, &checked.findings)
}

/// A ring of six with a loop, an edge twice and one in both directions, in the folders of OGB: what is removed is counted in the report.
#[test]
fn edges_of_a_folder_are_read_and_what_is_removed_is_said() {
    let folder = Folder::new("ogb");
    let text = b"0,1\n1,2\n2,3\n3,4\n4,5\n5,0\n3,3\n0,1\n1,0\n";
    folder.write("ring/raw/edge.csv", text);
    let run = run(caching("file = \"ring\"\nfeatures = 16"), &folder.0);
    let row = &run.results[0];
    assert!(row.status.is_ok(), "{}", row.why);
    let notes = row.planner.as_ref().expect("a plan").notes.join("\n");
    assert!(notes.contains("1 self-loops and 2 duplicates removed"), "{notes}");
    // Every vertex of a ring has two neighbours, within the fan-out of four: 6 seeds in batches of 2, rows and features at hand.
    assert_eq!(row.metrics["n_steps"] * 2.0, 4.0);
    assert!(row.metrics["replay_error_ratio"].abs() < 0.3, "{:?}", row.metrics);
}

#[test]
fn features_of_another_width_or_graph_are_refused() {
    let folder = Folder::new("features");
    folder.write("edges.csv", b"0,1\n1,2\n");
    let header = "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 100), }\n";
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend(u16::try_from(header.len()).expect("short").to_le_bytes());
    bytes.extend(header.as_bytes());
    folder.write("features.npy", &bytes);
    let file = "file = \"edges.csv\"\nfeatures_file = \"features.npy\"";
    assert_eq!(run(caching(file), &folder.0).results.len(), 2);
    let wrong = messages(caching(&format!("{file}\nfeatures = 64")), &folder.0);
    assert!(wrong.contains("error[S180]: `graph.features` is 64, `features.npy` has 100"), "{wrong}");
    assert!(wrong.contains("write `features = 100`"), "{wrong}");
    let wrong = messages(caching(&format!("{file}\nvertices = 9")), &folder.0);
    assert!(wrong.contains("has features of 3 vertices, the graph has 9"), "{wrong}");
    folder.write("edges.csv", b"PAR1");
    let wrong = messages(caching(file), &folder.0);
    assert!(wrong.contains("it is a Parquet file") && wrong.contains("or write CSV"), "{wrong}");
    let wrong = messages(caching("file = \"none.csv\"\nfeatures = 4"), &folder.0);
    assert!(wrong.contains("cannot read `none.csv`"), "{wrong}");
}

#[test]
fn a_plan_names_its_split_and_the_second_best() {
    let scenario = super::checked("graph/legion-dgx-v100", &[]).scenario.expect("a good scenario");
    let plan = scenario.plan("legion").expect("it decides").expect("a plan");
    assert!(plan.words.contains("runner-up of the grid"), "{}", plan.words);
    assert!(plan.json["plan"]["figures"]["hit_ratio_at_alpha_050_percent"].is_number(), "{}", plan.json);
    assert!(plan.json["predicted"]["epoch_time_s"].is_number());
}

#[test]
fn threads_change_nothing_in_a_graph_scenario() {
    let bytes = |n: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(n).build().expect("threads");
        let graph = "generator = \"rmat\"\nvertices = 1024\nedges = 9000\nfeatures = 16";
        let mut found = pool.install(|| run(caching(graph), Path::new("")));
        found.results.iter_mut().for_each(|row| row.measured = reports::Measured::default());
        reports::json::render(&found).expect("finite figures")
    };
    let one = bytes(1);
    assert_eq!(one, bytes(2));
    assert_eq!(one, bytes(8));
}

/// A small scenario of sequences with these lines under `[host]`.
fn sequences(host: &str) -> String {
    format!(
        "kind = \"graph\"\n[objective]\nis = \"sequences\"\n[graph]\ngenerator = \"bursts\"\nvertices = 50\nedges = 2000\nfeatures = 8\n[network]\nhidden \
         = 8\nheads = 1\n[sequences]\nneighbours = [4]\nbatch = [64]\n[host]\nthreads = 2\n{host}\n[cluster]\ngpu = \"a100-sxm-40g\"\nnodes = \
         1\ngpus_per_node = 1\n[policies]\nrun = [\"tgl\", \"tf-tgn\"]\n"
    )
}

/// A profile with one kernel of the host, ten times the base at every size.
fn profile_of_host(kernel: &str) -> String {
    format!(
        "schema = \"skrull-sim/profile/1\"\nname = \"host\"\ngpu = \"cpu\"\nsource = \"test\"\ndate = \"2026-11-22\"\ncollectives = \
         []\n[operators]\n[host.{kernel}]\nthreads = 1\n[host.{kernel}.residuals]\nn_fit = 9\nn_held_out = 9\nmedian_error = 0.05\np90_error = 0.1\nlow = \
         0.9\nhigh = 1.1\n[host.{kernel}.surface]\nvalues = [2.302585092994046]\n[[host.{kernel}.surface.axes]]\nname = \"a\"\nknots = \
         [1.0]\n[[host.{kernel}.surface.axes]]\nname = \"b\"\nknots = [1.0]\n"
    )
}

#[test]
fn kernels_of_a_profile_stand_for_assumed_times_and_the_report_says_which() {
    let folder = Folder::new("host");
    folder.write("host.toml", profile_of_host("convert-events").as_bytes());
    folder.write("other.toml", profile_of_host("sample-rows").as_bytes());
    let [assumed, measured] = ["", "profile = \"host.toml\""].map(|host| run(sequences(host), &folder.0));
    let conversion = |result: &RunResult| result.results[0].metrics["conversion_s"];
    assert!((conversion(&measured) / conversion(&assumed) - 10.0).abs() < 1e-6);
    let words = measured.cost_model.free_parameters.join("\n");
    assert!(words.contains("`convert-events` was measured on 1 thread: median error 5.0 %"), "{words}");
    assert!(words.contains("`gather-rows` is assumed") && words.contains("`host.read_ns`"), "{words}");
    let useless = messages(sequences("profile = \"other.toml\""), &folder.0);
    assert!(useless.contains("has no kernel that this objective uses"), "{useless}");
}

#[test]
fn a_straggler_that_ends_within_an_epoch_is_refused() {
    let folder = Folder::new("straggler");
    let graph = "generator = \"rmat\"\nvertices = 64\nedges = 300\nfeatures = 4";
    let straggler = "[[stragglers]]\nranks = [1]\nrate = 2.0\nuntil_step = 4\n";
    let found = messages(caching(graph) + straggler, &folder.0);
    assert!(found.contains("`stragglers.until_step` has no effect"), "{found}");
}

/// What checking a shipped scenario with other values says.
fn said(name: &str, set: &[&str]) -> String {
    let checked = super::checked(name, set);
    diagnostic::render(&checked.source, &checked.findings)
}

#[test]
fn one_wrong_value_is_one_finding_and_two_graphs_exclude_each_other() {
    let found = said("graph/legion-rmat", &["graph.vertices=1"]);
    assert!(found.contains("`graph.vertices` is 1") && found.matches("error[").count() == 1, "{found}");
    // A key that is unknown indeed is still found beside it.
    let found = said("graph/legion-rmat", &["graph.vertices=1", "graph.skwe=2"]);
    assert!(found.contains("unknown key `graph.skwe`") && found.matches("error[").count() == 2, "{found}");
    let found = said("graph/legion-rmat", &["graph.published=\"papers100m\""]);
    assert!(found.contains("exclude each other") && found.matches("error[").count() == 1, "{found}");
}

#[test]
fn a_step_of_a_straggler_that_is_not_there_names_what_says_how_many_there_are() {
    let found = said("quickstart", &["stragglers=[{ranks=[0],rate=2.0,from_step=7}]"]);
    assert!(found.contains("`stragglers.from_step` is 7") && found.contains("`training.steps`"), "{found}");
    let ended = "stragglers=[{ranks=[0],rate=2.0,from_step=1,until_step=1}]";
    let found = said("quickstart", &["training.steps=4", ended]);
    assert!(found.contains("`stragglers.until_step` is 1, and `from_step` is 1"), "{found}");
}

/// The pictures of docs/graphs.md are those of the reports; `UPDATE_PAGES=1 cargo test --test main pictures` draws them anew.
#[test]
fn pictures_of_the_page_are_those_of_the_reports() {
    let drawn = [
        ("graph/legion-rmat", "Hit rate over the share of the cache for rows", "graph-caching.svg"),
        ("graph/seg-ppa", "Time of an epoch over workers", "graph-subgraphs.svg"),
        ("graph/tf-tgn-reddit", "Time of an epoch by cause", "graph-sequences.svg"),
    ];
    for (name, label, file) in drawn {
        let text = scenario::shipped(name).expect("it is shipped").to_owned();
        let page = reports::html::render(&run(text, Path::new("")), &[], &[]);
        let svg = page.split("<svg").find(|part| part.contains(label)).expect("the report draws it");
        let (head, rest) = svg.split_once('>').expect("a tag");
        let body = rest.split("</svg>").next().expect("an end");
        // A page of another colour may lie behind the picture.
        let picture = format!("<svg{head}>\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n{body}</svg>\n");
        let path = super::root().join("docs/images").join(file);
        if std::env::var_os("UPDATE_PAGES").is_some() {
            std::fs::write(&path, &picture).expect("a file of the repository");
        }
        let found = std::fs::read_to_string(&path).expect("the picture");
        assert!(found == picture, "{file}: `UPDATE_PAGES=1 cargo test --test main pictures` draws it anew");
    }
}

/// Pairs are trained on in subgraphs, and epochs share what `seg` alone extracts ahead.
#[test]
fn keys_of_subgraphs_without_their_need_are_said() {
    let n = |name: &str, set: &[&str]| {
        let found = super::checked(name, set);
        found.findings.iter().filter(|finding| finding.code == diagnostic::Code::NoEffect).count()
    };
    let without = ["policies.run=[\"seal\", \"encode-once\"]", "policies.baseline=\"seal\""];
    assert_eq!(n("graph/seg-collab", &[]), 0);
    assert_eq!(n("graph/seg-collab", &["graph.train_ratio=0.5"]), 1);
    assert_eq!(n("graph/seg-collab", &without), 1);
    assert_eq!(n("graph/seg-ppa", &["graph.train_vertices=1000"]), 1);
}
