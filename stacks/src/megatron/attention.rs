//! Which kernel of attention a job has: flash or fused ones, or a score matrix.

use super::{Flags, Machine};

/// A flag that Megatron-LM dropped in 2023. Before, its own modules (`local`) ran without flash attention but for a switch.
const OF_2023: &str = "data-impl";
/// A switch that matters to a score matrix alone.
const OF_SCORES: &str = "no-masked-softmax-fusion";
/// A switch of older releases.
const SWITCH: &str = "use-flash-attn";

/// What leaves attention with a score matrix, as a remark; `None` where it is fused, and then a switch about such a matrix says nothing.
pub(super) fn unfused_by(flags: &mut Flags<'_>, machine: &Machine) -> Option<&'static str> {
    let found = of_flags(flags).or_else(|| of_card(flags, machine));
    if found.is_none() {
        flags.given.retain(|flag| flag.name != OF_SCORES);
    }
    found
}

/// Whether a job asks for FlashAttention 2 on a card of Hopper. Without a word cuDNN's kernel runs there.
pub(super) fn is_flash_two(flags: &mut Flags<'_>, machine: &Machine) -> bool {
    let is_hopper = machine.gpu.as_deref().and_then(hw::catalog::generation) == Some(hw::Generation::Hopper);
    is_hopper && flags.text("attention-backend").is_some_and(|word| word == "flash")
}

fn of_flags(flags: &mut Flags<'_>) -> Option<&'static str> {
    let backend = flags.text("attention-backend");
    let implementation = flags.text("transformer-impl");
    let has_flash = flags.is(SWITCH);
    if backend.as_ref().is_some_and(|word| word == "unfused" || word == "local") {
        return Some("--attention-backend");
    }
    if implementation.as_ref().is_some_and(|word| word == "local") && !has_flash {
        return Some("--transformer-impl local");
    }
    if super::deepspeed::is_job(&flags.given) && !has_flash && implementation.is_none() {
        return Some("no --use-flash-attn of Megatron-DeepSpeed");
    }
    let is_of_2023 = flags.find(OF_2023).is_some() && implementation.is_none() && backend.is_none();
    (is_of_2023 && !has_flash).then_some("--data-impl: Megatron-LM of 2023 without --use-flash-attn")
}

fn of_card(flags: &mut Flags<'_>, machine: &Machine) -> Option<&'static str> {
    let card = machine.gpu.as_deref()?;
    if !hw::catalog::is_before_ampere(card) {
        return None;
    }
    if flags.is(SWITCH) {
        flags.not_modelled(
            SWITCH,
            "flash attention needs compute capability 8.0, which this card has not: a score matrix is counted",
        );
    }
    Some("neither flash attention nor Transformer Engine's kernels run below compute capability 8.0")
}

#[cfg(test)]
mod tests {
    use crate::example::on;
    use crate::{Imported, Stack, import};

    const UNFUSED: &str = "attention = \"unfused\"";

    fn found(card: &str, flags: &str) -> Imported {
        let base = "torchrun --nproc_per_node 1 pretrain_gpt.py --num-layers 8 --hidden-size 1024 --num-attention-heads 16 --seq-length 1024 \
                    --vocab-size 32000 --micro-batch-size 4 --global-batch-size 8 --fp16 ";
        import(Stack::Megatron, &format!("{base}{flags}\n"), &on(card))
    }

    #[test]
    fn cards_and_releases_without_fused_kernels_have_a_score_matrix() {
        for (card, flags, is_unfused) in [
            ("v100-sxm-32g", "", true),
            ("v100-sxm-16g", "--use-flash-attn", true),
            ("a100-sxm-80g", "", false),
            // Megatron-LM of 2023.
            ("a100-sxm-80g", "--data-impl mmap", true),
            ("a100-sxm-80g", "--data-impl mmap --use-flash-attn", false),
            ("a100-sxm-80g", "--data-impl mmap --transformer-impl transformer_engine", false),
        ] {
            let found = found(card, flags);
            assert_eq!(found.scenario.contains(UNFUSED), is_unfused, "{card} {flags}: {}", found.scenario);
        }
        let asked = found("v100-sxm-32g", "--use-flash-attn");
        assert!(
            asked.findings.iter().any(|one| one.what == "`--use-flash-attn` is not modelled"),
            "{:?}",
            asked.findings
        );
    }

    #[test]
    fn a_switch_about_a_score_matrix_is_said_where_there_is_one() {
        let says = |card: &str| {
            let found = found(card, "--no-masked-softmax-fusion").findings;
            found.iter().any(|one| one.what.contains("--no-masked-softmax-fusion"))
        };
        assert!(says("v100-sxm-32g") && !says("h100-sxm"));
    }
}
