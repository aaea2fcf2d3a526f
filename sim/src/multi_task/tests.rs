//! Claims about the checker and the played iteration: hand arithmetic on measured times.
