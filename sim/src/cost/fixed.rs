//! Exact times for tests.
