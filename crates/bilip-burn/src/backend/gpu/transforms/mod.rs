//! The transforms of a monotone layer's free matrices, and their backward passes.

mod kernels;

use std::sync::Arc;

use burn_cubecl::CubeRuntime;
use cubecl::CubeDim;

use super::inverse::inverse;
use super::memory::{Buffer, Gpu, UNITS, count};
use super::plan::{Outer, PIECE, Plan};
use super::product::{View, product};
use super::sums::{CHUNKS, dots};

/// The transforms of a layer: what came of the free matrices.
#[derive(Clone, Debug)]
pub struct Transforms<R: CubeRuntime> {
    /// `‖F‖²` in chunks.
    pub squares: Buffer<R>,
    /// `[Ĝ; Ĥ]`, and that of Q.
    pub packed: Buffer<R>,
    /// `X = W⁻¹`, that of Q last.
    pub x: Buffer<R>,
    /// `[J₁; J₂]` of the hidden layers.
    pub j: Buffer<R>,
    /// The rows of Q, padded, and `−2ĤX` of it.
    pub q: Buffer<R>,
    pub below: Buffer<R>,
}

impl<R: Gpu> Transforms<R> {
    pub fn forward(phi: &Buffer<R>, gains: &Buffer<R>, plan: &Arc<Plan>) -> Self {
        let (layers, size, n) = (plan.layers.len(), plan.size, plan.n);
        let (square, matrices) = (size * size, plan.matrices());
        let squares = phi.like(matrices * CHUNKS);
        dots::launch::<R>(
            phi.client(),
            count(CHUNKS, matrices, 1),
            CubeDim::new_1d(UNITS),
            phi.array(),
            phi.array(),
            squares.array(),
            false,
            plan.clone(),
        );
        let packed = phi.like(plan.packed_len());
        let (cubes, dim) = phi.units(plan.packed_len());
        kernels::pack::launch::<R>(
            phi.client(),
            cubes,
            dim,
            phi.array(),
            gains.array(),
            squares.array(),
            packed.array(),
            plan.clone(),
        );
        let w = phi.like(matrices * square);
        let halves = View::new(&packed, size, 2 * square);
        let lower = halves.at(2 * square + square);
        let weights = View::new(&w, size, square);
        let after = layers - 1;
        product(
            lower.t(),
            lower,
            weights.at(square),
            (size, size, size),
            after,
            1.0,
            false,
        );
        let outer = View::new(&packed, n, PIECE * n).at(plan.inner_len());
        let (pieces, piece_count) = match plan.outer {
            None => (phi.like(1), 0),
            Some(Outer { padded, .. }) => {
                let piece_count = (padded - n) / PIECE;
                let pieces = phi.like(piece_count * n * n);
                let below = outer.at(n * n);
                let to = View::new(&pieces, n, n * n);
                product(below.t(), below, to, (n, n, PIECE), piece_count, 1.0, false);
                (pieces, piece_count)
            }
        };
        let (cubes, dim) = phi.units(matrices * square);
        kernels::complete::launch::<R>(
            phi.client(),
            cubes,
            dim,
            packed.array(),
            pieces.array(),
            w.array(),
            piece_count,
            plan.clone(),
        );
        let x = inverse(w, size, matrices);
        let inverses = View::new(&x, size, square);
        let j = phi.like(2 * layers * square);
        let transforms = View::new(&j, size, 2 * square);
        product(
            lower,
            inverses.at(square),
            transforms.at(3 * square),
            (size, size, size),
            after,
            -2.0,
            false,
        );
        let (q, below) = match plan.outer {
            None => (phi.like(1), phi.like(1)),
            Some(Outer { padded, .. }) => {
                let below = phi.like((padded - n) * n);
                let to = View::new(&below, n, 0);
                let from = inverses.at(layers * square);
                product(outer.at(n * n), from, to, (padded - n, n, n), 1, -2.0, false);
                (phi.like(layers * size * n), below)
            }
        };
        let (cubes, dim) = phi.units(layers * square + plan.outer.map_or(0, |_| layers * size * n));
        kernels::assemble::launch::<R>(
            phi.client(),
            cubes,
            dim,
            x.array(),
            below.array(),
            j.array(),
            q.array(),
            plan.clone(),
        );
        Transforms {
            squares,
            packed,
            x,
            j,
            q,
            below,
        }
    }

    /// The cotangents of the packed matrices from those of the transforms: `dj` as `j`, and `dq` as
    /// `q`.
    pub fn backward(&self, dj: &Buffer<R>, dq: Option<&Buffer<R>>, plan: &Arc<Plan>) -> Buffer<R> {
        let (layers, size, n) = (plan.layers.len(), plan.size, plan.n);
        let (square, after) = (size * size, layers - 1);
        let out = dj.like(plan.packed_len());
        let full = (size, size, size);
        // W̄ = −(2XᵀJ̄₁ + J₂ᵀJ̄₂)Xᵀ, since J̄₁ + J₁ᵀJ̄₁ = 2XᵀJ̄₁.
        let x = View::new(&self.x, size, square);
        let j = View::new(&self.j, size, 2 * square);
        let cotangents = View::new(dj, size, 2 * square);
        let inner = dj.like(layers * square);
        let to = View::new(&inner, size, square);
        product(x.t(), cotangents, to, full, layers, 2.0, false);
        let (j2, dj2) = (j.at(3 * square), cotangents.at(3 * square));
        product(j2.t(), dj2, to.at(square), full, after, 1.0, true);
        let w = dj.like(layers * square);
        product(to, x.t(), View::new(&w, size, square), full, layers, -1.0, false);
        let (cubes, dim) = dj.units(layers * square);
        kernels::skew::launch::<R>(
            dj.client(),
            cubes,
            dim,
            w.array(),
            out.array(),
            inner.array(),
            layers as u32,
            0,
            2 * square as u32,
            size,
            1,
        );
        // H̄ = −2J̄₂Xᵀ + Ĥ(W̄ + W̄ᵀ).
        let lower = View::new(&out, size, 2 * square).at(3 * square);
        product(dj2, x.at(square).t(), lower, full, after, -2.0, false);
        let h = View::new(&self.packed, size, 2 * square).at(3 * square);
        product(h, to.at(square), lower, full, after, 1.0, true);
        if let (Some(Outer { padded, .. }), Some(dq)) = (plan.outer, dq) {
            let (cotangent, factor) = (dj.like(padded * n), dj.like(padded * n));
            let (cubes, dim) = dj.units(padded * n);
            kernels::unpad_outer::launch::<R>(
                dj.client(),
                cubes,
                dim,
                dq.array(),
                self.x.array(),
                self.below.array(),
                cotangent.array(),
                factor.array(),
                plan.clone(),
            );
            // The rows past the last whole piece are padding.
            let piece_count = (padded - n) / PIECE;
            let inner = dj.like(piece_count * n * n);
            let to = View::new(&inner, n, n * n);
            let (f, c) = (
                View::new(&factor, n, PIECE * n),
                View::new(&cotangent, n, PIECE * n),
            );
            product(f.t(), c, to, (n, n, PIECE), piece_count, 1.0, false);
            let w = dj.like(piece_count * n * n);
            let x = View::new(&self.x, size, 0).at(layers * square);
            product(
                to,
                x.t(),
                View::new(&w, n, n * n),
                (n, n, n),
                piece_count,
                -1.0,
                false,
            );
            let symmetric = dj.like(n * n);
            let (cubes, dim) = dj.units(n * n);
            kernels::skew::launch::<R>(
                dj.client(),
                cubes,
                dim,
                w.array(),
                out.array(),
                symmetric.array(),
                1,
                plan.inner_len() as u32,
                0,
                n,
                piece_count,
            );
            let below = View::new(&out, n, 0).at(plan.inner_len() + n * n);
            let rows = (padded - n, n, n);
            product(c.at(n * n), x.t(), below, rows, 1, -2.0, false);
            let h = View::new(&self.packed, n, 0).at(plan.inner_len() + n * n);
            product(h, View::new(&symmetric, n, 0), below, rows, 1, 1.0, true);
        }
        out
    }

    /// The gradient of φ, and the products `⟨F, F̂̄⟩` in chunks.
    pub fn finish(
        &self,
        phi: &Buffer<R>,
        gains: &Buffer<R>,
        packed: &Buffer<R>,
        output_bias: &Buffer<R>,
        log_psi: &Buffer<R>,
        plan: &Arc<Plan>,
    ) -> (Buffer<R>, Buffer<R>) {
        let dots = phi.like(plan.matrices() * CHUNKS);
        dots::launch::<R>(
            phi.client(),
            count(CHUNKS, plan.matrices(), 1),
            CubeDim::new_1d(UNITS),
            phi.array(),
            packed.array(),
            dots.array(),
            true,
            plan.clone(),
        );
        let out = phi.like(plan.len);
        let (cubes, dim) = phi.units(plan.len);
        kernels::finish_phi::launch::<R>(
            phi.client(),
            cubes,
            dim,
            phi.array(),
            gains.array(),
            packed.array(),
            self.squares.array(),
            dots.array(),
            output_bias.array(),
            log_psi.array(),
            out.array(),
            plan.clone(),
        );
        (out, dots)
    }
}
