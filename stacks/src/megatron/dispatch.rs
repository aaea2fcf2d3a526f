//! How tokens get to their experts, and how products of experts run (`megatron/core/transformer/transformer_config.py` @ d98e8a64ddf3).

use input::diagnostic::Code;

use super::Shape;
use super::parallel::Degrees;
use crate::document::Document;
use crate::flags::Flags;

const KIND: &str = "moe-token-dispatcher-type";
const BACKEND: &str = "moe-flex-dispatcher-backend";
const DEEPEP: &str = "moe-enable-deepep";
const GROUPED: &str = "moe-grouped-gemm";
/// Megatron-LM's own dispatcher, where nothing says one.
const USUAL: &str = "allgather";

/// Writes the dispatcher, and says what is taken in the place of others. `is_own` where what is left out is Megatron-LM's default, and no other program's.
pub(super) fn write(flags: &mut Flags<'_>, out: &mut Document, (shape, degrees): (&Shape, &Degrees), is_own: bool) {
    if shape.n_experts == 0 {
        return;
    }
    if is_own && shape.n_experts > u64::from(degrees.ep) && !flags.is(GROUPED) {
        let what = format!("without `--{GROUPED}` experts of a rank run one after another, which is not modelled");
        flags.warn(
            Code::NotModelled,
            None,
            what,
            format!("their products are taken to be grouped: give `--{GROUPED}`"),
        );
    }
    if degrees.ep > 1 {
        dispatcher(flags, out, is_own);
    }
}

fn dispatcher(flags: &mut Flags<'_>, out: &mut Document, is_own: bool) {
    let given = flags.text(KIND);
    let kind = given.as_deref().or_else(|| is_own.then_some(USUAL)).unwrap_or_default();
    let backend = flags.text(BACKEND);
    if flags.is(DEEPEP) {
        return out.word("experts", "dispatcher", "deepep", "--moe-enable-deepep");
    }
    if kind == "flex" {
        // Without a backend the card decides.
        let word = match backend.as_deref() {
            Some("hybridep") => "hybridep",
            Some("deepep") => "deepep",
            Some("ncclep") => {
                flags.not_modelled(
                    BACKEND,
                    "NCCL's own exchange is not measured: it is taken as HybridEP or DeepEP, as the card has it",
                );
                "flex"
            }
            _ => "flex",
        };
        return out.word("experts", "dispatcher", word, "--moe-token-dispatcher-type, --moe-flex-dispatcher-backend");
    }
    if let Some(backend) = backend.filter(|_| !kind.is_empty()) {
        let what = format!("`--{BACKEND} {backend}` changes nothing: the dispatcher is `{kind}`");
        flags.warn(Code::NoEffect, flags.at(BACKEND), what, format!("it counts with `--{KIND} flex`"));
    }
    if kind == USUAL {
        let asked = if given.is_some() {
            format!("`--{KIND} {USUAL}`")
        } else {
            format!("`--{KIND}` is left out, and its default `{USUAL}`")
        };
        let what = format!("{asked} is not modelled: tokens are taken to go by all-to-all");
        flags.warn(Code::NotModelled, flags.at(KIND), what, format!("give `--{KIND} alltoall` where that is meant"));
    }
}
