//! The dense layer as solvers see it.

use std::borrow::Cow;

use faer::linalg::matmul::matmul;
use faer::linalg::solvers::Solve;
use faer::{Accum, Mat, MatMut, MatRef, Par};

use super::MonLip;
use crate::base::bounds::Bounds;
use crate::certify::Norms;
use crate::layers::activation::Activation;
use crate::layers::monotone::{Monotone, Resolvent, substitute};

impl Monotone for MonLip<f64> {
    fn formula(&self) -> Bounds {
        self.weights.design
    }

    fn sigma(&self) -> Activation {
        self.weights.activation
    }

    fn widths(&self) -> &[usize] {
        &self.weights.units
    }

    fn per_hidden_number<'a>(&self, values: &'a [f64]) -> Cow<'a, [f64]> {
        Cow::Borrowed(values)
    }

    fn scalings(&self) -> Option<Cow<'_, [f64]>> {
        self.weights.psi.as_deref().map(Cow::Borrowed)
    }

    fn output_shift(&self) -> Cow<'_, [f64]> {
        Cow::Borrowed(&self.weights.output_bias)
    }

    fn weight_norms(&self) -> &Norms {
        self.norms()
    }

    fn strong_convexity(&self) -> f64 {
        self.strong_monotonicity()
    }

    fn add_s(&self, factor: f64, x: MatRef<'_, f64>, to: MatMut<'_, f64>) {
        matmul(to, Accum::Add, self.s(), x, factor, Par::Seq);
    }

    fn add_s_transposed(&self, factor: f64, z: MatRef<'_, f64>, to: MatMut<'_, f64>) {
        matmul(to, Accum::Add, self.s().transpose(), z, factor, Par::Seq);
    }

    fn add_v(&self, k: usize, factor: f64, z: MatRef<'_, f64>, to: MatMut<'_, f64>) {
        matmul(to, Accum::Add, self.v()[k].as_ref(), z, factor, Par::Seq);
    }

    fn resolvent(&self, alpha: f64) -> Box<dyn Resolvent + '_> {
        let (w, n) = (&*self.weights, self.weights.n);
        let mut solved = w.s.clone();
        substitute(self, alpha, solved.as_mut());
        let mut system = Mat::<f64>::identity(n, n);
        let ratio = w.design.gap() / w.design.mu();
        self.add_s_transposed(alpha * ratio, solved.as_ref(), system.as_mut());
        let core = system.partial_piv_lu().solve(Mat::<f64>::identity(n, n));
        Box::new(DenseResolvent { solved, core })
    }
}

struct DenseResolvent {
    solved: Mat<f64>,
    core: Mat<f64>,
}

impl Resolvent for DenseResolvent {
    fn solve(&self, t: MatRef<'_, f64>, x: MatMut<'_, f64>) {
        matmul(x, Accum::Replace, self.core.as_ref(), t, 1.0, Par::Seq);
    }

    fn add_w(&self, factor: f64, x: MatRef<'_, f64>, to: MatMut<'_, f64>) {
        matmul(to, Accum::Add, self.solved.as_ref(), x, factor, Par::Seq);
    }
}
