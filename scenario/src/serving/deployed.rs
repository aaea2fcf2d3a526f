//! What the replicas of a group run under a choice, and within which limits.

use engine::cost::reduce::ReduceKernel;
use engine::formats::Formats;
use hw::Seconds;
use input::reader::small;
use serve::engine_preset::EnginePreset;
use serve::engine_reduces;
use serve::replica::Limits;
use serve::step_cost::fusion::Fusion;
use serve::step_cost::{PromptKernel, ReplicaConfig, census};

use super::engine::{ExpertPlacement, memory_of};
use super::{Serving, ServingChoice, ServingGroup};

impl Serving {
    /// Formats that the replicas of a group multiply under a choice: what its card multiplies, where the engine keeps weights narrow without.
    pub fn formats_of(&self, choice: &ServingChoice, group: &ServingGroup) -> Formats {
        let formats = choice.operation.kernels.formats(group.model.formats);
        self.engine
            .preset
            .map_or(formats, |preset| preset.weight_only.formats(formats, &group.model, &group.cluster.gpu))
    }

    /// Most tokens of an iteration with prompts that the engine captures by itself, beside batches of so many sequences.
    pub(super) fn own_prompt_graphs(&self, choice: &ServingChoice, group: &ServingGroup, graph_max: u32) -> u32 {
        let degrees = choice.operation.degrees(choice.tensor_degree(group), group.ffn);
        let is_plain = choice.operation.is_plain(group.role, degrees);
        self.engine.preset.map_or(0, |preset| preset.prompt_graphs.tokens(&group.model, graph_max, is_plain))
    }

    /// What the replicas of a group run under a choice.
    pub fn deployment_of<'s>(&'s self, choice: &'s ServingChoice, group: &'s ServingGroup) -> ReplicaConfig<'s> {
        let (operation, us) = (&choice.operation, |us: f64| Seconds::new(us / 1e6));
        let tensor_degree = choice.tensor_degree(group);
        let (formats, preset) = (self.formats_of(choice, group), self.engine.preset);
        let (gpu, model) = (&group.cluster.gpu, &group.model);
        let (graph_sizes, graph_max) = self.engine.captured(gpu, tensor_degree, self.sizes_max(choice, group));
        let degrees = operation.degrees(tensor_degree, group.ffn);
        let serial_us = if operation.is_overlap_off(preset) { self.engine.serial_us_per_step } else { 0.0 };
        let (placed, asked) = (ExpertPlacement::of(degrees), self.engine.all_reduce);
        let all_reduce = preset.map_or(ReduceKernel::Own, |own| own.reduces.kernel(model, gpu, placed.ranks, asked));
        ReplicaConfig {
            pipeline_degree: operation.pipeline_degree,
            layer_split: preset.map(|own| own.layer_split).unwrap_or_default(),
            expert_degree: degrees.expert_gpus(),
            ffn: degrees.ffn,
            host_per_step: us(self.engine.host_us_per_step + serial_us),
            host_per_sequence: us(self.engine.host_us_per_sequence),
            host_waiting: preset.map_or(Seconds::ZERO, |own| own.host_waiting(model)),
            host_per_layer: us(self.engine.host_us_per_layer),
            host_per_expert_layer: us(self.engine.host_us_per_expert_layer),
            host_per_intricate_layer: us(self.engine.host_us_per_intricate_layer),
            detokenize_per_sequence: us(self.engine.detokenize_us_per_sequence),
            engine_loop: operation.loop_under(preset),
            round_launches: operation.round_launches(preset),
            encoder_split: self.engine.encoder_split,
            routing: self.engine.experts.routing(&group.model),
            redundant_experts: self.engine.experts.redundant,
            prompt_graph_tokens: self.engine.prompt_graph_tokens(self.own_prompt_graphs(choice, group, graph_max)),
            graph_sizes,
            graph_fit: self.engine.graph_fit(),
            graph_max,
            shared_among_routed: preset.is_some_and(|own| own.shared_among_routed(model, gpu, placed.is_spread())),
            fusion: engine_reduces::fusion(all_reduce, preset.map_or(Fusion::Nothing, |own| own.fusion)),
            census: preset.map_or(census::NONE, |preset| preset.census),
            joint_attention: preset.is_some_and(EnginePreset::has_joint_attention),
            all_reduce,
            drawing: self.drawing_of(choice, group),
            sequence_tokens: self.sequence_tokens,
            shared_beside: preset.map_or(0, |preset| preset.shared_beside),
            deep_ep: self.engine.experts.deep_ep,
            overlaps_batches: self.engine.experts.overlaps_batches,
            prompt_exchange: preset.map(|preset| preset.prompt_exchange).unwrap_or_default(),
            adapters: operation.adapters.room(),
            expert_padding: preset.and_then(|preset| preset.expert_padding(formats.experts, gpu)),
            latent_layout: preset.map(|preset| preset.latent_layout(gpu, &group.model)).unwrap_or_default(),
            triton_experts: self.engine.has_triton_experts(formats.experts, gpu),
            expert_tactic: self.engine.expert_tactic(formats.experts, group, placed),
            expert_rows: self.engine.expert_rows(formats.experts, group, placed),
            context_max: choice.context_max(),
            draft: operation.drafts.as_ref().and_then(|drafts| drafts.by.drafting(&group.drafters)),
            formats,
            sparse_weights: operation.kernels.sparse_weights(),
            host_weights: operation.host_weights,
            prompt_attention: PromptKernel {
                flops_ratio: self.attention_flops_ratio,
                sparse: operation.kernels.sparse_attention(&group.model, tensor_degree),
                reads_again: preset.is_some_and(|own| own.reads_keys_again(model, gpu)),
            },
            ..ReplicaConfig::new(&group.model, &group.cluster, tensor_degree)
        }
    }

    /// Limits of a group's replicas under a choice; without blocks where the weights leave no room, which is found before.
    pub fn limits(&self, choice: &ServingChoice, group: &ServingGroup) -> Limits {
        let (sequences_max, tokens_max) = self.sizes_max(choice, group);
        // A group with more sequences than the engine has tokens gets as many tokens, where they take their own of them.
        let counted = if choice.batcher.counts_decoding() { sequences_max } else { 0 };
        let decode_tokens = counted * choice.operation.tokens_per_sequence();
        let limits = Limits {
            sequences_max,
            tokens_max: tokens_max.max(decode_tokens),
            recv_interval: group.recv_interval.unwrap_or(choice.limits.recv_interval),
            frontend: self.frontend_of(choice, group),
            image_tokens_max: self
                .deployment_of(choice, group)
                .encoding()
                .map_or(0, |encoding| small(encoding.encoder.tokens_max())),
            ..choice.limits
        };
        memory_of(self, choice, group).map_or(limits, |memory| Limits {
            kv_blocks: memory.kv_blocks,
            blocks_per_sequence: memory.blocks_per_sequence,
            watermark_blocks: memory.watermark_blocks,
            preemption: memory.preemption,
            tiers: memory.tiers,
            remote: memory.remote,
            adapters: memory.adapters,
            ..limits
        })
    }
}
