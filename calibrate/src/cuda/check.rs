//! Every kernel on the device against float64 references on the host, on fresh random inputs: a kernel that is wrong must not be timed.
//!
//! Errors are relative, in the Frobenius norm; 1e-2 is allowed of bf16 results and 1e-5 of 32-bit ones. Results begin as no numbers, so
//! that what is never written shows.

mod attention;
mod decode;
mod exchanges;
mod experts;
mod layers;
mod products;

use cudarc::driver::sys::CUstream;

use super::Cuda;
use super::driver::{Address, Buffer, Driver};
use crate::device::{DeviceError, frobenius_error};
use crate::sample::WATCHDOG;

/// Allowed of bf16 results.
const BF16: f64 = 1e-2;
/// Allowed of 32-bit results.
const FLOAT: f64 = 1e-5;

/// Rounds to nearest, ties to even.
pub fn bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    u16::try_from((bits + 0x7fff + (bits >> 16 & 1)) >> 16).unwrap_or(0x7fff)
}

/// Value of a bf16.
pub fn value(bits: u16) -> f64 {
    f64::from(f32::from_bits(u32::from(bits) << 16))
}

/// A small generator of its own, so that inputs are the same everywhere.
pub struct Random(u64);

impl Random {
    /// A generator of this seed.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// 32 random bits (splitmix64, Steele et al., OOPSLA 2014).
    pub fn bits(&mut self) -> u32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((x ^ (x >> 31)) >> 32) as u32
    }

    /// A number below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        self.bits() as usize % n.max(1)
    }

    /// Nearly normal, of deviation 1: three uniform numbers.
    pub fn normal(&mut self) -> f32 {
        (0..3).map(|_| self.bits() as f32 / 2_147_483_648.0 - 1.0).sum()
    }

    /// A random order of the first `n` numbers.
    pub fn order(&mut self, n: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..n).collect();
        (1..n).rev().for_each(|last| order.swap(last, self.below(last + 1)));
        order
    }
}

/// Values on the host and on the device.
struct Tensor {
    values: Vec<f64>,
    buffer: Buffer,
}

impl Tensor {
    fn at(&self) -> Address {
        self.buffer.at
    }
}

/// What the cases share.
struct Check<'a> {
    driver: &'a Driver,
    random: Random,
    lines: Vec<String>,
    /// Cases that are wrong, with how far they are off and what is allowed: all are looked at before the check ends.
    wrong: Vec<(String, f64, f64)>,
    /// The default stream: one after the other is what is wanted here.
    on: CUstream,
}

impl Check<'_> {
    fn bits(&mut self, n: usize, scale: f32) -> Vec<u16> {
        (0..n).map(|_| bf16(scale * self.random.normal())).collect()
    }

    /// Random bf16 values.
    fn halves(&mut self, n: usize, scale: f32) -> Result<Tensor, DeviceError> {
        let bits = self.bits(n, scale);
        self.of_bits(&bits)
    }

    fn of_bits(&self, bits: &[u16]) -> Result<Tensor, DeviceError> {
        let values = bits.iter().copied().map(value).collect();
        Ok(Tensor { values, buffer: self.driver.upload(bits, "input", "a check")? })
    }

    /// 32-bit values.
    fn floats(&self, values: &[f32]) -> Result<Tensor, DeviceError> {
        let buffer = self.driver.upload(values, "input", "a check")?;
        Ok(Tensor { values: values.iter().copied().map(f64::from).collect(), buffer })
    }

    fn upload<T: Copy>(&self, values: &[T]) -> Result<Buffer, DeviceError> {
        self.driver.upload(values, "input", "a check")
    }

    /// Room for results, all ones.
    fn blank(&self, bytes: usize) -> Result<Buffer, DeviceError> {
        self.filled(bytes, 0xff)
    }

    fn filled(&self, bytes: usize, byte: u8) -> Result<Buffer, DeviceError> {
        let buffer = self.driver.allocate(bytes, "result", "a check")?;
        self.driver.fill(buffer.at, byte, bytes, self.on)?;
        Ok(buffer)
    }

    /// What lies in a buffer when all is done, or that the device does not end.
    fn read<T: Copy + Default>(&self, what: &str, buffer: &Buffer) -> Result<Vec<T>, DeviceError> {
        self.driver.watch(self.on, what, WATCHDOG)?;
        self.driver.read(buffer.at, buffer.len / size_of::<T>())
    }

    fn compare(&mut self, kernel: String, found: &[f64], expected: &[f64], allowed: f64) -> Result<(), DeviceError> {
        let error = frobenius_error(found.iter().copied(), expected);
        if found.len() != expected.len() || !error.is_finite() || error > allowed {
            self.wrong.push((kernel, error, allowed));
            return Ok(());
        }
        self.lines.push(format!("{kernel}: {error:.1e}"));
        Ok(())
    }

    /// Compares bf16 results.
    fn half(&mut self, kernel: String, found: &Buffer, expected: &[f64]) -> Result<(), DeviceError> {
        let found: Vec<f64> = self.read::<u16>(&kernel, found)?.into_iter().map(value).collect();
        self.compare(kernel, &found, expected, BF16)
    }

    /// Compares 32-bit results.
    fn float(&mut self, kernel: String, found: &Buffer, expected: &[f64]) -> Result<(), DeviceError> {
        let found: Vec<f64> = self.read::<f32>(&kernel, found)?.into_iter().map(f64::from).collect();
        self.compare(kernel, &found, expected, FLOAT)
    }

    /// Of what must be exact: the share that is not.
    fn exact(&mut self, kernel: String, wrong: usize, of: usize) -> Result<(), DeviceError> {
        if wrong > 0 {
            let error = wrong as f64 / of.max(1) as f64;
            self.wrong.push((kernel, error, 0.0));
            return Ok(());
        }
        self.lines.push(format!("{kernel}: exact"));
        Ok(())
    }
}

impl Cuda {
    /// Runs all checks; one line each.
    pub(super) fn check_all(&mut self) -> Result<Vec<String>, DeviceError> {
        let driver = std::rc::Rc::clone(&self.driver);
        let on = std::ptr::null_mut();
        let mut check = Check { driver: &driver, random: Random::new(7), lines: Vec::new(), wrong: Vec::new(), on };
        products::all(&mut check, &mut self.gemm)?;
        attention::all(&mut check)?;
        decode::all(&mut check)?;
        layers::all(&mut check)?;
        experts::all(&mut check)?;
        if let Some(peers) = &mut self.peers {
            exchanges::all(&mut check, peers)?;
        }
        match &check.wrong[..] {
            [] => Ok(check.lines),
            [(first, error, allowed), others @ ..] => {
                let others: Vec<String> =
                    others.iter().map(|(kernel, error, _)| format!("{kernel}: {error:.1e}")).collect();
                let more =
                    if others.is_empty() { String::new() } else { format!(" (wrong as well: {})", others.join("; ")) };
                Err(DeviceError::Wrong { kernel: format!("{first}{more}"), error: *error, allowed: *allowed })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_round_to_even_and_numbers_are_nearly_normal() {
        assert_eq!([1.0, 257.0 / 256.0, 259.0 / 256.0, -2.0].map(bf16), [0x3f80, 0x3f80, 0x3f82, 0xc000]);
        assert!((value(0x3f81) - 1.007_812_5).abs() < 1e-12);
        let mut random = Random::new(1);
        let all: Vec<f64> = (0..10_000).map(|_| f64::from(random.normal())).collect();
        let mean = all.iter().sum::<f64>() / 1e4;
        let square = all.iter().map(|x| x * x).sum::<f64>() / 1e4;
        assert!(mean.abs() < 0.05 && (square - 1.0).abs() < 0.05, "{mean} {square}");
        let mut order = random.order(100);
        order.sort_unstable();
        assert_eq!(order, (0..100).collect::<Vec<_>>());
    }
}
