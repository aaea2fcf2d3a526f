//! Why a step takes longer than its lower bound: the causes, their keys in results and their names for people.

hw::words! {
    /// Why time is lost.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub enum Cause: key, name {
        /// Waiting for slower ranks.
        Imbalance = ("lost_imbalance_s", "imbalance between ranks"),
        /// Waiting in a pipeline.
        Bubble = ("lost_bubble_s", "pipeline bubbles"),
        /// Communication that nothing hides.
        Communication = ("lost_communication_s", "exposed communication"),
        /// Kernels below their best size, start-ups, host time.
        Kernel = ("lost_kernel_s", "kernels below their best efficiency"),
        /// Forward computed again.
        Recompute = ("lost_recompute_s", "recompute"),
        /// Padded tokens.
        Padding = ("lost_padding_s", "padding"),
        /// Copies to or from the host that nothing hides.
        Offload = ("lost_offload_s", "offload stalls"),
        /// What computation takes longer on stragglers than on healthy devices.
        Straggler = ("lost_straggler_s", "slow devices"),
        /// Changes from one plan to another.
        Replan = ("lost_replan_s", "changes of plan"),
        /// What is left; nothing, unless a bound were wrong.
        Other = ("lost_other_s", "other"),
    }
}
