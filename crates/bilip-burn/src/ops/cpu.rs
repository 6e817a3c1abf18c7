//! The operations on a CPU: kernels on the numbers of Burn's tensors.

use std::sync::Arc;

use bilip::Real;
use burn::backend::Flex;
use burn::tensor::ops::FloatTensor;
use burn::tensor::{DType, Element, TensorData, TensorMetadata};

use super::{Kernels, Linear, Order, Precision};
use crate::kernel::fourier::Fourier;
use crate::kernel::monlip::Layout;
use crate::kernel::{self, adam, rearrange};

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

pub(super) type Flat = FloatTensor<Flex>;

/// The numbers of a tensor, in row-major order.
pub(super) fn values<T: Real + Element + bytemuck::Pod>(tensor: &Flat) -> std::borrow::Cow<'_, [T]> {
    match tensor.as_slice::<T>() {
        Some(slice) => slice.into(),
        // Strided, or numbers of another type, which are converted.
        None => tensor.clone().into_data().iter::<T>().collect::<Vec<T>>().into(),
    }
}

pub(super) fn tensor<T: Element>(values: Vec<T>, shape: impl Into<burn::tensor::Shape>) -> Flat {
    Flat::from_data(TensorData::new(values, shape))
}

pub(crate) type MonLipTape = Typed<kernel::monlip::Tape<f32>, kernel::monlip::Tape<f64>>;
pub(crate) type CayleyTape = Typed<kernel::cayley::Tape<f32>, kernel::cayley::Tape<f64>>;

/// Puts a tape of either precision into the common type.
trait Keep<A, B> {
    fn keep(self) -> Typed<A, B>;
}

impl Keep<kernel::monlip::Tape<f32>, kernel::monlip::Tape<f64>> for kernel::monlip::Tape<f32> {
    fn keep(self) -> MonLipTape {
        Typed::F32(Arc::new(self))
    }
}

impl Keep<kernel::monlip::Tape<f32>, kernel::monlip::Tape<f64>> for kernel::monlip::Tape<f64> {
    fn keep(self) -> MonLipTape {
        Typed::F64(Arc::new(self))
    }
}

impl Keep<kernel::cayley::Tape<f32>, kernel::cayley::Tape<f64>> for kernel::cayley::Tape<f32> {
    fn keep(self) -> CayleyTape {
        Typed::F32(Arc::new(self))
    }
}

impl Keep<kernel::cayley::Tape<f32>, kernel::cayley::Tape<f64>> for kernel::cayley::Tape<f64> {
    fn keep(self) -> CayleyTape {
        Typed::F64(Arc::new(self))
    }
}

fn monlip_gradients<T: Real + Element + bytemuck::Pod>(
    tape: &kernel::monlip::Tape<T>,
    phi: &Flat,
    cotangent: &Flat,
    layout: &Layout,
) -> [Flat; 4] {
    let dy = values::<T>(cotangent);
    let rows = dy.len() / layout.n;
    let m = layout.hidden();
    let g = kernel::monlip::backward(layout, tape, &values::<T>(phi), &dy);
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
    tape: &kernel::cayley::Tape<T>,
    free: &Flat,
    cotangent: &Flat,
) -> [Flat; 2] {
    let (free, cotangent) = (values::<T>(free), values::<T>(cotangent));
    let n = free.len().isqrt();
    let mut out = vec![T::zero(); n * n];
    let full = bilip::faer::MatMut::from_row_major_slice_mut(&mut out, n, n);
    let gain = kernel::cayley::backward(tape, square(&free), square(&cotangent), full);
    [tensor(out, [n, n]), tensor(vec![gain], [1])]
}

impl Kernels for Flex {
    type MonLipTape = MonLipTape;
    type CayleyTape = CayleyTape;

    fn monlip_forward([x, phi, bounds, bias]: [&Flat; 4], layout: &Layout) -> (Flat, MonLipTape) {
        in_precision!(x, T => {
            let (x, bounds) = (values::<T>(x), values::<T>(bounds));
            let rows = x.len() / layout.n;
            let (y, tape) =
                kernel::monlip::forward(layout, &x, &values::<T>(phi), bounds[0], bounds[1], &values::<T>(bias));
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
            let tape = kernel::cayley::forward(square(&values_of), values::<T>(gain)[0]);
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
            kernel::cayley::invert_all(&mut all, n);
            tensor(all, shape)
        })
    }

    fn ordered(a: &Flat, b: &Flat, order: Order, precision: Precision) -> Flat {
        if order == Order::Plain {
            return Self::product(a, b, precision);
        }
        // Without putting the transpose into memory first.
        in_precision!(a, T => {
            let last = |t: &Flat| {
                let shape = t.shape();
                let d = shape.num_dims();
                [shape[d - 2], shape[d - 1]]
            };
            let turned = (order == Order::Left, order == Order::Right);
            let (y, size) = kernel::products((&values::<T>(a), last(a)), (&values::<T>(b), last(b)), turned);
            let mut shape = a.shape();
            let d = shape.num_dims();
            (shape[d - 2], shape[d - 1]) = (size[0], size[1]);
            tensor(y, shape)
        })
    }

    fn mapped(map: Linear, x: &Flat) -> Flat {
        let shape = x.shape();
        in_precision!(x, T => match map {
            Linear::Embed => {
                let y = rearrange::embed(&values::<T>(x), shape[1], shape[2]);
                tensor(y, [shape[0], shape[1], 2 * shape[2]])
            }
            Linear::Skew => tensor(rearrange::skew(&values::<T>(x), shape[2], true), shape),
            Linear::Strips(s) => {
                let y = rearrange::strips(&values::<T>(x), s, shape[2]);
                tensor(y, [shape[0] * s.pieces, 2 * s.height, shape[2]])
            }
            Linear::Exchange([outer, a, b, inner]) => {
                let y = rearrange::exchanged(&values::<T>(x), [outer, a, b, inner]);
                tensor(y, [outer, b, a, inner])
            }
            Linear::Unfold(..) | Linear::Fold(..) => map.plainly::<Self>(x.clone()),
        })
    }

    fn mapped_back(map: Linear, d: &Flat) -> Flat {
        let shape = d.shape();
        in_precision!(d, T => match map {
            Linear::Embed => {
                let x = rearrange::fold_embedded(&values::<T>(d), shape[1], shape[2] / 2);
                tensor(x, [shape[0], shape[1], shape[2] / 2])
            }
            Linear::Skew => tensor(rearrange::skew(&values::<T>(d), shape[2], false), shape),
            Linear::Strips(s) => {
                let x = rearrange::laid_back(&values::<T>(d), s, shape[2]);
                tensor(x, [shape[0] / s.pieces, 2 * s.rows, shape[2]])
            }
            Linear::Exchange([outer, a, b, inner]) => {
                let x = rearrange::exchanged(&values::<T>(d), [outer, b, a, inner]);
                tensor(x, [outer, a, b, inner])
            }
            Linear::Unfold(..) | Linear::Fold(..) => map.adjoint_plainly::<Self>(d.clone()),
        })
    }

    fn spectra(table: &Flat, x: &Flat, inverse: bool) -> Flat {
        in_precision!(x, T => {
            let (rows, pixels) = (table.shape()[0], table.shape()[1]);
            let z = Fourier::<T>::new(pixels.isqrt(), inverse).spectra(&values::<T>(x));
            tensor(z, [rows, x.shape()[0]])
        })
    }

    fn images(z: &Flat, table: &Flat, inverse: bool) -> Flat {
        in_precision!(z, T => {
            let pixels = table.shape()[1];
            let x = Fourier::<T>::new(pixels.isqrt(), inverse).images(&values::<T>(z));
            tensor(x, [z.shape()[1], pixels])
        })
    }

    fn adam_step([parameters, gradient, first, second]: [Flat; 4], step: adam::Step) -> [Flat; 3] {
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
