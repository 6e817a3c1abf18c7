//! All tests from outside, in one program, which is built sooner than several.

mod baselines;
mod gp;
mod step_function;
