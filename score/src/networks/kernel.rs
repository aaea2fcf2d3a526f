//! Kernels of a model in 32 bits as operators with their sizes. Sizes are b, m, n, k of products (m rows of n columns by n of k), rows and width of
//! others.

/// Words of operators with one input or one tensor more: what they compute does not matter, as bytes bound them.
pub(super) const UNARY: &str = "addu";
pub(super) const BINARY: &str = "mul";
/// Tensors that dropout moves over those of an operator with one input: its mask has a byte per element.
pub(super) const DROPOUT: f64 = 9.0 / 8.0;
/// The same of a sum over rows, and of a fill: they read or write alone.
pub(super) const ONE_WAY: f64 = 0.5;
/// Backward of a softmax over forward: gradient and result are read. Of a norm: gradient and input are read twice.
pub(super) const SOFTMAX_BACKWARD: f64 = 1.5;
pub(super) const NORM_BACKWARD: f64 = 2.5;

/// An operator that runs so often.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Kernel {
    pub(super) n: f64,
    pub(super) op: &'static str,
    pub(super) sizes: [f64; 4],
}

impl Kernel {
    /// A product of so many rows with a weight.
    pub(super) const fn linear(n: f64, rows: f64, from: f64, to: f64) -> Self {
        Self { n, op: "linear", sizes: [1.0, rows, from, to] }
    }

    /// An operator that is no product.
    pub(super) const fn flat(n: f64, op: &'static str, rows: f64, width: f64) -> Self {
        Self { n, op, sizes: [rows, width, 1.0, 1.0] }
    }

    /// The same so many times.
    pub(super) fn times(self, n: f64) -> Self {
        Self { n: n * self.n, ..self }
    }
}

/// Sizes of a model and of what runs through it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    pub(super) tokens: f64,
    pub(super) batch: f64,
    pub(super) layers: f64,
    pub(super) hidden: f64,
    pub(super) heads: f64,
    pub(super) vocab: f64,
}

impl Sizes {
    pub(super) fn rows(&self) -> f64 {
        self.tokens * self.batch
    }

    /// An operator over the residual stream, so often in every layer.
    pub(super) fn narrow(&self, n: f64, op: &'static str) -> Kernel {
        Kernel::flat(n * self.layers, op, self.rows(), self.hidden)
    }

    /// Over what the first product of the feed-forward writes.
    pub(super) fn wide(&self, n: f64, op: &'static str) -> Kernel {
        Kernel::flat(n * self.layers, op, self.rows(), 4.0 * self.hidden)
    }

    /// Over the scores of attention.
    pub(super) fn scores(&self, n: f64, op: &'static str) -> Kernel {
        Kernel::flat(n * self.layers, op, self.batch * self.heads * self.tokens, self.tokens)
    }

    /// Norms of all layers, and the last one.
    pub(super) fn norms(&self) -> Kernel {
        Kernel { n: 2.0 * self.layers + 1.0, ..self.narrow(0.0, "ln") }
    }
}

/// Operations of all products: two for each multiplication.
#[cfg(test)]
pub(super) fn operations(kernels: &[Kernel]) -> f64 {
    let is_product = |kernel: &&Kernel| matches!(kernel.op, "bmm" | "linear");
    kernels.iter().filter(is_product).map(|kernel| 2.0 * kernel.n * kernel.sizes.iter().product::<f64>()).sum()
}
