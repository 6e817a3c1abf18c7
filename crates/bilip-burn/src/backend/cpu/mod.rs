//! The operations on a CPU: plain functions on slices and matrices, forward and hand-derived
//! backward, and here their way to the numbers of Burn's tensors.
//!
//! Batches are row-major `[batch, n]`, which is the column-major `n × batch` that the products work
//! on.

mod adam;
mod cayley;
mod convolution;
mod fourier;
mod inverse;
mod monlip;
mod product;
mod rearrange;

use std::sync::Arc;

use bilip::Real;
use burn::backend::Flex;
use burn::tensor::ops::FloatTensor;
use burn::tensor::{DType, Element, TensorData, TensorMetadata};

use crate::backend::{Native, NativeConvolution, portable};
use crate::spec::{AdamStep, Convolved, Layout, MatmulPrecision, Rearrangement, Transposed};
use fourier::ImageFft;

/// Runs `work` in the precision of the tensor; anything but f32 and f64 is our own mistake to have
/// let in.
macro_rules! in_precision {
    ($tensor:expr, $t:ident => $work:expr) => {
        match $tensor.dtype() {
            DType::F64 => {
                type $t = f64;
                $work
            }
            _ => {
                type $t = f32;
                $work
            }
        }
    };
}

/// A tape in the precision of the tensors it was made from.
#[derive(Debug)]
pub(crate) enum Typed<A, B> {
    /// Single precision.
    F32(Arc<A>),
    /// Double precision.
    F64(Arc<B>),
}

impl<A, B> Clone for Typed<A, B> {
    fn clone(&self) -> Self {
        match self {
            Typed::F32(t) => Typed::F32(t.clone()),
            Typed::F64(t) => Typed::F64(t.clone()),
        }
    }
}

type Flat = FloatTensor<Flex>;

/// The numbers of a tensor, in row-major order.
fn values<T: Real + Element + bytemuck::Pod>(tensor: &Flat) -> std::borrow::Cow<'_, [T]> {
    match tensor.as_slice::<T>() {
        Some(slice) => slice.into(),
        // Strided, or numbers of another type, which are converted.
        None => tensor.clone().into_data().iter::<T>().collect::<Vec<T>>().into(),
    }
}

fn tensor<T: Element>(values: Vec<T>, shape: impl Into<burn::tensor::Shape>) -> Flat {
    Flat::from_data(TensorData::new(values, shape))
}

pub(crate) type MonLipTape = Typed<monlip::Tape<f32>, monlip::Tape<f64>>;
pub(crate) type CayleyTape = Typed<cayley::Tape<f32>, cayley::Tape<f64>>;

/// Puts a tape of either precision into the common type.
trait Keep<A, B> {
    fn keep(self) -> Typed<A, B>;
}

impl Keep<monlip::Tape<f32>, monlip::Tape<f64>> for monlip::Tape<f32> {
    fn keep(self) -> MonLipTape {
        Typed::F32(Arc::new(self))
    }
}

impl Keep<monlip::Tape<f32>, monlip::Tape<f64>> for monlip::Tape<f64> {
    fn keep(self) -> MonLipTape {
        Typed::F64(Arc::new(self))
    }
}

impl Keep<cayley::Tape<f32>, cayley::Tape<f64>> for cayley::Tape<f32> {
    fn keep(self) -> CayleyTape {
        Typed::F32(Arc::new(self))
    }
}

impl Keep<cayley::Tape<f32>, cayley::Tape<f64>> for cayley::Tape<f64> {
    fn keep(self) -> CayleyTape {
        Typed::F64(Arc::new(self))
    }
}

fn monlip_gradients<T: Real + Element + bytemuck::Pod>(
    tape: &monlip::Tape<T>,
    phi: &Flat,
    cotangent: &Flat,
    layout: &Layout,
) -> [Flat; 4] {
    let dy = values::<T>(cotangent);
    let rows = dy.len() / layout.n;
    let m = layout.hidden();
    let g = monlip::backward(layout, tape, &values::<T>(phi), &dy);
    let bias_rows = g.bias.len() / m;
    [
        tensor(g.x, [rows, layout.n]),
        tensor(g.phi, [layout.len]),
        tensor(g.bounds.to_vec(), [2]),
        tensor(g.bias, [bias_rows, m]),
    ]
}

fn row_major<T: Real>(m: bilip::faer::MatRef<'_, T>) -> Vec<T> {
    let mut out = Vec::with_capacity(m.nrows() * m.ncols());
    for i in 0..m.nrows() {
        for j in 0..m.ncols() {
            out.push(m[(i, j)]);
        }
    }
    out
}

fn square<T>(values: &[T]) -> bilip::faer::MatRef<'_, T> {
    let n = values.len().isqrt();
    bilip::faer::MatRef::from_row_major_slice(values, n, n)
}

fn cayley_gradients<T: Real + Element + bytemuck::Pod>(
    tape: &cayley::Tape<T>,
    free: &Flat,
    cotangent: &Flat,
) -> [Flat; 2] {
    let (free, cotangent) = (values::<T>(free), values::<T>(cotangent));
    let n = free.len().isqrt();
    let mut out = vec![T::zero(); n * n];
    let full = bilip::faer::MatMut::from_row_major_slice_mut(&mut out, n, n);
    let gain = cayley::backward(tape, square(&free), square(&cotangent), full);
    [tensor(out, [n, n]), tensor(vec![gain], [1])]
}

impl Native for Flex {
    type MonLipTape = MonLipTape;
    type CayleyTape = CayleyTape;

    fn monlip_forward([x, phi, bounds, bias]: [&Flat; 4], layout: &Layout) -> (Flat, MonLipTape) {
        in_precision!(x, T => {
            let (x, bounds) = (values::<T>(x), values::<T>(bounds));
            let rows = x.len() / layout.n;
            let (y, tape) =
                monlip::forward(layout, &x, &values::<T>(phi), bounds[0], bounds[1], &values::<T>(bias));
            (tensor(y, [rows, layout.n]), tape.keep())
        })
    }

    fn monlip_backward(tape: &MonLipTape, phi: &Flat, cotangent: Flat, layout: &Layout) -> [Flat; 4] {
        match tape {
            Typed::F32(tape) => monlip_gradients(tape, phi, &cotangent, layout),
            Typed::F64(tape) => monlip_gradients(tape, phi, &cotangent, layout),
        }
    }

    fn cayley_forward(free: &Flat, gain: &Flat) -> (Flat, CayleyTape) {
        in_precision!(free, T => {
            let values_of = values::<T>(free);
            let tape = cayley::forward(square(&values_of), values::<T>(gain)[0]);
            let n = tape.j.nrows();
            (tensor(row_major(tape.j.as_ref()), [n, n]), tape.keep())
        })
    }

    fn cayley_backward(tape: &CayleyTape, free: &Flat, cotangent: Flat) -> [Flat; 2] {
        match tape {
            Typed::F32(tape) => cayley_gradients(tape, free, &cotangent),
            Typed::F64(tape) => cayley_gradients(tape, free, &cotangent),
        }
    }

    fn invert(w: &Flat) -> Flat {
        in_precision!(w, T => {
            let mut all = values::<T>(w).into_owned();
            let shape = w.shape();
            let n = shape[1];
            inverse::invert_all(&mut all, n);
            tensor(all, shape)
        })
    }

    fn product(a: &Flat, b: &Flat, transposed: Transposed, precision: MatmulPrecision) -> Flat {
        if transposed == Transposed::Neither {
            return Self::matmul(a, b, precision);
        }
        // Without putting the transpose into memory first.
        in_precision!(a, T => {
            let last = |t: &Flat| {
                let shape = t.shape();
                let d = shape.num_dims();
                [shape[d - 2], shape[d - 1]]
            };
            let turned = (transposed == Transposed::Left, transposed == Transposed::Right);
            let (y, size) = product::products((&values::<T>(a), last(a)), (&values::<T>(b), last(b)), turned);
            let mut shape = a.shape();
            let d = shape.num_dims();
            (shape[d - 2], shape[d - 1]) = (size[0], size[1]);
            tensor(y, shape)
        })
    }

    fn rearrange(map: Rearrangement, x: &Flat) -> Flat {
        let shape = x.shape();
        in_precision!(x, T => match map {
            Rearrangement::Embed => {
                let y = rearrange::embed(&values::<T>(x), shape[1], shape[2]);
                tensor(y, [shape[0], shape[1], 2 * shape[2]])
            }
            Rearrangement::Skew => tensor(rearrange::skew(&values::<T>(x), shape[2], true), shape),
            Rearrangement::Strips(s) => {
                let y = rearrange::strips(&values::<T>(x), s, shape[2]);
                tensor(y, [shape[0] * s.pieces, 2 * s.height, shape[2]])
            }
            Rearrangement::Exchange([outer, a, b, inner]) => {
                let y = rearrange::exchanged(&values::<T>(x), [outer, a, b, inner]);
                tensor(y, [outer, b, a, inner])
            }
            Rearrangement::Unfold(..) | Rearrangement::Fold(..) => portable::rearrange::<Self>(map, x.clone()),
        })
    }

    fn rearrange_adjoint(map: Rearrangement, d: &Flat) -> Flat {
        let shape = d.shape();
        in_precision!(d, T => match map {
            Rearrangement::Embed => {
                let x = rearrange::fold_embedded(&values::<T>(d), shape[1], shape[2] / 2);
                tensor(x, [shape[0], shape[1], shape[2] / 2])
            }
            Rearrangement::Skew => tensor(rearrange::skew(&values::<T>(d), shape[2], false), shape),
            Rearrangement::Strips(s) => {
                let x = rearrange::laid_back(&values::<T>(d), s, shape[2]);
                tensor(x, [shape[0] / s.pieces, 2 * s.rows, shape[2]])
            }
            Rearrangement::Exchange([outer, a, b, inner]) => {
                let x = rearrange::exchanged(&values::<T>(d), [outer, b, a, inner]);
                tensor(x, [outer, a, b, inner])
            }
            Rearrangement::Unfold(..) | Rearrangement::Fold(..) => {
                portable::rearrange_adjoint::<Self>(map, d.clone())
            }
        })
    }

    fn spectra(table: &Flat, x: &Flat, inverse: bool) -> Flat {
        in_precision!(x, T => {
            let (rows, pixels) = (table.shape()[0], table.shape()[1]);
            let z = ImageFft::<T>::new(pixels.isqrt(), inverse).spectra(&values::<T>(x));
            tensor(z, [rows, x.shape()[0]])
        })
    }

    fn images(z: &Flat, table: &Flat, inverse: bool) -> Flat {
        in_precision!(z, T => {
            let pixels = table.shape()[1];
            let x = ImageFft::<T>::new(pixels.isqrt(), inverse).images(&values::<T>(z));
            tensor(x, [z.shape()[1], pixels])
        })
    }

    fn adam_step([parameters, gradient, first, second]: [Flat; 4], step: AdamStep) -> [Flat; 3] {
        // In place where nobody else holds the numbers, which is the rule in a training loop.
        let mut tensors =
            [parameters, first, second].map(|t| if t.is_contiguous() { t } else { t.to_contiguous() });
        in_precision!(gradient, T => {
            let [w, m, v] = &mut tensors;
            adam::step(
                w.storage_mut::<T>(),
                &values::<T>(&gradient),
                m.storage_mut::<T>(),
                v.storage_mut::<T>(),
                step,
            );
        });
        tensors
    }
}

impl NativeConvolution for Flex {
    fn convolve(matrix: &Flat, x: &Flat, seen: Convolved) -> Flat {
        in_precision!(x, T => {
            let matrix = values::<T>(matrix);
            let shape = seen.result(matrix.len());
            tensor(convolution::forward(&matrix, &values::<T>(x), seen), shape)
        })
    }

    fn convolve_backward(matrix: &Flat, x: &Flat, cotangent: &Flat, seen: Convolved) -> [Flat; 2] {
        let shape = matrix.shape();
        in_precision!(x, T => {
            let (d_matrix, d_x) =
                convolution::backward(&values::<T>(matrix), &values::<T>(x), &values::<T>(cotangent), seen);
            [tensor(d_matrix, shape), tensor(d_x, seen.shape)]
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_another_type_are_converted_and_never_lost() {
        let numbers = vec![0.5f64, -2.0, 3.25];
        for dtype in [DType::F64, DType::F32, DType::F16, DType::BF16] {
            let tensor = Flat::from_data(TensorData::new(numbers.clone(), [3]).convert_dtype(dtype));
            assert_eq!(values::<f64>(&tensor).to_vec(), numbers, "{dtype:?}");
            assert_eq!(values::<f32>(&tensor).to_vec(), [0.5, -2.0, 3.25], "{dtype:?}");
        }
    }
}
