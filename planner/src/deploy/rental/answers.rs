//! Answers that rows share: those of other policies, and of stricter limits. Each is found once, whoever asks first; who asks second waits.
//!
//! An answer is a function of its key for one question at one set of rates, so neither threads nor order change it. Nobody waits in a
//! circle: a policy asks those that decide less, and itself within stricter limits.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::Decided;
use crate::deploy::RentalError;
use crate::deploy::objective::Limit;
use crate::deploy::policies::Renting;

type Answer = Result<Decided, RentalError>;

/// Who was asked, the limit, and stricter ones beside it.
type Key = (usize, u64, Vec<u64>);

/// Answers so far.
#[derive(Clone, Debug, Default)]
pub struct Answers(Arc<Mutex<BTreeMap<Key, Arc<OnceLock<Answer>>>>>);

impl Answers {
    /// What a policy answers within a limit beside stricter ones.
    pub(super) fn of(
        &self,
        (policy, limit, stricter): (&Renting, Limit, &[f64]),
        find: impl FnOnce() -> Answer,
    ) -> Answer {
        let stricter = stricter.iter().map(|value| value.to_bits()).collect();
        // Rows of the table of policies never move.
        let key = (std::ptr::from_ref(policy).addr(), limit.value().to_bits(), stricter);
        let answer = Arc::clone(self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(key).or_default());
        answer.get_or_init(find).clone()
    }
}
