//! Tokens as the public processors count them, and parameters of public checkpoints.

use super::*;
use crate::model::embedded;

fn encoder(name: &str) -> VisionEncoder {
    *embedded(name).expect(name).vision.expect(name)
}

#[test]
fn sides_are_rounded_to_whole_tokens() {
    // Qwen2.5-VL: 28 pixels are a token. 1024 / 28 = 36.57 becomes 37; 512 / 28 = 18.29 becomes 18.
    let qwen = encoder("qwen2.5-vl-7b");
    let tokens = |width, height| qwen.image(width, height).expect("an image").tokens;
    assert_eq!(tokens(28, 28), 4, "56 x 56 is the least");
    assert_eq!([tokens(512, 512), tokens(1024, 1024), tokens(1536, 1536)], [18 * 18, 37 * 37, 55 * 55]);
    // 2044 x 1372 of the model card's example picture: 73 by 49.
    assert_eq!(tokens(2044, 1372), 73 * 49);
    // 42 / 28 and 70 / 28 are halves: to the even number, as Python rounds. 2 by 2 are just the least.
    assert_eq!(tokens(70, 70), 4);
    // 16,384 tokens at most: 4000 x 4000 becomes 3584 x 3584.
    assert_eq!([tokens(3584, 3584), tokens(4000, 4000), tokens(65_536, 65_536)], [16_384; 3]);
    let image = qwen.image(512, 512).expect("an image");
    assert_eq!((image.patches, image.tiles, image.marks), (36 * 36, 1, 2));
    // Qwen3-VL: 32 pixels are a token, and 256 x 256 pixels the least.
    let qwen = encoder("qwen3-vl-8b");
    assert_eq!(qwen.image(1024, 1024).expect("an image").tokens, 1024);
    assert_eq!(qwen.image(100, 100).expect("an image").tokens, 64);
}

#[test]
fn gemma_makes_256_tokens_of_every_image() {
    let gemma = encoder("gemma-3-27b");
    for (width, height) in [(1, 1), (640, 480), (4000, 100)] {
        let image = gemma.image(width, height).expect("an image");
        assert_eq!((image.tokens, image.patches), (256, 4096));
    }
}

#[test]
fn llama_cuts_an_image_into_tiles_and_shows_the_whole_besides() {
    let llama = encoder("llama-4-maverick");
    let image = |width, height| llama.image(width, height).expect("an image");
    // One tile: 24 by 24 patches and one that stands for the tile; 144 tokens.
    assert_eq!(image(336, 336), Image { tokens: 144, marks: 3, patches: 577, tiles: 1 });
    assert_eq!(image(300, 200).tiles, 1);
    // Two by two, and the whole.
    assert_eq!((image(512, 512).tokens, image(512, 512).tiles), (5 * 144, 5));
    // Twice as wide as high: two tiles side by side.
    assert_eq!(image(672, 336).tiles, 3);
    // Sixteen at most.
    assert_eq!(image(5000, 5000).tiles, 17);
    // Marks: three, one between two tiles of a row, one behind each row.
    assert_eq!((image(672, 336).marks, image(512, 512).marks), (3 + 1 + 1, 3 + 2 + 2));
}

#[test]
fn images_that_processors_refuse_are_refused() {
    let qwen = encoder("qwen2.5-vl-7b");
    assert!(matches!(qwen.image(0, 10), Err(NoImage::Side { .. })));
    assert!(matches!(qwen.image(70_000, 10), Err(NoImage::Side { .. })));
    assert!(matches!(qwen.image(6030, 30), Err(NoImage::Long { .. })));
    assert!(qwen.image(6000, 30).is_ok());
    assert_eq!(qwen.image_of(1369).expect("1369 tokens"), qwen.image(1024, 1024).expect("an image"));
    assert!(matches!(qwen.image_of(16_385), Err(NoImage::Tokens { most: 16_384, .. })));
    assert!(encoder("gemma-3-27b").image_of(255).is_err() && encoder("gemma-3-27b").image_of(256).is_ok());
    assert!(encoder("llama-4-maverick").image_of(288).is_err() && encoder("llama-4-maverick").image_of(720).is_ok());
}

#[test]
fn parameters_are_those_of_the_public_checkpoints() {
    // Billions of all tensors, as the hub shows them for Qwen/Qwen2.5-VL-7B-Instruct and Qwen/Qwen3-VL-8B-Instruct.
    for (name, expected) in [("qwen2.5-vl-7b", 8.29), ("qwen3-vl-8b", 8.77)] {
        let model = embedded(name).expect(name);
        let found = hw::real(model.n_parameters() + model.vision.expect("an encoder").n_parameters()) / 1e9;
        assert!((found - expected).abs() < 0.005, "{name}: {found} B");
    }
    let millions = |name: &str| hw::real(encoder(name).n_parameters()) / 1e6;
    // arXiv:2503.19786, table 1: 417 M without the projector.
    let gemma = millions("gemma-3-27b") - 1152.0 * 5377.0 / 1e6;
    assert!((gemma - 417.0).abs() < 0.5, "{gemma} M");
    // vLLM's recipe for Qwen2.5-VL names 675 M.
    let qwen = millions("qwen2.5-vl-7b");
    assert!((qwen - 675.0).abs() < 2.0, "{qwen} M");
    let llama = millions("llama-4-maverick");
    assert!((llama - 871.9).abs() < 0.1, "{llama} M: 850.9 M and a projector of 4096 x 5120");
}

#[test]
fn a_tensor_group_cuts_layers_and_not_the_rest() {
    let qwen = encoder("qwen2.5-vl-7b");
    assert_eq!(qwen.parameters_of(1), qwen.n_parameters());
    let rest = qwen.n_parameters() - 32 * qwen.layer_parameters() - qwen.projector_parameters();
    assert_eq!(qwen.parameters_of(4), (qwen.n_parameters() - rest).div_ceil(4) + rest);
}
