//! What a framework makes of a scenario: which layers of the model it times, which it trains besides, and how its modules run.

use std::path::Path;

use engine::Model;
use hw::{Capability, Dtype, Format, Gpu, Maker};
use train::Problem;
use train::problem::{AttentionKernel, Execution, Framework, Frozen, Loss, Overlap, TorchModules};

use super::training::{self, Training};
use crate::{formats, model};
use input::diagnostic::Code;
use input::reader::{Place, Reader};

/// Reads `[model]`, with its place: a framework times layers by their kinds, formulas take all as attention to every token.
pub fn model(reader: &mut Reader<'_>, folder: &Path) -> Option<(Model, Place)> {
    let word = reader.peek_in("training", "framework");
    let is_of_framework = word.is_some_and(|(word, _)| training::is_of_framework(&word));
    let read = if is_of_framework { model::by_layer } else { model::by_formulas };
    let section = reader.section("model");
    let at = section.at();
    Some((read(section, folder)?, at))
}

/// How the weights of a model are packed in its file.
pub fn packed(model: Option<&(Model, Place)>) -> Option<Frozen> {
    model.and_then(|(model, _)| model.packed)
}

/// Tells of windows that formulas take for whole.
pub fn windows(reader: &mut Reader<'_>, problem: &Problem, at: Place) {
    if problem.execution.framework == Framework::Formulas {
        let longest = problem.workload.lengths.iter().copied().max().unwrap_or(0);
        model::windows(reader, &problem.model, longest, at);
    }
}

/// The model with the layers that a step has: Megatron-Core trains those that predict further tokens as layers of their own.
/// A number of them stands for the model's own.
pub fn trained(model: Model, framework: Framework, predicting_layers: Option<u64>) -> Model {
    if framework != Framework::MegatronCore {
        return model;
    }
    let n = predicting_layers.unwrap_or(model.n_predicting);
    model.with_predicting(n)
}

/// Takes away a loss that the framework does not have, once it was said to change nothing.
pub fn without_other_loss(mut problem: Problem) -> Problem {
    let execution = &mut problem.execution;
    if execution.framework == Framework::MegatronCore && matches!(execution.loss, Loss::Chunked | Loss::ChunkedNll) {
        execution.loss = Loss::Unfused;
    }
    problem
}

/// PyTorch modules hide exchanges of the tensor group by cutting them into pieces beside their products.
pub fn in_pieces(framework: Framework, overlap: &Overlap) -> Framework {
    framework.with_modules(|modules| TorchModules { in_pieces: overlap.tensor > 0.0, ..modules })
}

/// Refuses a loss with the head's product on cards that its kernel is not for (`fused_linear_cross_entropy.py`: compute capability 10).
fn loss_of_card(reader: &mut Reader<'_>, execution: &Execution, gpu: &Gpu) {
    let loss = execution.loss;
    let is_of_megatron = execution.framework.torch().is_none();
    if loss != Loss::WithHead || !is_of_megatron || gpu.capability() == Capability::Ten {
        return;
    }
    let what = format!("`{}` has no kernel for `training.loss = \"{}\"`", gpu.name, loss.word());
    let at = reader.peek_in("training", "loss").and_then(|(_, at)| at);
    let help = "the kernel is of Blackwell for servers; allowed are unfused, native and te";
    reader.refuse(Code::WrongOperation, at, what, help);
}

/// Refuses formats and kernels that the card does not have, where the step is on such cards alone.
pub fn kernels_of_card(reader: &mut Reader<'_>, training: &mut Training, gpu: &Gpu) {
    named_kernel(reader, training, &[gpu]);
    kernels_of_one(reader, training, gpu);
}

/// The same where others are beside it, with `named_kernel` for all together.
pub fn kernels_of_one(reader: &mut Reader<'_>, training: &mut Training, gpu: &Gpu) {
    attention_of_card(reader, training, gpu);
    sixteen_bits_of_card(reader, training, gpu);
    formats_of_card(reader, training, gpu);
    loss_of_card(reader, &training.execution, gpu);
}

/// Kernels of attention have curves of their own on Hopper alone: FlashAttention 2, which PyTorch's modules run there, and cuDNN's, which Megatron-Core runs there and which
/// stands for FlashAttention 3. Formulas have no kernels. FlashAttention 3 is written for Hopper (Dao-AILab/flash-attention, README: "H100 / H800 GPU").
pub fn named_kernel(reader: &mut Reader<'_>, training: &Training, gpus: &[&Gpu]) {
    let (kernel, framework) = (training.execution.attention, training.execution.framework);
    let is_hopper = gpus.iter().any(|gpu| hw::catalog::generation(&gpu.name) == Some(hw::Generation::Hopper));
    let is_torch = framework.torch().is_some();
    let at = training.attention_at.clone().flatten();
    let (has_curve, needed) = match kernel {
        AttentionKernel::Flash | AttentionKernel::Unfused => return,
        AttentionKernel::FlashTwo => (
            framework == Framework::MegatronCore,
            "\"megatron-core\"` on a card of Hopper, where cuDNN's kernel is the usual one",
        ),
        AttentionKernel::FlashThree | AttentionKernel::CuDnn => (
            is_torch,
            "\"pytorch\"` or `\"deepspeed\"` on a card of Hopper, where FlashAttention 2 is the usual kernel",
        ),
    };
    if kernel == AttentionKernel::FlashThree && !is_hopper {
        let help =
            "it is written for Hopper; `training.attention = \"flash\"` is what the framework runs on other cards";
        return reader.refuse(Code::WrongOperation, at, "FlashAttention 3 runs on none of these cards", help);
    }
    if !(has_curve && is_hopper) {
        let what = format!("`training.attention = \"{}\"` changes nothing", kernel.word());
        reader.warn(Code::NoEffect, at, what, format!("it needs `framework = {needed}"));
    } else if kernel == AttentionKernel::FlashThree {
        let what = "FlashAttention 3 has no measured backward here";
        let help = "cuDNN's kernels stand for it, which are as fast within 3 % where both were measured; the interval is wider";
        reader.warn(Code::WrongOperation, at, what, help);
    }
}

/// Flash attention and cuDNN's fused kernels need compute capability 8.0 (pytorch/pytorch and Dao-AILab/flash-attention, `flash_api.cpp`: "FlashAttention only
/// supports Ampere GPUs or newer"; NVIDIA/TransformerEngine, `get_attention_backend`). Before it Megatron-LM computes the score matrix. PyTorch has its
/// memory-efficient kernel, which makes none either (`can_use_mem_efficient_attention`), and is slower.
fn attention_of_card(reader: &mut Reader<'_>, training: &mut Training, gpu: &Gpu) {
    let execution = &mut training.execution;
    if !execution.attention.is_fused() || !hw::catalog::is_before_ampere(&gpu.name) {
        return;
    }
    let given = training.attention_at.clone();
    let what = format!("`{}` has no flash attention, which needs compute capability 8.0", gpu.name);
    let at = given.clone().flatten();
    if execution.framework.torch().is_some() {
        let help = "PyTorch's memory-efficient kernel makes no score matrix either, so memory is right; its time is that of flash attention here, which is too short";
        reader.warn(Code::WrongOperation, at, what, help);
    } else if given.is_some() {
        let help = "`training.attention = \"unfused\"` is what runs there";
        reader.warn(Code::WrongOperation, at, what, help);
    } else {
        execution.attention = AttentionKernel::Unfused;
        let help = "the score matrix is computed; `training.attention = \"unfused\"` says so";
        reader.warn(Code::WrongOperation, at, what, help);
    }
}

/// Says that a card without bf16 computes in fp16.
fn sixteen_bits_of_card(reader: &mut Reader<'_>, training: &Training, gpu: &Gpu) {
    if training.dtype != Dtype::Bf16 || !hw::catalog::is_before_ampere(&gpu.name) {
        return;
    }
    let at = reader.peek_in("training", "dtype").and_then(|(_, at)| at);
    let what = format!("`{}` multiplies no bf16: fp16 is taken, which takes as long", gpu.name);
    let help = "`training.dtype = \"fp16\"` says so; fp16 needs loss scaling, whose checks are not counted";
    reader.warn(Code::WrongOperation, at, what, help);
}

/// Formats of weights that are served alone: neither Transformer Engine nor torchao multiplies gradients so.
const NOT_TRAINED: [Format; 5] = [Format::Int8, Format::Int8Weights, Format::Int4, Format::Int4By32, Format::Mxfp4];

/// Refuses formats of products that the card does not multiply, and attention in 8 bits where nothing runs it.
fn formats_of_card(reader: &mut Reader<'_>, training: &Training, gpu: &Gpu) {
    let Some(products) = training.execution.formats else { return };
    let at = training.products_at.clone();
    if let Some(format) = products.products().into_iter().find(|format| NOT_TRAINED.contains(format)) {
        let what = format!("no framework here trains with products in {}", format.word());
        let help = "allowed are bf16, fp16, fp32, fp8, fp8-block, mxfp8 and nvfp4";
        reader.refuse(Code::WrongOperation, at, what, help);
    } else if let Some(what) = formats::misfit(&products, gpu) {
        let help = format!("it multiplies {}", formats::multiplied(gpu));
        reader.refuse(Code::WrongOperation, at, what, help);
    } else if products.kv == Dtype::Fp8 {
        narrow_attention(reader, training, gpu, at);
    }
}

/// Attention in 8 bits is Transformer Engine's, by cuDNN's fused kernel.
fn narrow_attention(reader: &mut Reader<'_>, training: &Training, gpu: &Gpu, at: Place) {
    let execution = &training.execution;
    let missing = [
        (execution.framework != Framework::MegatronCore, "`framework = \"megatron-core\"`"),
        (execution.attention != AttentionKernel::Flash, "`attention = \"flash\"`"),
        (!gpu.multiplies(Format::Fp8), "a card with products in 8 bits"),
        (gpu.maker() != Maker::Nvidia, "cuDNN, which is of CUDA"),
    ];
    if let Some((_, needs)) = missing.iter().find(|(is_missing, _)| *is_missing) {
        let what = "`dot_product_attention = \"fp8\"` has no kernel here";
        reader.refuse(Code::WrongOperation, at, what, format!("it needs {needs}"));
    }
}
