//! A device with scripted times: streams in order, waits and marks on a virtual clock, for tests of everything above the seam.

use std::collections::BTreeMap;
use std::time::Duration;

use engine::task::{Op, Stream};
use hw::{Bytes, Format};

use crate::device::{Device, DeviceError, Facts, Mark, describe};

/// Nanoseconds of an operation, by its number of launches so far.
pub type Script = Box<dyn Fn(&Op, u64) -> u64>;

/// The device.
pub struct Fake {
    facts: Facts,
    script: Script,
    clocks: BTreeMap<usize, u64>,
    marks: Vec<u64>,
    n_launches: u64,
    /// Fails as lost from this launch on.
    pub lost_at: Option<u64>,
}

impl Fake {
    /// A device that takes these times.
    pub fn new(script: Script) -> Self {
        Self {
            facts: Self::facts_of("fake"),
            script,
            clocks: BTreeMap::new(),
            marks: Vec::new(),
            n_launches: 0,
            lost_at: None,
        }
    }

    /// Facts of a device of this name.
    pub fn facts_of(name: &str) -> Facts {
        Facts {
            name: name.to_owned(),
            gpu: Some("cpu".to_owned()),
            driver: "none".to_owned(),
            clocks: "none".to_owned(),
            memory: Bytes(1 << 40),
            tile: (1, 1, 1),
            n_devices: 1,
            reference: Op::Gemm { m: 256, n: 256, k: 256, format: Format::Bf16 },
        }
    }
}

impl Device for Fake {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn runs(&self, op: &Op) -> bool {
        !matches!(op, Op::Collective { shape, .. } if shape.n_nodes > 1)
    }

    fn reserve(&mut self, op: &Op) -> Result<(), DeviceError> {
        if let Op::Elementwise { bytes } = op
            && *bytes > self.facts.memory.0
        {
            let (needed, free) = (Bytes(*bytes), self.facts.memory);
            return Err(DeviceError::OutOfMemory { tensor: "operands", op: describe(op), needed, free });
        }
        Ok(())
    }

    fn launch(&mut self, op: &Op, stream: Stream) -> Result<(), DeviceError> {
        if self.lost_at.is_some_and(|at| self.n_launches >= at) {
            return Err(DeviceError::Lost("it was told to".to_owned()));
        }
        let ns = if let Op::Host { ns } = op { *ns } else { (self.script)(op, self.n_launches) };
        self.n_launches += 1;
        *self.clocks.entry(stream.index()).or_default() += ns;
        Ok(())
    }

    fn mark(&mut self, stream: Stream) -> Result<Mark, DeviceError> {
        self.marks.push(self.clocks.get(&stream.index()).copied().unwrap_or(0));
        Ok(Mark(self.marks.len() - 1))
    }

    fn wait(&mut self, stream: Stream, mark: Mark) -> Result<(), DeviceError> {
        let clock = self.clocks.entry(stream.index()).or_default();
        *clock = (*clock).max(self.marks[mark.0]);
        Ok(())
    }

    fn finish(&mut self, _limit: Duration) -> Result<Vec<u64>, DeviceError> {
        let now = self.clocks.values().max().copied().unwrap_or(0);
        self.clocks.values_mut().for_each(|clock| *clock = now);
        Ok(std::mem::take(&mut self.marks))
    }

    fn check_finite(&mut self, _op: &Op) -> Result<(), DeviceError> {
        Ok(())
    }

    fn check_kernels(&mut self) -> Result<Vec<String>, DeviceError> {
        Ok(Vec::new())
    }
}
