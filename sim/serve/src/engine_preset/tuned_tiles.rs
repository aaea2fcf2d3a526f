//! Shapes of experts in 16 bits for which vLLM has a file of tuned tiles. Data: vllm/model_executor/layers/fused_moe/configs of 0.11.1, files without a word for a
//! number format. Experts of other shapes run with tiles by default.
//!
//! Two shapes on H100 are in files of the device `NVIDIA_H100`, which no card calls itself. Files of A100 are left out: its curve holds both kinds of shapes.

/// Experts on a GPU, and the inner width of one there.
type Shape = (u64, u64);

/// Tuned shapes by card of the catalogue.
const TUNED: [(&str, &[Shape]); 3] = [("h100-sxm", &H100), ("h200-sxm", &H200), ("b200", &B200)];

const H100: [Shape; 26] = [
    (1, 3072),
    (8, 1792),
    (8, 2048),
    (8, 3584),
    (8, 4096),
    (8, 7168),
    (16, 1344),
    (16, 1792),
    (16, 2688),
    (62, 256),
    (62, 512),
    (64, 320),
    (64, 640),
    (64, 1280),
    (64, 8960),
    (72, 384),
    (72, 768),
    (128, 192),
    (128, 512),
    (128, 928),
    (128, 1856),
    (128, 8960),
    (256, 512),
    (512, 128),
    (512, 256),
    (512, 512),
];

const H200: [Shape; 20] = [
    (8, 1792),
    (8, 2048),
    (8, 3584),
    (8, 4096),
    (8, 7168),
    (8, 14_336),
    (16, 1024),
    (16, 2048),
    (64, 320),
    (64, 640),
    (64, 1280),
    (64, 2560),
    (128, 192),
    (128, 384),
    (128, 768),
    (128, 1024),
    (512, 64),
    (512, 128),
    (512, 256),
    (512, 512),
];

const B200: [Shape; 7] = [(16, 1024), (32, 1408), (64, 1408), (512, 64), (512, 128), (512, 256), (512, 512)];

/// Whether experts of a shape run with tiles by default on a card; `false` where no file of the card is known here.
pub(super) fn are_default(gpu: &str, shape: Shape) -> bool {
    TUNED.iter().find(|(card, _)| *card == gpu).is_some_and(|(_, tuned)| !tuned.contains(&shape))
}
