//! The reader of `docs/launch-scripts.md` deals out every token of a planned batch once, in Python as it stands there.

use std::path::Path;
use std::process::Command;

use super::foreign::{exported, planned};

/// What the reader takes of PyTorch, on lists.
const TORCH: &str = "\
import sys, types

def tensor_split(tokens, n):
    size, more = divmod(len(tokens), n)
    ends = [0]
    for i in range(n):
        ends.append(ends[-1] + size + (i < more))
    return [tokens[a:b] for a, b in zip(ends, ends[1:])]

torch = types.ModuleType('torch')
torch.as_tensor, torch.tensor_split, torch.cat = list, tensor_split, lambda parts: [one for part in parts for one in part]
torch.utils = types.SimpleNamespace(data=types.SimpleNamespace(IterableDataset=object))
sys.modules['torch'] = torch
";

/// Reads every group and rank, and counts how often each token came.
const COUNT: &str = "
import collections
path, lengths, groups, ranks = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
data = [[(i, at) for at in range(n)] for i, n in enumerate(lengths)]
seen = collections.Counter()
for group in range(groups):
    for rank in range(ranks):
        for step, micro_batch, parts in Planned(path, data, group, rank):
            seen.update(token for part in parts for token in part)
assert set(seen) == {token for sequence in data for token in sequence}, 'a token is missing'
assert set(seen.values()) == {1}, 'a token comes twice'
print(len(seen))
";

/// The block of Python in the page.
fn reader() -> String {
    let page = std::fs::read_to_string(super::root().join("docs/launch-scripts.md")).expect("the page");
    let (_, block) = page.split_once("```python\n").expect("a block of Python");
    block.split("```").next().expect("its end").to_owned()
}

#[test]
fn the_reader_of_the_page_deals_out_every_token_once() {
    let is_there = Command::new("python3").arg("--version").output().is_ok_and(|found| found.status.success());
    if !is_there {
        return println!("skipped: no python3");
    }
    let lengths: Vec<u64> = (0..24).map(|n| 100 + 731 * (n * n % 11)).collect();
    let text = scenario::shipped("quickstart").expect("shipped").replace("batch_size = 256 ", "batch_size = 24 ");
    let text = text.replace("steps = 2 ", "steps = 1 ").replace("max_tokens = 131072", "");
    let text = text.replace("lengths = \"chatqa2-long-sft\" ", &format!("list = {lengths:?} "));
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("data-order");
    std::fs::create_dir_all(&folder).expect("a folder");
    std::fs::write(folder.join("reader.py"), [TORCH, &reader(), COUNT].concat()).expect("a file");
    for policy in ["deepspeed", "longalign", "skrull"] {
        let planned = planned(&text, policy).unwrap_or_else(|why| panic!("{policy}: {why}"));
        let files = exported(&planned, "data-order").expect("any plan");
        std::fs::write(folder.join("order.jsonl"), &files[0].bytes).expect("a file");
        let layout = &planned.problem.layout;
        let mut command = Command::new("python3");
        command.arg(folder.join("reader.py")).arg(folder.join("order.jsonl")).arg(format!("{lengths:?}"));
        let found = command.args([layout.dp.to_string(), layout.cp.to_string()]).output().expect("it starts");
        let said = String::from_utf8_lossy(&found.stderr).into_owned();
        assert!(found.status.success(), "{policy}: {said}");
        let n: u64 = String::from_utf8_lossy(&found.stdout).trim().parse().expect("a count");
        assert_eq!(n, lengths.iter().sum::<u64>(), "{policy}");
    }
}
