//! Proofs of (μ, ν) for the very numbers that are stored.
//!
//! A [`MonLip`](crate::MonLip) layer is μ-strongly monotone and ν-Lipschitz if `M = I − (V+Vᵀ)/2 −
//! SSᵀ ⪰ 0`. By a Schur complement that is the same as
//! ```text
//! ⎡ I − (V+Vᵀ)/2   S ⎤
//! ⎣       Sᵀ       I ⎦ ⪰ 0,
//! ```
//! whose entries are the stored numbers themselves (halved, which is exact), so nothing is lost in
//! forming it, and whose block structure makes the proof linear in depth. The construction makes
//! `M` singular, so plain rounding breaks it; [`round_certified`] shrinks `V` and `S` by a tiny
//! relative ε first, which adds `εI`.

mod certificate;
mod layer;
mod norms;
mod proved;
pub(crate) mod psd;
mod reduce;

pub(crate) use certificate::out_of_range;
pub use certificate::{Certificate, LayerCertificate, LayerKind};
pub(crate) use layer::{
    certify_blocks, certify_monlip, certify_orthogonal, certify_orthogonal_matrix, round_certified,
    strong_monotonicity,
};
pub(crate) use norms::Norms;
pub use proved::Proved;
