//! Products of matrices.

/// How exact a product has to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MatmulPrecision {
    /// As exact as its factors.
    Full,
    /// Factors of eleven bits are enough, where tensor cores make such a product cheaper.
    TensorCores,
}

/// Which factor of a product is transposed. A gradient comes in the order of its factor, which a
/// transposition before the product would turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transposed {
    /// `A·B`.
    Neither,
    /// `Aᵀ·B`.
    Left,
    /// `A·Bᵀ`.
    Right,
}
