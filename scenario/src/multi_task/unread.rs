//! Keys and sections of kind `training` that nothing reads where several tasks share a model.

use crate::unread::Unread;

/// All of them.
pub const UNREAD: Unread = Unread {
    sections: &SECTIONS,
    keys: &KEYS,
    place: "where tasks share a model",
    acts: "`kind = \"training\"` has it",
};

const DAYS: &str = "one iteration is played here, and no run of days";

const SECTIONS: [(&str, &str); 9] = [
    ("model", "each `[[operator]]` has the shape of its layers"),
    ("parallel", "a plan decides degrees here, among those of `operator.tensor`"),
    ("search", "a plan decides degrees here, among those of `operator.tensor`"),
    ("overlap", "exchanges of a tensor group are part of a layer's time here, and gradients follow the last backward"),
    ("experts", "a device holds its share of all experts of a layer here, so nothing travels to experts"),
    ("workload", "`tokens` of a flow and `batch` of a task say what is trained"),
    ("failures", DAYS),
    ("checkpoint", DAYS),
    ("slow_nodes", DAYS),
];

const KEYS: [(&str, &[&str], &str); 7] = [
    ("training", &["batch_size", "steps", "bucket_tokens"], "each `[[task]]` has a batch of its own here"),
    ("training", &["recompute_layers"], "a plan cuts layers into pieces here, and all layers are alike"),
    ("training", &["loss", "loss_parallel"], "no operator has a vocabulary here: heads are feed-forwards"),
    (
        "training",
        &["gradient_sync"],
        "gradients of what tasks share are added up over them here, and reduced behind the last backward",
    ),
    ("training", &["narrow_gather", "parameters_on_host"], "devices hold whole parameters here"),
    ("training", &["predicting_layers"], "no operator predicts tokens here"),
    (
        "optimizer",
        &["trains", "adapter_rank", "adapters_beside", "adapter_dtype", "adapter_dropout", "frozen"],
        "what tasks share is trained as a whole here",
    ),
];
