//! What training minimizes.

/// What is minimized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Loss {
    /// `½·mean squared error`.
    HalfMse,
    /// Cross entropy of the predictions as logits; the single target column holds the class, from
    /// 0.
    CrossEntropy,
}
