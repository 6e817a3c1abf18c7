//! All tests from outside but that of the allocator, which needs a program of its own: one program
//! is built sooner than six.

mod boxes;
mod derivatives;
mod exact;
mod golden;
mod hardening;
mod images;
mod inverse;
mod model;
mod offset;
mod properties;
mod scaling;
