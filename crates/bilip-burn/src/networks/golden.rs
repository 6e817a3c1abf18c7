//! Gradients of every module against the published layers: 1e-9 relative in f64, 1e-4 in f32.

use std::collections::HashMap;

use bilip::Bounds;
use burn::backend::{Autodiff, Flex};
use burn::module::{Module, Param};
use burn::nn::Linear;
use burn::tensor::{DType, Tensor, TensorData};
use safetensors::SafeTensors;

use crate::base::vector;
use crate::{BiLipNet, BiLipNetConfig, BoundsMode, MonLip, MonLipConfig, PartialConfig, PartialPlNet, PlNet};

type B = Autodiff<Flex>;

struct Fixture {
    name: &'static str,
    tensors: HashMap<String, (Vec<usize>, Vec<f64>)>,
    metadata: HashMap<String, String>,
}

impl Fixture {
    fn read(name: &'static str) -> Self {
        let path = format!(
            "{}/../bilip/tests/fixtures/{name}.safetensors",
            env!("CARGO_MANIFEST_DIR")
        );
        let bytes = std::fs::read(path).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
        let tensors = file
            .tensors()
            .into_iter()
            .map(|(key, view)| {
                let values = match view.dtype() {
                    safetensors::Dtype::F32 => view
                        .data()
                        .chunks_exact(4)
                        .map(|b| f64::from(f32::from_le_bytes(b.try_into().unwrap())))
                        .collect(),
                    _ => view
                        .data()
                        .chunks_exact(8)
                        .map(|b| f64::from_le_bytes(b.try_into().unwrap()))
                        .collect(),
                };
                (key.replace("BiLipBlock.", ""), (view.shape().to_vec(), values))
            })
            .collect();
        Fixture {
            name,
            tensors,
            metadata: header.metadata().clone().unwrap(),
        }
    }

    fn get(&self, key: &str) -> &[f64] {
        &self
            .tensors
            .get(key)
            .unwrap_or_else(|| panic!("{}: {key}", self.name))
            .1
    }

    fn meta(&self, key: &str) -> serde_json::Value {
        serde_json::from_str(&self.metadata[key]).unwrap()
    }

    fn config(&self, dtype: DType) -> MonLipConfig {
        let units: Vec<usize> = self
            .meta("units")
            .as_array()
            .unwrap()
            .iter()
            .map(|u| u.as_u64().unwrap() as usize)
            .collect();
        let bounds = Bounds::new(
            self.meta("mu").as_f64().unwrap(),
            self.meta("nu").as_f64().unwrap(),
        )
        .unwrap();
        let n = self.meta("n").as_u64().unwrap() as usize;
        MonLipConfig {
            dtype,
            ..MonLipConfig::new(n, units, BoundsMode::Fixed(bounds))
        }
    }

    /// The flat parameters of a monotone layer in our order, from values or gradients under a
    /// prefix.
    fn phi(&self, prefix: &str, layers: usize, transposed_q: usize) -> Vec<f64> {
        // Stored n×m; ours is m×n.
        let q = self.get(&format!("{prefix}Fq"));
        let (n, m) = (transposed_q, q.len() / transposed_q);
        let mut phi: Vec<f64> = (0..m * n).map(|k| q[(k % n) * m + k / n]).collect();
        phi.extend(self.get(&format!("{prefix}fq")));
        for k in 0..layers {
            phi.extend(self.get(&format!("{prefix}Fab{k}")));
        }
        for k in 0..layers {
            phi.extend(self.get(&format!("{prefix}fab{k}")));
        }
        phi.extend(self.get(&format!("{prefix}by")));
        phi
    }

    fn bias(&self, prefix: &str, layers: usize) -> Vec<f64> {
        (0..layers)
            .flat_map(|k| self.get(&format!("{prefix}b{k}")).to_vec())
            .collect()
    }

    fn matrix(&self, key: &str, dtype: DType) -> Tensor<B, 2> {
        let (shape, values) = &self.tensors[key];
        let data = TensorData::new(values.clone(), [shape[0], shape[1]]).convert_dtype(dtype);
        Tensor::from_data(data, (&Default::default(), dtype))
    }

    fn load_layer(&self, layer: MonLip<B>, prefix: &str, dtype: DType) -> MonLip<B> {
        let (n, layers) = (
            self.meta("n").as_u64().unwrap() as usize,
            self.config(dtype).units.len(),
        );
        let device = Default::default();
        // Partial networks compute their hidden biases.
        let own = self.tensors.contains_key(&format!("{prefix}b0"));
        let bias = own.then(|| vector(self.bias(prefix, layers), &device, dtype).unsqueeze());
        layer.with_parameters(vector(self.phi(prefix, layers, n), &device, dtype), bias)
    }

    fn load_net(&self, dtype: DType) -> BiLipNet<B> {
        let depth = self.meta("depth").as_u64().unwrap() as usize;
        let mut net = BiLipNetConfig::new(depth, self.config(dtype))
            .init::<B>(&Default::default())
            .unwrap();
        for (k, layer) in net.monotone.iter_mut().enumerate() {
            *layer = self.load_layer(layer.clone(), &format!("param/mon_{k}."), dtype);
        }
        for (k, layer) in net.orthogonal.iter_mut().enumerate() {
            let device = Default::default();
            let get = |name: &str| {
                vector(
                    self.get(&format!("param/uni_{k}.{name}")).to_vec(),
                    &device,
                    dtype,
                )
            };
            let own = self.tensors.contains_key(&format!("param/uni_{k}.b"));
            let free = self.matrix(&format!("param/uni_{k}.W"), dtype);
            *layer = layer
                .clone()
                .with_parameters(free, get("a"), own.then(|| get("b")));
        }
        net
    }
}

/// Largest difference relative to the largest entry.
fn relative(found: &[f64], expected: &[f64]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let scale = expected.iter().fold(0.0f64, |a, v| a.max(v.abs()));
    found
        .iter()
        .zip(expected)
        .fold(0.0f64, |a, (f, e)| a.max((f - e).abs()))
        / scale
}

fn numbers<const D: usize>(tensor: Tensor<Flex, D>) -> Vec<f64> {
    tensor.to_data().iter::<f64>().collect()
}

fn check(name: &str, what: &str, found: &[f64], expected: &[f64], dtype: DType) {
    let error = relative(found, expected);
    let limit = if dtype == DType::F64 { 1e-9 } else { 1e-4 };
    println!("{name:16} {what:12} {dtype:?} {error:.1e}");
    assert!(error < limit, "{name} {what} {dtype:?}: {error:.2e}");
}

#[test]
fn gradients_of_monotone_layers_are_the_published_ones() {
    for name in ["monlip_1d", "monlip_small", "monlip_wide"] {
        let f = Fixture::read(name);
        for dtype in [DType::F64, DType::F32] {
            let layer = f.config(dtype).init::<B>(&Default::default()).unwrap();
            let layer = f.load_layer(layer, "param/", dtype);
            let x = f.matrix("x", dtype).require_grad();
            let y = layer.forward(x.clone());
            check(name, "y", &numbers(y.clone().inner()), f.get("y"), dtype);
            let grads = (y * f.matrix("cotangent", dtype)).sum().backward();
            check(
                name,
                "x",
                &numbers(x.grad(&grads).unwrap()),
                f.get("grad/x"),
                dtype,
            );
            let (n, layers) = (f.config(dtype).n, f.config(dtype).units.len());
            let (phi, bias) = layer.parameters();
            check(
                name,
                "phi",
                &numbers(phi.grad(&grads).unwrap()),
                &f.phi("grad/", layers, n),
                dtype,
            );
            check(
                name,
                "bias",
                &numbers(bias.unwrap().grad(&grads).unwrap()),
                &f.bias("grad/", layers),
                dtype,
            );
        }
    }
}

#[test]
fn gradients_of_networks_are_the_published_ones() {
    for name in ["bilipnet", "plnet"] {
        let f = Fixture::read(name);
        for dtype in [DType::F64, DType::F32] {
            let net = f.load_net(dtype);
            let x = f.matrix("x", dtype).require_grad();
            let loss = if name == "plnet" {
                let device = Default::default();
                let c = vector(f.get("param/QuadPotential_0.c").to_vec(), &device, dtype);
                let net = PlNet::new(net.clone()).with_offset(c);
                let y = net.forward(x.clone());
                check(name, "y", &numbers(y.clone().inner()), f.get("y"), dtype);
                (y * vector(f.get("cotangent").to_vec(), &device, dtype)).sum()
            } else {
                let y = net.forward(x.clone());
                check(name, "y", &numbers(y.clone().inner()), f.get("y"), dtype);
                (y * f.matrix("cotangent", dtype)).sum()
            };
            let grads = loss.backward();
            check(
                name,
                "x",
                &numbers(x.grad(&grads).unwrap()),
                f.get("grad/x"),
                dtype,
            );
            let (n, layers) = (f.config(dtype).n, f.config(dtype).units.len());
            for (k, layer) in net.monotone.iter().enumerate() {
                let (phi, bias) = layer.parameters();
                let prefix = format!("grad/mon_{k}.");
                check(
                    name,
                    "phi",
                    &numbers(phi.grad(&grads).unwrap()),
                    &f.phi(&prefix, layers, n),
                    dtype,
                );
                check(
                    name,
                    "bias",
                    &numbers(bias.unwrap().grad(&grads).unwrap()),
                    &f.bias(&prefix, layers),
                    dtype,
                );
            }
            for (k, layer) in net.orthogonal.iter().enumerate() {
                let (free, gain, bias) = layer.parameters();
                let expected = |name: &str| f.get(&format!("grad/uni_{k}.{name}")).to_vec();
                check(
                    name,
                    "W",
                    &numbers(free.grad(&grads).unwrap()),
                    &expected("W"),
                    dtype,
                );
                // A single number that may be small against its terms: relative to those of the
                // matrix.
                let scale = expected("W").iter().fold(1.0f64, |a, v| a.max(v.abs()));
                let gain = numbers(gain.grad(&grads).unwrap())[0];
                assert!(
                    (gain - expected("a")[0]).abs() < scale * if dtype == DType::F64 { 1e-9 } else { 1e-4 }
                );
                check(
                    name,
                    "b",
                    &numbers(bias.unwrap().grad(&grads).unwrap()),
                    &expected("b"),
                    dtype,
                );
            }
        }
    }
}

#[test]
fn parameter_counts_are_the_published_ones() {
    let fixed = BoundsMode::Fixed(Bounds::new(0.1, 10.0).unwrap());
    let device = Default::default();
    let step = MonLipConfig::new(1, vec![32; 8], fixed)
        .init::<Flex>(&device)
        .unwrap();
    assert_eq!(step.num_params(), 15_882);
    let net = |n: usize, units: &[usize], bounds| {
        let net = BiLipNetConfig::new(2, MonLipConfig::new(n, units.to_vec(), bounds))
            .init::<Flex>(&device)
            .unwrap();
        PlNet::new(net).num_params()
    };
    assert_eq!(net(2, &[128; 4], fixed), 232_484);
    assert_eq!(net(20, &[256; 8], fixed), 2_053_418);
    // A learned ν adds one number a block, learned μ and γ two.
    assert_eq!(net(20, &[256; 8], BoundsMode::Distortion(5.0)), 2_053_418 + 2);
    assert_eq!(
        net(20, &[256; 8], BoundsMode::Learned(Bounds::new(0.5, 2.0).unwrap())),
        2_053_418 + 4
    );
}

#[test]
fn gradients_of_partial_networks_are_the_published_ones() {
    let f = Fixture::read("partial_bilipnet");
    let widths = |key: &str| -> Vec<usize> {
        let all = f.meta(key);
        let all = all.as_array().unwrap();
        all[..all.len() - 1]
            .iter()
            .map(|v| v.as_u64().unwrap() as usize)
            .collect()
    };
    for dtype in [DType::F64, DType::F32] {
        let config = PartialConfig {
            net: BiLipNetConfig::new(f.meta("depth").as_u64().unwrap() as usize, f.config(dtype)),
            parameters: f.meta("p").as_u64().unwrap() as usize,
            orthogonal_bias: widths("orthogonal_bias_mlp"),
            hidden_bias: widths("hidden_bias_mlp"),
        };
        let device = Default::default();
        let mut net = config.init::<B>(&device).unwrap();
        net.net = f.load_net(dtype);
        let load = |layers: &mut Vec<Linear<B>>, prefix: String| {
            for (i, layer) in layers.iter_mut().enumerate() {
                layer.weight =
                    Param::from_tensor(f.matrix(&format!("param/{prefix}.Dense_{i}.kernel"), dtype));
                let bias = f.get(&format!("param/{prefix}.Dense_{i}.bias")).to_vec();
                layer.bias = Some(Param::from_tensor(vector(bias, &device, dtype)));
            }
        };
        for (k, network) in net.orthogonal_bias.iter_mut().enumerate() {
            load(&mut network.layers, format!("uni_b_{k}"));
        }
        for (k, network) in net.hidden_bias.iter_mut().enumerate() {
            load(&mut network.layers, format!("mon_b_{k}"));
        }
        let x = f.matrix("x", dtype).require_grad();
        let y = net.forward(x.clone(), f.matrix("p", dtype));
        check(f.name, "y", &numbers(y.clone().inner()), f.get("y"), dtype);
        let grads = (y * f.matrix("cotangent", dtype)).sum().backward();
        check(
            f.name,
            "x",
            &numbers(x.grad(&grads).unwrap()),
            f.get("grad/x"),
            dtype,
        );
        let networks = net
            .orthogonal_bias
            .iter()
            .enumerate()
            .map(|(k, n)| (format!("uni_b_{k}"), n));
        for (name, network) in networks.chain(
            net.hidden_bias
                .iter()
                .enumerate()
                .map(|(k, n)| (format!("mon_b_{k}"), n)),
        ) {
            for (i, layer) in network.layers.iter().enumerate() {
                let weight = numbers(layer.weight.val().grad(&grads).unwrap());
                check(
                    f.name,
                    &name,
                    &weight,
                    f.get(&format!("grad/{name}.Dense_{i}.kernel")),
                    dtype,
                );
                let bias = numbers(layer.bias.as_ref().unwrap().val().grad(&grads).unwrap());
                check(
                    f.name,
                    &name,
                    &bias,
                    f.get(&format!("grad/{name}.Dense_{i}.bias")),
                    dtype,
                );
            }
        }
        for (k, layer) in net.net.monotone.iter().enumerate() {
            let (n, layers) = (f.config(dtype).n, f.config(dtype).units.len());
            let phi = numbers(layer.parameters().0.grad(&grads).unwrap());
            check(
                f.name,
                "phi",
                &phi,
                &f.phi(&format!("grad/mon_{k}."), layers, n),
                dtype,
            );
        }
    }
}

#[test]
fn the_parametric_experiment_has_the_published_number_of_parameters() {
    let bounds = BoundsMode::Fixed(Bounds::new(0.04, 16.0).unwrap());
    let config = PartialConfig {
        net: BiLipNetConfig::new(2, MonLipConfig::new(2, vec![128; 4], bounds)),
        parameters: 2,
        orthogonal_bias: vec![64, 128],
        hidden_bias: vec![64, 128, 256],
    };
    let net = config.init::<Flex>(&Default::default()).unwrap();
    assert_eq!(PartialPlNet::new(net).num_params(), 604_004);
}

#[test]
fn frozen_networks_agree_with_the_modules_and_are_certified() {
    use bilip::BiLipschitz;
    let device = Default::default();
    let modes = [
        BoundsMode::Fixed(Bounds::new(0.1, 10.0).unwrap()),
        BoundsMode::Distortion(20.0),
        BoundsMode::Learned(Bounds::new(0.5, 3.0).unwrap()),
    ];
    for (k, activation) in bilip::Activation::ALL.into_iter().enumerate() {
        let bounds = modes[k % modes.len()];
        let layer = MonLipConfig {
            activation,
            general: k % 2 == 1,
            seed: k as u64,
            dtype: DType::F64,
            ..MonLipConfig::new(3, vec![7, 5, 9], bounds)
        };
        let net = BiLipNetConfig::new(2, layer).init::<Flex>(&device).unwrap();
        let frozen = net.freeze::<f64>().unwrap();
        assert!(frozen.verify().holds(), "{activation}");
        let claimed = net.bounds().unwrap();
        assert!((frozen.bounds().mu() / claimed.mu() - 1.0).abs() < 1e-12);
        assert!((frozen.bounds().nu() / claimed.nu() - 1.0).abs() < 1e-12);
        let x = bilip::Rng::new(5).normals(3 * 20);
        let tensor = Tensor::<Flex, 2>::from_data(TensorData::new(x.clone(), [20, 3]), (&device, DType::F64));
        let ours = numbers(net.forward(tensor));
        assert!(
            relative(&ours, &frozen.forward(&x).unwrap()) < 1e-12,
            "{activation}"
        );
    }
}

#[test]
fn householder_layers_and_their_gradients_agree_with_the_frozen_form() {
    use bilip::BiLipschitz;
    let device = Default::default();
    let layer = crate::OrthogonalConfig::new(5)
        .with_seed(1)
        .with_dtype(DType::F64)
        .init_householder::<B>(3, &device)
        .unwrap();
    let frozen = layer.freeze::<f64>().unwrap();
    let mut rng = bilip::Rng::new(6);
    let (x, w) = (rng.normals(20), rng.normals(20));
    let tensor =
        |v: &[f64]| Tensor::<B, 2>::from_data(TensorData::new(v.to_vec(), [4, 5]), (&device, DType::F64));
    let input = tensor(&x).require_grad();
    let y = layer.forward(input.clone());
    assert!(relative(&numbers(y.clone().inner()), &frozen.forward(&x).unwrap()) < 1e-14);
    let groups = layer.on_groups(input.clone().transpose().reshape([1, 5, 2, 2]));
    let columns = groups.reshape([5, 4]).transpose();
    assert!(relative(&numbers(columns.inner()), &frozen.forward(&x).unwrap()) < 1e-14);
    let grads = (y * tensor(&w)).sum().backward();
    let exact = frozen.vjp(&x, &w).unwrap();
    assert!(relative(&numbers(input.grad(&grads).unwrap()), &exact) < 1e-13);
    assert!(
        crate::OrthogonalConfig::new(5)
            .init_householder::<B>(0, &device)
            .is_err()
    );
}
