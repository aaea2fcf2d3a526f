//! Collectives among the GPUs of this machine by NCCL: one communicator per group size, one stream and two buffers per GPU.
//!
//! Rank 0 is the device that was opened, on the stream that asks, so its events time the exchange.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaSlice, CudaStream, DevicePtr, DevicePtrMut};
use cudarc::nccl::{result, sys};
use sim::task::Collective;

use super::gemm::Stream;
use crate::device::DeviceError;

/// The other end of an exchange: a GPU with a stream and buffers.
struct Peer {
    context: Arc<CudaContext>,
    stream: Arc<CudaStream>,
    sent: CudaSlice<u16>,
    received: CudaSlice<u16>,
}

/// GPUs of this machine that exchange.
pub struct Peers {
    peers: Vec<Peer>,
    groups: BTreeMap<u32, Vec<sys::ncclComm_t>>,
    first: usize,
}

fn wrong(what: &str) -> impl Fn(result::NcclError) -> DeviceError + '_ {
    move |error| DeviceError::Lost(format!("NCCL, {what}: {:?}", error.0))
}

impl Peers {
    /// All GPUs, the one of this number first; `None` where there is one GPU only, or no NCCL.
    pub fn find(first: usize) -> Option<Self> {
        #[expect(unsafe_code, reason = "only looks for a library")]
        // SAFETY: loading a library of this name runs its initialisers only.
        let is_there = unsafe { sys::is_culib_present() };
        let n = usize::try_from(CudaContext::device_count().ok()?).ok()?;
        if n < 2 || !is_there {
            return None;
        }
        let order = std::iter::once(first).chain((0..n).filter(|ordinal| *ordinal != first));
        let peers = order.map(|ordinal| {
            let context = CudaContext::new(ordinal).ok()?;
            let stream = context.new_stream().ok()?;
            let buffer = || stream.alloc_zeros::<u16>(1).ok();
            Some(Peer { sent: buffer()?, received: buffer()?, stream, context })
        });
        Some(Self { peers: peers.collect::<Option<Vec<Peer>>>()?, groups: BTreeMap::new(), first })
    }

    /// How many they are.
    pub fn len(&self) -> u32 {
        u32::try_from(self.peers.len()).unwrap_or(1)
    }

    /// Makes room and a communicator for an exchange of so many elements as its kind counts them.
    pub fn reserve(&mut self, kind: Collective, elements: usize, n: u32) -> Result<(), DeviceError> {
        let (sent, received) = crate::cpu::exchange_sizes(kind, elements, n as usize);
        for peer in self.peers.iter_mut().take(n as usize) {
            let failed = |error: cudarc::driver::DriverError| DeviceError::Lost(format!("buffer of a peer: {error}"));
            peer.context.bind_to_thread().map_err(failed)?;
            if peer.sent.len() < sent {
                peer.sent = peer.stream.alloc_zeros(sent).map_err(failed)?;
            }
            if peer.received.len() < received {
                peer.received = peer.stream.alloc_zeros(received).map_err(failed)?;
            }
        }
        if !self.groups.contains_key(&n) {
            let ordinals: Vec<i32> = self
                .peers
                .iter()
                .take(n as usize)
                .map(|peer| i32::try_from(peer.context.ordinal()).unwrap_or(0))
                .collect();
            let mut group: Vec<sys::ncclComm_t> = vec![std::ptr::null_mut(); n as usize];
            let count = i32::try_from(n).unwrap_or(0);
            #[expect(unsafe_code, reason = "makes communicators")]
            // SAFETY: both arrays have `n` entries.
            unsafe { result::comm_init_all(group.as_mut_ptr(), count, ordinals.as_ptr()) }.map_err(wrong("start"))?;
            self.groups.insert(n, group);
        }
        self.bind_first()
    }

    /// Runs an exchange of the first `n` GPUs; the first of them on `stream`.
    pub fn launch(&mut self, kind: Collective, elements: usize, n: u32, stream: Stream) -> Result<(), DeviceError> {
        let Some(group) = self.groups.get(&n).cloned() else {
            return Err(DeviceError::Lost("an exchange that was not reserved".to_owned()));
        };
        result::group_start().map_err(wrong("group"))?;
        for (rank, (peer, comm)) in self.peers.iter_mut().zip(group).enumerate() {
            let on = if rank == 0 { stream } else { peer.stream.cu_stream() };
            let own = Arc::clone(&peer.stream);
            let (sent, _held) = peer.sent.device_ptr(&own);
            let (received, _kept) = peer.received.device_ptr_mut(&own);
            call(kind, elements, (rank, n as usize), (sent, received), comm, on)?;
        }
        result::group_end().map_err(wrong("group"))?;
        self.bind_first()
    }

    fn bind_first(&self) -> Result<(), DeviceError> {
        let bound = self.peers[0].context.bind_to_thread();
        bound.map_err(|error| DeviceError::Lost(format!("device {}: {error}", self.first)))
    }
}

/// One rank's part of an exchange, inside a group.
fn call(
    kind: Collective,
    elements: usize,
    (rank, n): (usize, usize),
    (sent, received): (u64, u64),
    comm: sys::ncclComm_t,
    stream: Stream,
) -> Result<(), DeviceError> {
    use sys::ncclDataType_t::ncclBfloat16 as bf16;
    let piece = elements.div_ceil(n);
    let from = |index: usize| (sent + 2 * (index * piece) as u64) as *const c_void;
    let to = |index: usize| (received + 2 * (index * piece) as u64) as *mut c_void;
    let (sum, stream) = (sys::ncclRedOp_t::ncclSum, stream.cast());
    let peer = |rank: usize| i32::try_from(rank).unwrap_or(0);
    #[expect(unsafe_code, reason = "exchanges between devices")]
    // SAFETY: buffers of every rank hold what `reserve` counted for this kind; the stream is of this rank's device.
    unsafe {
        match kind {
            Collective::AllGather => result::all_gather(from(0), to(0), piece, bf16, comm, stream).map(drop),
            Collective::ReduceScatter => {
                result::reduce_scatter(from(0), to(0), piece, bf16, sum, comm, stream).map(drop)
            }
            Collective::AllReduce => result::all_reduce(from(0), to(0), piece * n, bf16, sum, comm, stream).map(drop),
            Collective::AllToAll => (0..n).try_for_each(|other| {
                result::send(from(other), piece, bf16, peer(other), comm, stream)?;
                result::recv(to(other), piece, bf16, peer(other), comm, stream).map(drop)
            }),
            Collective::RingShift => {
                let next = result::send(from(0), elements, bf16, peer((rank + 1) % n), comm, stream);
                next.and_then(|_| result::recv(to(0), elements, bf16, peer((rank + n - 1) % n), comm, stream)).map(drop)
            }
            Collective::SendRecv if rank == 0 => {
                result::send(from(0), elements, bf16, peer(n - 1), comm, stream).map(drop)
            }
            Collective::SendRecv if rank + 1 == n => result::recv(to(0), elements, bf16, 0, comm, stream).map(drop),
            Collective::SendRecv => Ok(()),
        }
    }
    .map_err(wrong("exchange"))
}
