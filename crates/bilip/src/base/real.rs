//! The two number types a network can be stored in.

use std::fmt::{Debug, Display};
use std::iter::Sum;

use serde::{Deserialize, Serialize};

/// Unit roundoff of `f64`, `2⁻⁵³`: the relative error of one correctly rounded operation.
pub(crate) const UNIT_ROUNDOFF: f64 = f64::EPSILON / 2.0;

/// The precision in which a network's weights are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// 32-bit IEEE 754.
    F32,
    /// 64-bit IEEE 754.
    F64,
}

impl Display for Precision {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Precision::F32 => "f32",
            Precision::F64 => "f64",
        })
    }
}

mod private {
    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for f64 {}
}

/// `f32` or `f64`: the number type of a network's weights and of its forward pass.
///
/// Whatever is *certified* (bounds, inverses, minima) is computed in `f64` from the stored numbers,
/// to which an `f32` converts exactly.
pub trait Real:
    private::Sealed
    + faer::traits::RealField
    + num_traits::Float
    + num_traits::NumAssign
    + Copy
    + Default
    + Debug
    + Display
    + Send
    + Sync
    + Sum
    + 'static
{
    /// Which of the two types this is.
    const PRECISION: Precision;
    /// Relative error of one correctly rounded operation in this type.
    const UNIT_ROUNDOFF: f64;

    /// The same number in `f64` (exact).
    fn as_f64(self) -> f64;

    /// The nearest number of this type.
    fn round_from(value: f64) -> Self;

    /// The next larger number of this type.
    fn next_up(self) -> Self;

    /// The next smaller number of this type.
    fn next_down(self) -> Self;

    /// Little-endian bytes appended to `out`.
    #[doc(hidden)]
    fn write_le(self, out: &mut Vec<u8>);
}

impl Real for f32 {
    const PRECISION: Precision = Precision::F32;
    const UNIT_ROUNDOFF: f64 = (f32::EPSILON / 2.0) as f64;

    fn as_f64(self) -> f64 {
        f64::from(self)
    }

    fn round_from(value: f64) -> Self {
        value as f32
    }

    fn next_up(self) -> Self {
        f32::next_up(self)
    }

    fn next_down(self) -> Self {
        f32::next_down(self)
    }

    fn write_le(self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.to_le_bytes());
    }
}

impl Real for f64 {
    const PRECISION: Precision = Precision::F64;
    const UNIT_ROUNDOFF: f64 = UNIT_ROUNDOFF;

    fn as_f64(self) -> f64 {
        self
    }

    fn round_from(value: f64) -> Self {
        value
    }

    fn next_up(self) -> Self {
        f64::next_up(self)
    }

    fn next_down(self) -> Self {
        f64::next_down(self)
    }

    fn write_le(self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.to_le_bytes());
    }
}
