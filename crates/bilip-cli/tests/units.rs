//! The unit tests of modules of the program, which is not compiled a second time for them.

#![allow(dead_code)]

#[path = "../src/fit_table.rs"]
mod fit_table;
#[path = "../src/limits.rs"]
mod limits;
#[path = "../src/text.rs"]
mod text;
