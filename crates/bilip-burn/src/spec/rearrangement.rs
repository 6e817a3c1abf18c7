//! Linear maps that rearrange numbers.

use super::Window;

/// Some rows of complex matrices: from row `first` on, of every `stride` rows the `height` from row
/// `from` on, `pieces` times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Strips {
    /// Rows of the matrices.
    pub rows: usize,
    pub first: usize,
    pub stride: usize,
    pub pieces: usize,
    pub from: usize,
    pub height: usize,
}

/// A linear map that rearranges numbers; one of them is affine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rearrangement {
    /// See `ops::embed`.
    Embed,
    /// See `ops::skew`; the affine one.
    Skew,
    /// See `ops::unfold`; with the shape of the images.
    Unfold(Window, [usize; 5]),
    /// See `ops::fold`.
    Fold(Window, [usize; 5]),
    /// See `ops::strips`.
    Strips(Strips),
    /// See `ops::exchanged`; with the shape.
    Exchange([usize; 4]),
}
