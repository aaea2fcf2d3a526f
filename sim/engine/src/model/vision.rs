//! Encoders of images in front of a model: how an image becomes patches and tokens, and the parameters.
//!
//! Units: pixels, patches, tokens, parameters. An image is cut into square patches, a transformer without a causal mask computes them, and a
//! projector makes a token of each square of patches. Rules of sizes are those of the processors of huggingface/transformers v4.57:
//! `smart_resize` of Qwen2-VL, the fixed square of Gemma 3 (without pan and scan), the tiles of Llama 4.

/// Most pixels of a side that is taken for real.
pub const SIDE_MAX: u32 = 65_536;
/// An image that is longer over its short side is refused by Qwen's processors (`smart_resize`).
const ASPECT_MAX: u32 = 200;

/// Qwen/Qwen2-VL-7B-Instruct and Qwen/Qwen2.5-VL-7B-Instruct, preprocessor_config.json: `min_pixels`, `max_pixels`.
pub(super) const QWEN2_PIXELS: [u64; 2] = [3136, 12_845_056];
/// Qwen/Qwen3-VL-8B-Instruct, preprocessor_config.json: `shortest_edge`, `longest_edge`, both in pixels of the whole image.
pub(super) const QWEN3_PIXELS: [u64; 2] = [65_536, 16_777_216];
/// Tiles of an image, as in preprocessor_config.json of meta-llama/Llama-4-Maverick-17B-128E-Instruct (`max_patches`).
pub(super) const LLAMA4_TILES: u64 = 16;

/// Whose encoder it is: what it stores besides its matrices, and what else sets its layers apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tower {
    /// Qwen2-VL: norms with biases.
    Qwen2,
    /// Qwen2.5-VL: a gated feed-forward, norms without biases, windows.
    Qwen25,
    /// Qwen3-VL and Qwen3.5: learned positions, and projectors behind inner layers.
    Qwen3 {
        /// Rows of its table of positions.
        n_positions: u64,
        /// Projectors behind inner layers; what they give is added inside of the first layers of the model.
        n_inner: u64,
    },
    /// SigLIP as in Gemma 3: a mean over patches, a norm and one product make the tokens.
    SigLip,
    /// Llama 4: one patch more stands for the whole tile.
    Llama4,
}

/// How an image becomes patches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grid {
    /// Its sides are rounded to whole tokens and its pixels kept within limits.
    Resized {
        /// Fewest pixels.
        pixels_min: u64,
        /// Most pixels.
        pixels_max: u64,
    },
    /// One square, whatever it was.
    Square {
        /// Pixels of its side.
        side: u64,
    },
    /// Square tiles side by side, and one more of the whole image where there are several.
    Tiles {
        /// Pixels of a tile's side.
        side: u64,
        /// Most tiles.
        n_max: u64,
    },
}

/// Attention inside of squares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Squares {
    /// Patches of a square's side.
    pub side: u64,
    /// Layers that attend to the whole image all the same.
    pub n_whole: u64,
}

/// An encoder of images.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VisionEncoder {
    /// Whose it is.
    pub tower: Tower,
    /// Layers.
    pub n_layers: u64,
    /// Width.
    pub hidden: u64,
    /// Heads.
    pub n_heads: u64,
    /// Intermediate width of the feed-forward.
    pub intermediate: u64,
    /// Pixels of a patch's side.
    pub patch: u64,
    /// Frames that a patch spans: an image is repeated to so many.
    pub frames: u64,
    /// Patches of the side of a token.
    pub merge: u64,
    /// How an image becomes patches.
    pub grid: Grid,
    /// Squares that most layers attend within.
    pub squares: Option<Squares>,
    /// Products of the projector for a token, each with its inner and its outer width.
    pub projector: Vec<[u64; 2]>,
}

/// An image as an encoder sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Image {
    /// Tokens that the encoder gives.
    pub tokens: u32,
    /// Tokens of text that stand around them.
    pub marks: u32,
    /// Patches that are computed.
    pub patches: u32,
    /// Tiles, each of which attends to itself alone.
    pub tiles: u32,
}

/// Why an image cannot be encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "each message says what its fields are")]
pub enum NoImage {
    /// A side without pixels, or too many.
    #[error("{width} x {height} pixels: sides have 1 to {SIDE_MAX}")]
    Side { width: u32, height: u32 },
    /// Too long.
    #[error("{width} x {height} pixels: the processor refuses images that are over {ASPECT_MAX} times as long as wide")]
    Long { width: u32, height: u32 },
    /// A number of tokens that the encoder makes of no image.
    #[error("{tokens} tokens: the encoder makes {least} to {most} of an image")]
    Tokens { tokens: u32, least: u64, most: u64 },
}

impl VisionEncoder {
    /// Patches of a token.
    pub const fn patches_per_token(&self) -> u64 {
        self.merge * self.merge
    }

    /// Whether the feed-forward has three matrices in place of two.
    pub fn is_gated(&self) -> bool {
        self.tower == Tower::Qwen25
    }

    /// Whether positions turn queries and keys.
    pub fn is_rotary(&self) -> bool {
        self.tower != Tower::SigLip
    }

    /// Numbers of a patch: three colours of every frame.
    pub const fn inputs(&self) -> u64 {
        3 * self.frames * self.patch * self.patch
    }

    /// Layers that attend to squares alone.
    pub fn n_square_layers(&self) -> u64 {
        self.squares.map_or(0, |squares| self.n_layers.saturating_sub(squares.n_whole))
    }

    /// Projectors, those behind inner layers included.
    pub const fn n_projectors(&self) -> u64 {
        match self.tower {
            Tower::Qwen3 { n_inner, .. } => 1 + n_inner,
            _ => 1,
        }
    }

    /// Numbers that the model is given for a token.
    pub fn given_per_token(&self) -> u64 {
        self.n_projectors() * self.projector.last().map_or(0, |[_, outer]| *outer)
    }

    /// An image of so many pixels.
    ///
    /// # Errors
    /// Where the processor refuses it.
    pub fn image(&self, width: u32, height: u32) -> Result<Image, NoImage> {
        let is_side = |side: u32| (1..=SIDE_MAX).contains(&side);
        if !is_side(width) || !is_side(height) {
            return Err(NoImage::Side { width, height });
        }
        match self.grid {
            Grid::Resized { .. } if width.max(height) > ASPECT_MAX * width.min(height) => {
                Err(NoImage::Long { width, height })
            }
            Grid::Resized { pixels_min, pixels_max } => {
                let factor = self.patch * self.merge;
                let [wide, high] = resized([width, height], factor, [pixels_min, pixels_max]);
                // Marks of the beginning and the end.
                Ok(self.of_tokens_and_marks(wide * high, 2))
            }
            Grid::Square { side } => {
                let tokens = (side / self.patch / self.merge).pow(2);
                // Marks of the beginning and the end, and an empty line on both sides.
                Ok(self.of_tokens_and_marks(tokens, 4))
            }
            Grid::Tiles { side, n_max } => Ok(self.tiled(tiles([width.into(), height.into()], side, n_max), side)),
        }
    }

    /// An image of so many tokens.
    ///
    /// # Errors
    /// Where the encoder makes no such image.
    pub fn image_of(&self, tokens: u32) -> Result<Image, NoImage> {
        let pixels = (self.patch * self.merge).pow(2);
        let of_square = |side: u64| side * side / pixels;
        let n = u64::from(tokens);
        let most = self.tokens_max();
        let (least, marks) = match self.grid {
            Grid::Resized { pixels_min, .. } => (pixels_min.div_ceil(pixels).max(1), 2),
            Grid::Square { side } => (of_square(side), 4),
            Grid::Tiles { side, .. } => (of_square(side), 0),
        };
        let image = match self.grid {
            // Two tiles are one, and the whole besides, which nobody makes.
            Grid::Tiles { side, .. } => {
                let n_tiles = n / of_square(side);
                let is_made = n.is_multiple_of(of_square(side)) && n_tiles != 2;
                is_made.then(|| self.tiled([n_tiles.saturating_sub(1).max(1), 1], side))
            }
            Grid::Resized { .. } | Grid::Square { .. } => Some(self.of_tokens_and_marks(n.min(most), marks)),
        };
        image.filter(|_| (least..=most).contains(&n)).ok_or(NoImage::Tokens { tokens, least, most })
    }

    /// Tokens of the largest image.
    pub const fn tokens_max(&self) -> u64 {
        let pixels = (self.patch * self.merge).pow(2);
        match self.grid {
            Grid::Resized { pixels_max, .. } => pixels_max / pixels,
            Grid::Square { side } => side * side / pixels,
            Grid::Tiles { side, n_max } => (n_max + 1) * (side * side / pixels),
        }
    }

    /// An image in one piece.
    fn of_tokens_and_marks(&self, tokens: u64, marks: u32) -> Image {
        Image { tokens: small(tokens), marks, patches: small(tokens * self.patches_per_token()), tiles: 1 }
    }

    /// So many tiles in a row, and rows; one more shows the whole image where there are several. Marks stand at both ends, before the whole image,
    /// between tiles and behind rows.
    fn tiled(&self, [across, down]: [u64; 2], side: u64) -> Image {
        let is_cut = across * down > 1;
        let n = across * down + u64::from(is_cut);
        let patches = (side / self.patch).pow(2);
        let marks = 3 + if is_cut { across * down } else { 0 };
        Image {
            tokens: small(n * patches / self.patches_per_token()),
            marks: small(marks),
            patches: small(n * (patches + 1)),
            tiles: small(n),
        }
    }

    /// Parameters of a layer in matrices, with their biases.
    pub fn layer_parameters(&self) -> u64 {
        let (hidden, wide) = (self.hidden, self.intermediate);
        let attention = 4 * hidden * hidden + 4 * hidden;
        let n_in = if self.is_gated() { 2 } else { 1 };
        attention + (n_in + 1) * hidden * wide + n_in * wide + hidden
    }

    /// Parameters of all projectors.
    pub fn projector_parameters(&self) -> u64 {
        let has_biases = matches!(self.tower, Tower::Qwen2 | Tower::Qwen25 | Tower::Qwen3 { .. });
        let products: u64 =
            self.projector.iter().map(|[inner, outer]| inner * outer + if has_biases { *outer } else { 0 }).sum();
        let first = self.projector.first().map_or(0, |[inner, _]| *inner);
        match self.tower {
            Tower::Qwen2 => products + 2 * self.hidden,
            Tower::Qwen25 | Tower::SigLip => products + self.hidden,
            // Inner projectors have their norm behind the merging.
            Tower::Qwen3 { n_inner, .. } => (1 + n_inner) * products + 2 * self.hidden + n_inner * 2 * first,
            Tower::Llama4 => products,
        }
    }

    /// Parameters outside of layers and projectors, and those of norms: patches, positions, what stands for a tile.
    fn other_parameters(&self) -> u64 {
        let hidden = self.hidden;
        let patches = self.inputs() * hidden;
        let norm = if self.is_gated() { hidden } else { 2 * hidden };
        let per_tile = match self.grid {
            Grid::Square { side } | Grid::Tiles { side, .. } => (side / self.patch).pow(2),
            Grid::Resized { .. } => 0,
        };
        let more = match self.tower {
            Tower::Qwen2 | Tower::Qwen25 => 0,
            Tower::Qwen3 { n_positions, .. } => hidden + n_positions * hidden,
            Tower::SigLip => hidden + per_tile * hidden + norm,
            Tower::Llama4 => hidden + (per_tile + 1) * hidden + 2 * norm,
        };
        patches + self.n_layers * 2 * norm + more
    }

    /// All parameters, projectors included.
    pub fn n_parameters(&self) -> u64 {
        self.n_layers * self.layer_parameters() + self.projector_parameters() + self.other_parameters()
    }

    /// Parameters on one of so many GPUs that cut layers and projectors.
    pub fn parameters_of(&self, n_gpus: u64) -> u64 {
        let cut = self.n_layers * self.layer_parameters() + self.projector_parameters();
        cut.div_ceil(n_gpus.max(1)) + self.other_parameters()
    }
}

fn small(n: u64) -> u32 {
    u32::try_from(n).expect("sides and widths are bounded")
}

/// Tokens across and down: sides rounded to whole tokens, halves to the even number, and made smaller or larger where pixels are beyond their limits
/// (`smart_resize`).
fn resized([width, height]: [u32; 2], factor: u64, [pixels_min, pixels_max]: [u64; 2]) -> [u64; 2] {
    let (sides, factor_f) = ([f64::from(width), f64::from(height)], hw::real(factor));
    let tokens = sides.map(|side| hw::whole((side / factor_f).round_ties_even()));
    let pixels = tokens[0] * tokens[1] * factor * factor;
    let area = sides[0] * sides[1];
    if pixels > pixels_max {
        let by = (area / hw::real(pixels_max)).sqrt();
        sides.map(|side| hw::whole((side / by / factor_f).floor()).max(1))
    } else if pixels < pixels_min {
        let by = (hw::real(pixels_min) / area).sqrt();
        sides.map(|side| hw::whole((side * by / factor_f).ceil()))
    } else {
        tokens.map(|n| n.max(1))
    }
}

/// Tiles across and down: the canvas that enlarges the image least, else the one that shrinks it least; of several the smallest (`get_best_fit`).
fn tiles([width, height]: [u64; 2], side: u64, n_max: u64) -> [u64; 2] {
    let mut best: Option<([u64; 2], [u64; 2])> = None;
    for across in 1..=n_max {
        for down in 1..=n_max / across {
            // How much larger the image becomes, as a fraction.
            let (wide, high) = (across * side, down * side);
            let scale = if wide * height < high * width { [wide, width] } else { [high, height] };
            let is_better = best.is_none_or(|(other, [x, y])| {
                let (a, b) = (scale[0] * other[1], other[0] * scale[1]);
                let (grows, other_grows) = (scale[0] >= scale[1], other[0] >= other[1]);
                match (grows, other_grows) {
                    _ if a == b => across * down < x * y,
                    (true, true) => a < b,
                    (false, false) => a > b,
                    (grows, _) => grows,
                }
            });
            if is_better {
                best = Some((scale, [across, down]));
            }
        }
    }
    best.map_or([1, 1], |(_, tiles)| tiles)
}

#[cfg(test)]
mod tests;
