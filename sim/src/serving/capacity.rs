//! How many tokens a replica's memory holds beside the weights.
//!
//! Units: bytes per GPU. Weights are cut evenly over the tensor group; what the engine may use is a share of the device's memory, and the
//! framework, the graphs and the activations of an iteration take `reserved` of that.

use hw::Bytes;

use crate::serving::decode_attention::kv_bytes_per_token;
use crate::serving::step_cost::Deployment;

/// Memory of one GPU of a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Weights.
    pub weights: Bytes,
    /// Left for keys and values.
    pub kv: Bytes,
    /// Keys and values of a token.
    pub bytes_per_token: u64,
}

impl Capacity {
    /// Whole blocks of so many tokens.
    #[must_use]
    pub fn blocks(&self, block_tokens: u32) -> u32 {
        let blocks = self.kv.0 / (self.bytes_per_token * u64::from(block_tokens)).max(1);
        u32::try_from(blocks).unwrap_or(u32::MAX)
    }
}

/// Bytes of the weights on each GPU.
fn weights(deployment: &Deployment<'_>, tensor_degree: u32) -> u64 {
    (deployment.model.n_parameters() * deployment.dtype.bytes()).div_ceil(u64::from(tensor_degree))
}

/// Memory of a deployment that may use `usable` of the device.
///
/// # Errors
/// A sentence with the figures and the smallest tensor degree that would fit, when weights leave no room for a token.
pub fn of(deployment: &Deployment<'_>, usable: f64, reserved: Bytes) -> Result<Capacity, String> {
    let gpu = &deployment.cluster.gpu;
    let room = Bytes::from_f64(gpu.memory.as_f64() * usable).0.saturating_sub(reserved.0);
    let kv_of = |degree: u32| {
        let bytes_per_token = kv_bytes_per_token(deployment.model, degree, deployment.dtype.bytes());
        (room.saturating_sub(weights(deployment, degree)), bytes_per_token)
    };
    let (kv, bytes_per_token) = kv_of(deployment.tensor_degree);
    let weights_now = Bytes(weights(deployment, deployment.tensor_degree));
    if kv >= bytes_per_token {
        return Ok(Capacity { weights: weights_now, kv: Bytes(kv), bytes_per_token });
    }
    let fitting =
        [2, 4, 8, 16, 32, 64].into_iter().filter(|degree| *degree > deployment.tensor_degree).find(|degree| {
            let (kv, bytes_per_token) = kv_of(*degree);
            kv >= bytes_per_token
        });
    let advice =
        fitting.map_or_else(|| "larger GPUs are needed".to_owned(), |degree| format!("`tp = {degree}` would fit"));
    let gib = |bytes: f64| bytes / 1_073_741_824.0;
    Err(format!(
        "`{}` needs {:.1} GiB of weights per GPU, and {:.0} % of the {:.1} GiB of `{}` less {:.1} GiB reserved leave {:.1} GiB; {advice}",
        deployment.model.name,
        gib(weights_now.as_f64()),
        usable * 100.0,
        gib(gpu.memory.as_f64()),
        gpu.name,
        gib(reserved.as_f64()),
        gib(Bytes(room).as_f64()),
    ))
}

#[cfg(test)]
mod tests {
    use hw::{Dtype, Seconds};

    use super::*;

    fn of_model(name: &str, gpu: &str, tensor_degree: u32, reserved_gib: f64) -> Result<Capacity, String> {
        let model = crate::model::embedded(name).expect("listed");
        let cluster = hw::catalog::cluster(&hw::catalog::gpu(gpu).expect("listed"), 1, 8);
        let deployment = Deployment {
            model: &model,
            cluster: &cluster,
            tensor_degree,
            dtype: Dtype::Bf16,
            host_per_step: Seconds::ZERO,
            host_per_sequence: Seconds::ZERO,
        };
        of(&deployment, 0.9, Bytes::from_gib(reserved_gib))
    }

    #[test]
    fn blocks_are_those_that_an_engine_reported() {
        // vLLM 0.19 on an RTX 4090 (25,250,627,584 bytes, 90 % of it usable) reports 2,588 blocks of 16 tokens for Llama-3.1-8B
        // (casys-kaist/LLMServingSim @ 5daddb21a545, bench/examples/RTX4090): 5.43e9 bytes beside 16.06e9 of weights, so
        // 1.15 GiB are reserved there. Figures of 131,072 bytes per token and 16.06e9 of weights are ours.
        let on_a100 = of_model("llama-3-8b", "a100-sxm-80g", 1, 1.15).expect("fits");
        assert_eq!(on_a100.bytes_per_token, 131_072);
        assert!((on_a100.weights.as_f64() / 16.06e9 - 1.0).abs() < 1e-3);
        let expected = (80.0 * 1_073_741_824.0 * 0.9 - 1.15 * 1_073_741_824.0 - 16.06e9) / (131_072.0 * 16.0);
        assert!((f64::from(on_a100.blocks(16)) - expected).abs() < 10.0);
    }

    #[test]
    fn a_model_that_does_not_fit_is_told_what_would() {
        let why = of_model("llama-3-70b", "a100-sxm-80g", 1, 2.0).expect_err("141 GB of weights");
        assert!(why.contains("131.4 GiB of weights") && why.contains("`tp = 2` would fit"), "{why}");
    }
}
