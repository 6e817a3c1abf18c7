//! Figures as self-contained SVG: curves, points and filled contours in panels.
//!
//! ```
//! use bilip_plot::{Figure, Mark, Panel};
//! let mut panel = Panel::new("a parabola", "x", "f");
//! panel.push(Mark::line((0..=20).map(|k| (k as f64, (k * k) as f64)).collect(), 0).labeled("x²"));
//! let svg = Figure::new(vec![panel]).svg();
//! assert!(svg.starts_with("<svg") && svg.contains("x²"));
//! ```

mod contours;
mod figure;
mod svg;

pub use figure::{COLORS, Figure, Mark, Panel, levels};
