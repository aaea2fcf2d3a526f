//! Why a profile, or a part of it, cannot be used.

/// What is wrong with a file of costs.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[expect(missing_docs, reason = "each message says what its fields are")]
pub enum Unusable {
    /// It is not TOML, or has other keys.
    #[error("line {line}: {message}")]
    Syntax { line: usize, message: String },
    /// It is of another version.
    #[error("schema is `{found}`, expected `{expected}`")]
    Schema { found: String, expected: &'static str },
    /// A part of it is wrong.
    #[error("{part}: {why}")]
    In { part: String, why: Box<Unusable> },
    /// A name is none of those that are known.
    #[error("allowed are {allowed}")]
    NotAllowed { allowed: String },
    /// An exchange over nodes that cannot be.
    #[error("`n_nodes` has to divide the ranks, and `port_gb_per_s` to be a bandwidth")]
    Nodes,
    /// A kernel has a name that no kernel has.
    #[error("no kernel has that name; allowed are {allowed}")]
    NoKernel { allowed: String },
    /// Points of a curve are not sorted, not positive or not pairs.
    #[error(
        "`bytes` and `seconds` must be positive, of one length, `bytes` increasing and `seconds` at most {seconds_max:e}"
    )]
    Points { seconds_max: f64 },
    /// Knots of a grid are not sorted or not positive.
    #[error("knots of axis `{axis}` must be positive and increasing")]
    Knots { axis: String },
    /// A grid has more or fewer values than knots.
    #[error("the axes make {knots} knots, found {values} values")]
    Values { knots: usize, values: usize },
    /// Logarithms of a grid are out of range.
    #[error("every value must be finite and within {limit} of 0")]
    TooLarge { limit: f64 },
    /// A grid has more or fewer axes than its kernel has sizes.
    #[error("it has {found} axes, expected {expected}")]
    Axes { found: usize, expected: usize },
    /// A figure is out of range.
    #[error("{what} must be from {low} to {high}")]
    Range { what: String, low: String, high: String },
    /// Quantiles of residuals do not lie around 1.
    #[error("residual quantiles must lie around 1, from 1e-6 to 1e6, found {low} and {high}")]
    Residuals { low: f64, high: f64 },
    /// A law is of another kind than its kernel.
    #[error("its law is that of another kind of kernel")]
    ForeignLaw,
    /// A collective is unknown, or of one rank.
    #[error("allowed are {allowed} of 2 or more")]
    Collective { allowed: String },
    /// A link lacks a figure.
    #[error("a link needs `alpha_s` of at least 0, and positive bandwidths and `bytes_max`")]
    Link,
    /// A kernel of the host runs on no thread, or its grid has not two axes.
    #[error("it needs at least one thread and two axes, found {threads} and {axes}")]
    HostKernel { threads: u32, axes: usize },
}

impl Unusable {
    /// The same as of a part of something larger.
    pub fn of(self, part: impl Into<String>) -> Self {
        Self::In { part: part.into(), why: Box::new(self) }
    }

    /// A figure that is out of range.
    pub fn range(what: impl Into<String>, low: impl ToString, high: impl ToString) -> Self {
        Self::Range { what: what.into(), low: low.to_string(), high: high.to_string() }
    }
}
