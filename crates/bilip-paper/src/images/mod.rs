//! Image data: CIFAR-10 and CIFAR-100 from their standard files, and corrupted pictures.

mod cifar;
mod corrupt;
mod filters;

pub use cifar::{Cifar, cifar10_files_from_package, npm_package};
pub use corrupt::{Corruption, SEVERITIES};

use crate::error::Result;

/// The side of the images.
pub const SIDE: usize = 32;
/// Numbers of an image: red, green and blue planes of pixels, row by row.
pub const PIXELS: usize = 3 * SIDE * SIDE;

/// Images with the class of each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Images {
    /// `[count, 3, 32, 32]`, from 0 to 255.
    pub pixels: Vec<u8>,
    /// The class of each.
    pub labels: Vec<u8>,
    /// Number of classes.
    pub classes: usize,
}

impl Images {
    /// Number of images.
    pub fn count(&self) -> usize {
        self.labels.len()
    }

    /// The first `count`; all if there are fewer.
    pub fn first(&self, count: usize) -> Images {
        let count = count.min(self.count());
        Images {
            pixels: self.pixels[..count * PIXELS].to_vec(),
            labels: self.labels[..count].to_vec(),
            classes: self.classes,
        }
    }

    /// All images corrupted, each with random numbers of its own.
    ///
    /// # Errors
    /// When an image cannot be compressed.
    pub fn corrupted(&self, corruption: Corruption, severity: usize, seed: u64) -> Result<Images> {
        let corrupt = corruption.prepare(severity);
        let mut pixels = Vec::with_capacity(self.pixels.len());
        for (k, image) in self.pixels.chunks_exact(PIXELS).enumerate() {
            pixels.extend(corrupt.apply(image, seed.wrapping_add(k as u64))?);
        }
        Ok(Images {
            pixels,
            labels: self.labels.clone(),
            classes: self.classes,
        })
    }
}
