//! The paths against each other.

use std::sync::Arc;

use bilip::{Activation, Rng};
use burn::backend::{Autodiff, Flex, NdArray};
use burn::tensor::backend::Backend;
use burn::tensor::{DType, Tensor, TensorData};

use crate::backend::portable;
use crate::base::numbers;
use crate::spec::Layout;

type F = Autodiff<Flex>;

fn tensor<B: Backend, const D: usize>(values: &[f64], shape: [usize; D]) -> Tensor<B, D> {
    Tensor::from_data(
        TensorData::new(values.to_vec(), shape),
        (&Default::default(), DType::F64),
    )
}

/// The value and the gradients of x, φ, bounds and bias of one layer by one of the two paths.
#[allow(clippy::type_complexity)]
fn all(
    layer: impl Fn(Tensor<F, 2>, Tensor<F, 1>, Tensor<F, 1>, Tensor<F, 2>, &Arc<Layout>) -> Tensor<F, 2>,
    layout: &Arc<Layout>,
    bias_rows: usize,
) -> Vec<Vec<f64>> {
    let mut rng = Rng::new(5);
    let rows = 6;
    let x = tensor::<F, 2>(&rng.normals(rows * layout.n), [rows, layout.n]).require_grad();
    let mut phi = rng.normals(layout.len);
    phi[layout.gain_q] = 1.4;
    phi[layout.gain_ab.clone()].fill(1.8);
    let phi = tensor::<F, 1>(&phi, [layout.len]).require_grad();
    let bounds = tensor::<F, 1>(&[0.3, 2.0], [2]).require_grad();
    let m = layout.hidden();
    let bias = tensor::<F, 2>(&rng.normals(bias_rows * m), [bias_rows, m]).require_grad();
    let weight = tensor::<F, 2>(&rng.normals(rows * layout.n), [rows, layout.n]);
    let y = layer(x.clone(), phi.clone(), bounds.clone(), bias.clone(), layout);
    let gradients = (y.clone() * weight).sum().backward();
    vec![
        numbers(y),
        numbers(x.grad(&gradients).unwrap()),
        numbers(phi.grad(&gradients).unwrap()),
        numbers(bounds.grad(&gradients).unwrap()),
        numbers(bias.grad(&gradients).unwrap()),
    ]
}

#[test]
fn the_portable_layer_agrees_with_the_native_one_in_value_and_gradient() {
    for (case, activation) in Activation::ALL.into_iter().enumerate() {
        for (n, units, general) in [
            (3, vec![5, 4, 6], false),
            (6, vec![2, 2], false),
            (2, vec![30, 20], true),
        ] {
            let layout = Arc::new(Layout::new(n, &units, activation, general));
            let bias_rows = [1, 6][case % 2];
            let native = all(super::monlip::<F>, &layout, bias_rows);
            let portable = all(
                |x, phi, bounds, bias, layout| portable::monlip(x, phi, bounds, bias, layout),
                &layout,
                bias_rows,
            );
            for (what, (a, b)) in native.iter().zip(&portable).enumerate() {
                let scale = a.iter().fold(1e-3, |s: f64, v| s.max(v.abs()));
                for (a, b) in a.iter().zip(b) {
                    assert!(
                        (a - b).abs() <= 1e-10 * scale,
                        "{activation} {units:?} {what}: {a} against {b}"
                    );
                }
            }
        }
    }
}

#[test]
fn another_backend_takes_the_portable_path_and_steps_alike() {
    fn train<B: burn::tensor::backend::AutodiffBackend>() -> Vec<f64> {
        use crate::{Adam, BiLipNetConfig, BoundsMode, MonLipConfig, PlNet};
        use burn::optim::{GradientsParams, Optimizer};
        // In f64: Adam turns the rounding noise of a gradient that is zero into a full step, unless
        // it is far below its ε.
        let config = MonLipConfig {
            dtype: DType::F64,
            ..MonLipConfig::new(2, vec![8, 8], BoundsMode::Distortion(20.0))
        };
        let net = BiLipNetConfig::new(2, config)
            .init::<B>(&Default::default())
            .unwrap();
        let mut model = PlNet::new(net);
        let mut optimizer = Adam::default().init::<B, PlNet<B>>();
        let x = tensor::<B, 2>(&[0.0, 0.5, 1.0, -1.0, -2.0, 1.0], [3, 2]);
        for _ in 0..5 {
            let error = model.forward(x.clone()).sub_scalar(1.0);
            let loss = (error.clone() * error).mean();
            let gradients = GradientsParams::from_grads(loss.backward(), &model);
            model = optimizer.step(1e-2, model, gradients);
        }
        numbers(model.forward(x))
    }
    let (flex, other) = (train::<F>(), train::<Autodiff<NdArray>>());
    for (a, b) in flex.iter().zip(&other) {
        assert!((a - b).abs() < 1e-8, "{a} against {b}");
    }
}

#[test]
fn badly_conditioned_transforms_are_still_orthogonal() {
    // A gain of 1,000 makes I + Z as badly conditioned as training ever will; a zero matrix gives
    // the identity.
    for (rows, cols, gain) in [(20, 20, 1e3), (30, 12, 1e3), (9, 4, 1e-3)] {
        let free = tensor::<Flex, 2>(&Rng::new(1).normals(rows * cols), [rows, cols]);
        let j = portable::cayley(free, tensor(&[gain], [1]));
        let gram = numbers(j.clone().transpose().matmul(j));
        for i in 0..cols {
            for k in 0..cols {
                let expected = if i == k { 1.0 } else { 0.0 };
                let found = gram[i * cols + k];
                assert!((found - expected).abs() < 1e-8, "gain {gain}: {found}");
            }
        }
    }
    let zero = portable::cayley(tensor::<Flex, 2>(&[0.0; 4], [2, 2]), tensor(&[1.0], [1]));
    assert_eq!(numbers(zero), [1.0, 0.0, 0.0, 1.0]);
}
