//! Rows of the measured table.
