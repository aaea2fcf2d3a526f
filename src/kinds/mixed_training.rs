//! Training on GPUs of several types: what a scenario of kind `training` with `[[group]]` runs.

pub mod run;
