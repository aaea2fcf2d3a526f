//! Collectives among the GPUs of this machine by NCCL: one communicator per group size, one stream and two buffers per GPU.
//!
//! Rank 0 is the device that was opened, on the stream that asks, so its events time the exchange. Buffers come from plain allocations:
//! memory of a stream-ordered pool is not open to other GPUs unless one asks for it. A GPU that does not answer makes all of them silent.

mod library;

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::rc::Rc;

use cudarc::driver::CudaContext;
use engine::task::Collective;

use super::driver::{Address, Buffer, Driver};
use super::gemm::Stream;
use super::missing::Missing;
use crate::device::DeviceError;
use crate::sample::WATCHDOG;
use library::{Call, Comm, Nccl};

/// Byte that operands are made of: as bf16 0.0115, of which many can be added.
const OPERAND: u8 = 0x3c;

/// The other end of an exchange: a GPU with a stream and buffers.
struct Peer {
    driver: Rc<Driver>,
    ordinal: i32,
    stream: Stream,
    sent: Option<Buffer>,
    received: Option<Buffer>,
}

/// GPUs of this machine that exchange.
pub struct Peers {
    nccl: Nccl,
    peers: Vec<Peer>,
    groups: BTreeMap<u32, Vec<Comm>>,
}

/// Bytes that a rank gives and takes for so many elements as a kind counts them.
fn bytes(kind: Collective, elements: usize, n: usize) -> [usize; 2] {
    let (sent, received) = crate::cpu::exchange_sizes(kind, elements, n);
    [2 * sent, 2 * received]
}

impl Peers {
    /// All GPUs, the one that was opened first; `None` where there is no other.
    ///
    /// # Errors
    /// Why they cannot exchange, in words.
    pub fn find(driver: &Rc<Driver>, first: usize) -> Result<Option<Self>, Missing> {
        let n = CudaContext::device_count().map_err(Missing::Count)?;
        let n = usize::try_from(n).unwrap_or(0);
        if n < 2 {
            return Ok(None);
        }
        let nccl = Nccl::open()?;
        let order = std::iter::once(first).chain((0..n).filter(|ordinal| *ordinal != first));
        let peer = |ordinal: usize| {
            let driver = if ordinal == first { Rc::clone(driver) } else { driver.beside(ordinal)? };
            driver.bind()?;
            let stream = driver.stream()?;
            let ordinal = i32::try_from(ordinal).unwrap_or(0);
            Ok(Peer { driver, ordinal, stream, sent: None, received: None })
        };
        let peers: Result<Vec<Peer>, DeviceError> = order.map(peer).collect();
        let peers = Self { nccl, peers: peers?, groups: BTreeMap::new() };
        peers.bind_first()?;
        Ok(Some(peers))
    }

    /// How many they are.
    pub fn len(&self) -> u32 {
        u32::try_from(self.peers.len()).unwrap_or(1)
    }

    /// What moves the data, with its version.
    pub fn words(&self) -> String {
        format!("NCCL {}", self.nccl.version())
    }

    /// Makes room and a communicator for an exchange of so many elements as its kind counts them.
    pub fn reserve(&mut self, kind: Collective, elements: usize, n: u32, op: &str) -> Result<(), DeviceError> {
        let [sent, received] = bytes(kind, elements, n as usize);
        for peer in self.peers.iter_mut().take(n as usize) {
            peer.driver.bind()?;
            let stream = peer.stream;
            grow(&peer.driver, &mut peer.sent, sent, stream, op)?;
            grow(&peer.driver, &mut peer.received, received, stream, op)?;
        }
        if !self.groups.contains_key(&n) {
            let devices: Vec<i32> = self.peers.iter().take(n as usize).map(|peer| peer.ordinal).collect();
            self.groups.insert(n, self.nccl.start(&devices)?);
        }
        self.bind_first()
    }

    /// Runs an exchange of the first `n` GPUs; the first of them on `stream`.
    pub fn launch(&mut self, kind: Collective, elements: usize, n: u32, stream: Stream) -> Result<(), DeviceError> {
        let not_reserved = || DeviceError::Lost("an exchange that was not reserved".to_owned());
        let group = self.groups.get(&n).ok_or_else(not_reserved)?;
        let [sent, received] = bytes(kind, elements, n as usize);
        self.nccl.group(|| {
            for (rank, (peer, comm)) in self.peers.iter().zip(group).enumerate() {
                let place = |buffer: &Option<Buffer>, len: usize| {
                    buffer.as_ref().filter(|buffer| buffer.len >= len).map(|buffer| buffer.at).ok_or_else(not_reserved)
                };
                let call = Call { comm: *comm, stream: if rank == 0 { stream } else { peer.stream } };
                let places = [place(&peer.sent, sent)?, place(&peer.received, received)?];
                ask(&self.nccl, kind, elements, (rank, group.len()), places, call)?;
            }
            Ok(())
        })?;
        self.bind_first()
    }

    /// Runs an exchange of these inputs, one per rank, and waits; what each rank has then, where it was all ones before.
    pub fn exchange(
        &mut self,
        kind: Collective,
        elements: usize,
        inputs: &[Vec<u16>],
    ) -> Result<Vec<Vec<u16>>, DeviceError> {
        let n = u32::try_from(inputs.len()).unwrap_or(0);
        self.reserve(kind, elements, n, "a check")?;
        let [_, received] = bytes(kind, elements, inputs.len());
        for (peer, input) in self.peers.iter().zip(inputs) {
            peer.driver.bind()?;
            if let (Some(sent), Some(room)) = (&peer.sent, &peer.received) {
                peer.driver.write(sent.at, input)?;
                peer.driver.fill(room.at, 0xff, received, peer.stream)?;
                peer.driver.watch(peer.stream, "fill", WATCHDOG)?;
            }
        }
        self.bind_first()?;
        self.launch(kind, elements, n, self.peers[0].stream)?;
        let mut found = Vec::new();
        for peer in self.peers.iter().take(inputs.len()) {
            peer.driver.bind()?;
            peer.driver.watch(peer.stream, "an exchange", WATCHDOG)?;
            let at = peer.received.as_ref().map_or(0, |buffer| buffer.at);
            found.push(peer.driver.read(at, received / 2)?);
        }
        self.bind_first().map(|()| found)
    }

    fn bind_first(&self) -> Result<(), DeviceError> {
        self.peers[0].driver.bind()
    }
}

/// Makes a buffer as long as this; its driver's context is current.
fn grow(driver: &Driver, buffer: &mut Option<Buffer>, len: usize, stream: Stream, op: &str) -> Result<(), DeviceError> {
    if buffer.as_ref().is_none_or(|held| held.len < len) {
        // The old one goes first: both together might not fit.
        *buffer = None;
        let made = driver.allocate(len, "exchange buffer", op)?;
        driver.fill(made.at, OPERAND, made.len, stream)?;
        // The exchange may be on another stream.
        driver.watch(stream, "fill", WATCHDOG)?;
        *buffer = Some(made);
    }
    Ok(())
}

/// One rank's part of an exchange, inside a group.
fn ask(
    nccl: &Nccl,
    kind: Collective,
    elements: usize,
    (rank, n): (usize, usize),
    [sent, received]: [Address; 2],
    call: Call,
) -> Result<(), DeviceError> {
    let piece = elements.div_ceil(n);
    let from = |index: usize| (sent + 2 * (index * piece) as u64) as *const c_void;
    let to = |index: usize| (received + 2 * (index * piece) as u64) as *mut c_void;
    match kind {
        Collective::AllGather => nccl.all_gather(call, from(0), to(0), piece),
        Collective::ReduceScatter => nccl.reduce_scatter(call, from(0), to(0), piece),
        Collective::AllReduce => nccl.all_reduce(call, from(0), to(0), piece * n),
        Collective::AllToAll => (0..n).try_for_each(|other| {
            nccl.send(call, from(other), piece, other)?;
            nccl.receive(call, to(other), piece, other)
        }),
        Collective::RingShift => {
            nccl.send(call, from(0), elements, (rank + 1) % n)?;
            nccl.receive(call, to(0), elements, (rank + n - 1) % n)
        }
        Collective::SendRecv if rank == 0 => nccl.send(call, from(0), elements, n - 1),
        Collective::SendRecv if rank + 1 == n => nccl.receive(call, to(0), elements, 0),
        Collective::SendRecv => Ok(()),
    }
}
