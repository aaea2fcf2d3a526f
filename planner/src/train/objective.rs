//! What is sought of plans of training: of a layout on cards of one type, and of stages on mixed ones.

use crate::proof::Aim;

/// What is sought. Every plan of a scenario computes the same tokens, so fewest seconds or dollars of a step are most tokens per second or dollar.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Objective {
    /// Seconds of a step, to be few.
    #[default]
    Seconds,
    /// Dollars of a step, to be few.
    Usd,
    /// Tokens that a run of days keeps in a second, to be many.
    RunTokens,
    /// Tokens that a run of days keeps for a dollar, to be many.
    RunTokensPerUsd,
}

impl Objective {
    /// What is counted.
    pub const fn aim(self) -> Aim {
        match self {
            Self::Seconds => Aim::Seconds,
            Self::Usd => Aim::Usd,
            Self::RunTokens => Aim::TokensPerS,
            Self::RunTokensPerUsd => Aim::TokensPerUsd,
        }
    }

    /// The metric of a row that is most then.
    pub const fn metric(self) -> &'static str {
        match self {
            Self::Seconds => "tokens_per_s",
            Self::Usd => "tokens_per_usd",
            Self::RunTokens => "run_tokens_per_s",
            Self::RunTokensPerUsd => "run_tokens_per_usd",
        }
    }

    /// Whether a run of days decides.
    pub const fn is_of_run(self) -> bool {
        matches!(self, Self::RunTokens | Self::RunTokensPerUsd)
    }

    /// Whether dollars decide, or have a part in it.
    pub const fn is_of_dollars(self) -> bool {
        matches!(self, Self::Usd | Self::RunTokensPerUsd)
    }
}
