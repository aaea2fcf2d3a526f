//! Exchanges among all GPUs of the machine.

use engine::task::Collective;

use super::super::nccl::Peers;
use super::{Bench, giga};
use crate::device::DeviceError;

/// The kinds that training is made of; nothing where there is one GPU.
pub fn all(bench: &mut Bench<'_>) -> Result<Vec<String>, DeviceError> {
    let Some(mut peers) = bench.peers.take() else { return Ok(Vec::new()) };
    let lines = measured(bench, &mut peers);
    *bench.peers = Some(peers);
    lines
}

fn measured(bench: &Bench<'_>, peers: &mut Peers) -> Result<Vec<String>, DeviceError> {
    let (n, bytes) = (peers.len(), bench.sizes.link / 4);
    let gpus = f64::from(n);
    let (part, whole) = ((gpus - 1.0) / gpus, bytes as f64);
    // Bytes that cross each GPU's link, as nccl-tests count the bandwidth of a bus.
    let kinds = [
        (Collective::AllReduce, "all-reduce", 2.0 * part * whole),
        (Collective::AllGather, "all-gather", part * whole),
        (Collective::ReduceScatter, "reduce-scatter", part * whole),
        (Collective::AllToAll, "all-to-all", part * whole),
        (Collective::RingShift, "ring shift", whole),
    ];
    let mut lines = Vec::new();
    for (kind, name, crossing) in kinds {
        peers.reserve(kind, bytes / 2, n, "a measurement")?;
        let seconds = bench.median(name, |_| peers.launch(kind, bytes / 2, n, bench.on))?;
        lines.push(format!("{name} of {bytes} bytes on {n} GPUs: {}", giga(crossing as usize, seconds)));
    }
    Ok(lines)
}
