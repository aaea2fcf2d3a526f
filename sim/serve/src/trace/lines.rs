//! Lines of a trace one by one, with a bound on their length.
//!
//! Invariant: memory stays below `LINE_BYTES_MAX` plus a buffer, whatever the input; empty lines are passed over.

use std::io::BufRead;

use super::{Faults, LINE_BYTES_MAX};

/// Reads lines.
pub(super) struct Lines<'a> {
    input: &'a mut dyn BufRead,
    buffer: Vec<u8>,
    number: u64,
    ended: bool,
}

impl<'a> Lines<'a> {
    pub(super) fn new(input: &'a mut dyn BufRead) -> Self {
        Self { input, buffer: Vec::new(), number: 0, ended: false }
    }

    /// Lines so far.
    pub(super) const fn number(&self) -> u64 {
        self.number
    }

    /// The next line that holds text, with its number.
    pub(super) fn next(&mut self, faults: &mut Faults) -> Option<(u64, &str)> {
        loop {
            if self.ended || !self.fill(faults) {
                return None;
            }
            match std::str::from_utf8(&self.buffer) {
                Err(error) => faults.add(self.number, error.valid_up_to() + 1, "not UTF-8 text"),
                Ok(text) if text.trim().is_empty() => {}
                Ok(_) => break,
            }
        }
        let text = std::str::from_utf8(&self.buffer).unwrap_or_default();
        let text = text.trim_end_matches(['\n', '\r']);
        // A byte order mark before the header is no part of a name.
        Some((self.number, if self.number == 1 { text.trim_start_matches('\u{feff}') } else { text }))
    }

    /// Takes one line into the buffer; false at the end. A line that is too long is passed over without being kept.
    fn fill(&mut self, faults: &mut Faults) -> bool {
        self.buffer.clear();
        let mut is_long = false;
        let mut n_bytes = 0_usize;
        loop {
            let (taken, complete) = match self.input.fill_buf() {
                Err(error) => {
                    faults.add(self.number + 1, 1, format!("cannot be read: {error}"));
                    self.ended = true;
                    return false;
                }
                Ok([]) => (0, true),
                Ok(bytes) => {
                    let end = bytes.iter().position(|byte| *byte == b'\n');
                    let taken = end.map_or(bytes.len(), |end| end + 1);
                    is_long |= self.buffer.len() + taken > LINE_BYTES_MAX;
                    if !is_long {
                        self.buffer.extend_from_slice(&bytes[..taken]);
                    }
                    (taken, end.is_some())
                }
            };
            self.input.consume(taken);
            n_bytes += taken;
            if complete {
                self.ended = taken == 0;
                break;
            }
        }
        if n_bytes == 0 {
            return false;
        }
        self.number += 1;
        if is_long {
            let reason = format!("a line of {n_bytes} bytes, allowed are {LINE_BYTES_MAX}");
            faults.add(self.number, LINE_BYTES_MAX + 1, reason);
            self.buffer.clear();
        }
        true
    }
}
