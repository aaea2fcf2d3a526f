//! Claims about shared memory, against small cases by hand.
