//! Flags under the names of older releases of Megatron-LM, and of Megatron-DeepSpeed, as those that say the same today.

use crate::flags::Flag;

/// Older names and today's.
const RENAMED: [(&str, &str); 6] = [
    ("model-parallel-size", "tensor-model-parallel-size"),
    ("moe-expert-parallel-size", "expert-model-parallel-size"),
    ("num-key-value-heads", "num-query-groups"),
    ("activations-checkpoint-method", "recompute-method"),
    ("activations-checkpoint-num-layers", "recompute-num-layers"),
    ("checkpoint-num-layers", "recompute-num-layers"),
];

/// Today's flags beside the older ones, which the table knows too. Where both are given, today's counts.
pub(super) fn today(given: &mut Vec<Flag>) {
    let is_given = |name: &str| given.iter().any(|flag| flag.name == name);
    let mut more: Vec<Flag> = Vec::new();
    for flag in given.iter() {
        let renamed = RENAMED.iter().find(|(older, today)| flag.name == *older && !is_given(today));
        more.extend(renamed.map(|(_, today)| Flag { name: (*today).to_owned(), ..flag.clone() }));
        more.extend(beside(flag).into_iter().filter(|one| !is_given(&one.name)));
    }
    given.extend(more);
}

/// What an older flag says beyond its name: layers that are checkpointed are computed again as a whole.
fn beside(flag: &Flag) -> Vec<Flag> {
    let one = |name: &str, value: Option<&str>| Flag {
        name: name.to_owned(),
        values: value.into_iter().map(str::to_owned).collect(),
        at: flag.at.clone(),
    };
    match flag.name.as_str() {
        "checkpoint-activations" => {
            vec![one("recompute-granularity", Some("full")), one("recompute-method", Some("uniform"))]
        }
        "activations-checkpoint-method" => vec![one("recompute-granularity", Some("full"))],
        "fp8-hybrid" => vec![one("fp8-format", Some("hybrid"))],
        "fp8-e4m3" => vec![one("fp8-format", Some("e4m3"))],
        "num-key-value-heads" => vec![one("group-query-attention", None)],
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use crate::example::{import_text, on};

    #[test]
    fn older_names_say_what_todays_do() {
        let base = "deepspeed --num_gpus 8 --num_nodes 2 pretrain_gpt.py --num-layers 8 --hidden-size 1024 --num-attention-heads 16 \
                    --seq-length 4096 --vocab-size 32000 --bf16 --micro-batch-size 1 --global-batch-size 64 --num-experts 8 ";
        let machine = on("h100-sxm");
        for (flags, key) in [
            ("--checkpoint-activations", "recompute = \"full\""),
            ("--activations-checkpoint-method uniform", "recompute = \"full\""),
            ("--activations-checkpoint-method block --activations-checkpoint-num-layers 2", "recompute_layers = 2"),
            ("--model-parallel-size 4", "tp = 4"),
            ("--model-parallel-size 4 --tensor-model-parallel-size 2", "tp = 2"),
            ("--moe-expert-parallel-size 4", "ep = 4"),
            ("--fp8-hybrid", "products = \"fp8\""),
            ("--fp8-e4m3", "products = \"fp8\""),
            ("--num-key-value-heads 4", "num_key_value_heads = 4"),
            ("--normalization rmsnorm --position-embedding-type alibi", "learned_positions = false"),
        ] {
            let text = format!("{base}{flags}\n");
            let found = import_text(&text, &machine);
            assert!(found.scenario.contains(key), "{flags}: {}{:?}", found.scenario, found.findings);
            let unknown = found.findings.iter().filter(|one| one.what.contains("not in the table"));
            assert_eq!(unknown.count(), 0, "{flags}: {:?}", found.findings);
        }
    }
}
