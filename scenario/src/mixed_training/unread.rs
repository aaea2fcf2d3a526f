//! Keys and sections of kind `training` that nothing reads beside `[[group]]`: each is refused with what stands in its place there.

use crate::unread::Unread;

/// All of them.
pub const UNREAD: Unread = Unread {
    sections: &SECTIONS,
    keys: &KEYS,
    place: "beside `[[group]]`",
    acts: "with one `[cluster]` in the place of `[[group]]` it acts",
};

/// Sections, with why they are not read.
const SECTIONS: [(&str, &str); 6] = [
    ("cluster", "every `[[group]]` has the keys of that section for its own machines"),
    ("parallel", "`[[stage]]` says layers, replicas and tensor degrees, and `training.zero` what replicas share"),
    ("search", "`policies.run = [\"search\"]` lists plans over all groups"),
    ("experts", "experts of a layer are cut over one tensor group there, so no all-to-all is played"),
    ("cost", "each card has its own profile and constants there; one profile would be of one card"),
    ("stragglers", "all cards of a group compute at the same pace there; slower ones are a group of their own"),
];

/// Keys of sections that are read, with why they are not.
const KEYS: [(&str, &[&str], &str); 6] = [
    ("training", &["gradient_sync"], "gradients go around a ring behind the last backward there"),
    ("training", &["steps"], "one step is played there"),
    ("training", &["bucket_tokens"], "`training.micro_batch` says the sequences of a micro-batch there"),
    (
        "training",
        &["parameters_on_host"],
        "shares of parameters would be gathered between cards for every pass, at the pace of the slowest link, and Megatron-Core and DeepSpeed have none beside a pipeline",
    ),
    ("overlap", &["stage"], "`training.messages = \"blocking\"` is what stops stages there"),
    (
        "overlap",
        &["expert", "delayed_weights", "slowdown", "parameter_gather", "forward_prefetch", "backward_prefetch"],
        "passes of a stage have one time there, beside which nothing but messages runs",
    ),
];
