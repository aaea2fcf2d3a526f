//! Temporal decoupling: one `MetaOp` after another, each on all devices that help it, as Megatron-LM and DeepSpeed run several tasks
//! (Spindle, section 5.1). Each has its best split into data and tensor parallelism, which stands for tuning by hand.

use train::multi_task::Work;
use train::multi_task::schedule::Turns;

use super::{Decided, Slot};

/// Decides.
pub fn decide(work: &Work) -> Decided {
    let mut start_s = 0.0;
    let mut slots = Vec::with_capacity(work.meta_ops.len());
    let mut narrow = 0;
    for (meta_op, wave) in (0..work.meta_ops.len()).zip(0_u32..) {
        let size = work.curves[meta_op].points().len() - 1;
        narrow += u32::from(work.curves[meta_op].largest().0 < work.n_devices());
        let slot = Slot { meta_op, first: 0, n_layers: work.n_layers(meta_op), size, wave, start_s, own: None };
        start_s = slot.end_s(work);
        slots.push(slot);
    }
    let notes = vec![format!("{narrow} of {} MetaOps gain nothing from all devices and leave some idle", slots.len())];
    Decided { slots, turns: Turns::Pieces, notes }
}
