//! What a kernel is: a term of a step, by its name. One table says it (`tables/kernels.tsv`); a prediction's operations have the same terms.

use std::sync::OnceLock;

use engine::Op;
use engine::cost::kernel_kind::KernelKind;
use engine::task::{CopyKind, Role};

hw::words! {
    /// A part of a step, and the order in which it is shown.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub enum Term: name {
        /// Matrix products, grouped ones among them.
        Product = "product",
        /// Attention forward.
        AttentionForward = "attention forward",
        /// Attention backward.
        AttentionBackward = "attention backward",
        /// Kernels that memory bounds: norms, activations, casts, copies inside the device.
        Elementwise = "elementwise",
        /// Rows of a table.
        Embedding = "embedding",
        /// The optimizer's step, norms of gradients among it.
        Optimizer = "optimizer",
        /// All-reduce.
        AllReduce = "all-reduce",
        /// All-gather.
        AllGather = "all-gather",
        /// Reduce-scatter.
        ReduceScatter = "reduce-scatter",
        /// All-to-all.
        AllToAll = "all-to-all",
        /// Messages between two ranks.
        Message = "message",
        /// Exchanges that no prediction has: broadcasts, barriers.
        OtherExchange = "other exchange",
        /// Copies from the host.
        CopyIn = "copy from host",
        /// Copies to the host.
        CopyOut = "copy to host",
        /// Time of the host that no kernel hides.
        Host = "host",
        /// Kernels whose name says nothing.
        Unknown = "unknown",
    }
}

/// Where a term runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lane {
    /// Kernels that compute.
    Compute,
    /// Exchanges with other ranks.
    Exchange,
    /// Copies from and to the host.
    Copy,
    /// Nothing runs on the device.
    None,
}

impl Term {
    /// Where it runs.
    pub const fn lane(self) -> Lane {
        match self {
            Self::AllReduce
            | Self::AllGather
            | Self::ReduceScatter
            | Self::AllToAll
            | Self::Message
            | Self::OtherExchange => Lane::Exchange,
            Self::CopyIn | Self::CopyOut => Lane::Copy,
            Self::Host => Lane::None,
            _ => Lane::Compute,
        }
    }

    /// The term of a predicted operation inside a task of a role.
    pub const fn of_op(op: &Op, role: Role) -> Self {
        match op {
            Op::Copy { kind: CopyKind::HostToDevice, .. } => Self::CopyIn,
            Op::Copy { kind: CopyKind::DeviceToHost, .. } => Self::CopyOut,
            Op::Host { .. } => Self::Host,
            _ => match KernelKind::of(op) {
                Some(kind) if kind.is_exchange() => Self::of_kind(kind),
                _ if matches!(role, Role::Optimizer) => Self::Optimizer,
                Some(kind) => Self::of_kind(kind),
                None => Self::Elementwise,
            },
        }
    }

    /// The term of a kind of kernels.
    const fn of_kind(kind: KernelKind) -> Self {
        match kind {
            KernelKind::Product => Self::Product,
            KernelKind::AttentionForward => Self::AttentionForward,
            KernelKind::AttentionBackward => Self::AttentionBackward,
            KernelKind::Memory => Self::Elementwise,
            KernelKind::Embedding => Self::Embedding,
            KernelKind::AllReduce => Self::AllReduce,
            KernelKind::AllGather => Self::AllGather,
            KernelKind::ReduceScatter => Self::ReduceScatter,
            KernelKind::AllToAll => Self::AllToAll,
            KernelKind::Message => Self::Message,
        }
    }

    /// The kind of kernels whose factor it says; the optimizer's kernels are priced as those of memory, and a factor of both would be neither's.
    pub fn kind(self) -> Option<KernelKind> {
        KernelKind::ALL.into_iter().find(|kind| Self::of_kind(*kind) == self)
    }

    /// The term of a kernel, by its name and what PyTorch calls the collective.
    pub fn of_kernel(name: &str, collective: Option<&str>) -> Self {
        let text = match collective {
            // The kernel of an all-to-all sends and receives; only PyTorch knows what for.
            Some(collective) => format!("nccl {collective}"),
            None => name.to_owned(),
        };
        let text = text.to_ascii_lowercase();
        let row = table().iter().find(|(_, parts)| parts.iter().all(|part| text.contains(part)));
        row.map_or(Self::Unknown, |(term, _)| *term)
    }
}

type Row = (Term, Vec<&'static str>);

/// Rows of the table, in order.
fn table() -> &'static [Row] {
    static TABLE: OnceLock<Vec<Row>> = OnceLock::new();
    TABLE.get_or_init(|| {
        let lines = include_str!("../../tables/kernels.tsv").lines();
        lines.filter(|line| !line.starts_with('#')).map(row).collect()
    })
}

fn row(line: &'static str) -> Row {
    let (term, parts) = line.split_once('\t').expect("a row has two columns");
    let term = Term::named(term).expect("a row names a term");
    (term, parts.split(' ').collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names as profilers of NVIDIA's cards print them.
    const NAMES: [(&str, Option<&str>, Term); 30] = [
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize2x1x1_execute", None, Term::Product),
        ("nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NTT", None, Term::Product),
        ("ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn", None, Term::Product),
        (
            "void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_16x16_128x2_tn_align8>",
            None,
            Term::Product,
        ),
        ("void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 64, 64, 4>>", None, Term::AttentionForward),
        ("void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<>", None, Term::AttentionBackward),
        ("void cutlass::device_kernel<flash::FlashAttnFwdSm90<>>", None, Term::AttentionForward),
        ("void cutlass::device_kernel<flash::FlashAttnBwdSm90<>>", None, Term::AttentionBackward),
        (
            "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_6_128x128x128",
            None,
            Term::AttentionForward,
        ),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_knob_31", None, Term::AttentionBackward),
        (
            "fmha_cutlassB_bf16_aligned_64x64_k64_sm80(PyTorchMemEffAttention::AttentionBackwardKernel)",
            None,
            Term::AttentionBackward,
        ),
        (
            "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16>>",
            None,
            Term::Elementwise,
        ),
        ("void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float>", None, Term::Elementwise),
        ("triton_red_fused__to_copy_add_mean_mul_pow_rsqrt_0", None, Term::Elementwise),
        (
            "triton_poi_fused__scaled_dot_product_flash_attention_backward__to_copy_clone_expand_4",
            None,
            Term::Elementwise,
        ),
        ("void at::native::detail::chunk_cat_cuda_kernel<float, c10::BFloat16>", None, Term::Elementwise),
        (
            "void at::native::(anonymous namespace)::GammaBetaBackwardCUDAKernelTemplate<c10::BFloat16>",
            None,
            Term::Elementwise,
        ),
        ("void at::native::(anonymous namespace)::compute_grad_weight<c10::BFloat16, long>", None, Term::Embedding),
        ("void at::native::(anonymous namespace)::indexSelectLargeIndex<c10::BFloat16>", None, Term::Embedding),
        (
            "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<FusedAdamMathFunctor>",
            None,
            Term::Optimizer,
        ),
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", None, Term::AllReduce),
        ("ncclKernel_AllGather_RING_LL_Sum_int8_t(ncclWorkElem)", None, Term::AllGather),
        ("ncclDevKernel_ReduceScatter_Sum_f32_RING_LL", Some("_reduce_scatter_base"), Term::ReduceScatter),
        ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", Some("all_to_allv"), Term::AllToAll),
        ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", None, Term::Message),
        ("ncclDevKernel_Broadcast_RING_LL", Some("broadcast"), Term::OtherExchange),
        ("Memcpy HtoD (Pinned -> Device)", None, Term::CopyIn),
        ("Memcpy DtoH (Device -> Pinned)", None, Term::CopyOut),
        ("Memcpy DtoD (Device -> Device)", None, Term::Elementwise),
        ("my_own_kernel", None, Term::Unknown),
    ];

    #[test]
    fn kernels_are_known_by_their_names() {
        for (name, collective, term) in NAMES {
            assert_eq!(Term::of_kernel(name, collective), term, "{name}");
        }
    }
}
