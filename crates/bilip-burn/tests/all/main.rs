//! All tests from outside, in one program, which is built sooner than several.

mod images;
mod training;
