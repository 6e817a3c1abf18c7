//! All tests from outside, in one program, which is built sooner than five.

mod baselines;
mod gp;
mod images;
mod step_function;
mod training;
