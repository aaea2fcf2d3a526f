//! Everything that touches measurements or a real device: import, fit, execute, validate.
