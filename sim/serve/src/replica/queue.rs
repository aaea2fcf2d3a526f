//! The queue: in order of arrival, or of priority and then of arrival.
//!
//! By priority, whoever has the lowest number is admitted first, and when blocks run out the running sequence with the highest number gives way,
//! the last one admitted among equals. Nobody who runs gives way to somebody who waits. Source: vllm-project/vllm,
//! `--scheduling-policy priority`, `vllm/v1/core/sched/scheduler.py` (Apache-2.0), for which the order is (priority, arrival). Invariant: the seen part of
//! the queue is in order, and newcomers that the host has not seen stand behind it as they came.

use std::cmp::Ordering;

use super::{Replica, Waiting};

hw::words! {
    /// Who comes first.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Order: word {
        /// Whoever came first.
        Arrival = "fcfs",
        /// The lowest priority number, then whoever came first.
        Priority = "priority",
    }
}

impl Replica<'_> {
    /// Lower comes first; all are equal where arrival decides.
    pub(crate) fn class_of(&self, request: u32) -> u32 {
        match self.engine.limits.order {
            Order::Arrival => 0,
            Order::Priority => self.requests.priority_of(request as usize),
        }
    }

    /// Whether a newcomer comes before everybody who waits.
    pub(super) fn goes_ahead(&self, request: u32) -> bool {
        let first = self.waiting.front().map(|first| self.class_of(self.who(*first)));
        first.is_none_or(|first| self.class_of(request) < first)
    }

    /// Puts somebody whom the host sees behind its equals.
    pub(super) fn queue(&mut self, waiting: Waiting) {
        if self.engine.limits.order == Order::Arrival {
            return self.waiting.push_back(waiting);
        }
        let at = self.place(self.class_of(self.who(waiting)), Ordering::Greater);
        self.waiting.insert(at, waiting);
    }

    /// Puts a newcomer whom the host does not see yet at the end.
    pub(super) fn queue_unseen(&mut self, request: u32) {
        self.waiting.push_back(Waiting::New(request));
        self.n_unseen += 1;
    }

    /// Puts a sequence that has lost its blocks before its equals.
    pub(super) fn queue_first(&mut self, id: u32) {
        let at = self.place(self.class_of(self.slots[id as usize].request), Ordering::Equal);
        self.waiting.insert(at, Waiting::Again(id));
    }

    /// First position of the seen part whose class, compared with this one, is so or beyond.
    fn place(&self, class: u32, from: Ordering) -> usize {
        let (mut low, mut high) = (0, self.waiting.len() - self.n_unseen);
        while low < high {
            let middle = usize::midpoint(low, high);
            if self.class_of(self.who(self.waiting[middle])).cmp(&class) >= from {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        low
    }

    /// The host sees everybody who waits or is to come.
    pub(super) fn see_all(&mut self) {
        self.see_expected();
        let n_unseen = std::mem::take(&mut self.n_unseen);
        if n_unseen == 0 || self.engine.limits.order == Order::Arrival {
            return;
        }
        let newcomers = self.waiting.split_off(self.waiting.len() - n_unseen);
        for waiting in newcomers {
            self.queue(waiting);
        }
    }

    /// Leaves in the order of admission who still runs.
    pub(super) fn drop_void(&mut self) {
        let slots = &self.slots;
        self.order.retain(|(id, epoch)| slots[*id as usize].epoch == *epoch);
    }

    /// Who gives way, by its place in the order of admission. By priority void entries go.
    pub(super) fn gives_way(&mut self) -> usize {
        let last = match self.engine.limits.order {
            Order::Arrival => self.order.len().checked_sub(1),
            Order::Priority => {
                self.drop_void();
                let class = |at: &usize| self.class_of(self.slots[self.order[*at].0 as usize].request);
                (0..self.order.len()).max_by_key(class)
            }
        };
        last.expect("blocks are held by someone who runs")
    }
}
