//! From a network to the bytes of a model file.

use std::collections::{BTreeMap, HashMap};

use faer::MatRef;
use safetensors::tensor::{Dtype, TensorView};

use super::format::{Block, Head, Header, ImageHeader, KEY, MlpSizes, Step};
use super::network::Network;
use crate::base::error::{Error, Result};
use crate::base::real::{Precision, Real};
use crate::certify::Certificate;
use crate::layers::conv::ConvMonLip;
use crate::layers::conv::fourier::Complex;
use crate::layers::convolution::Convolution;
use crate::layers::gp::GpHead;
use crate::layers::mlp::Mlp;
use crate::networks::conv::ConvBiLipNet;
use crate::networks::image::{ImageFeatures, ImageStep};
use crate::networks::map::BiLipschitz;

impl<T: Real> Network<T> {
    fn header(&self, provenance: &BTreeMap<String, String>) -> Header<Certificate> {
        let widths = |mlp: &Mlp<T>| -> MlpSizes { mlp.layers().iter().map(|(w, _)| w.nrows()).collect() };
        let sizes = |mlps: &[Mlp<T>]| mlps.iter().map(widths).collect();
        let offset_network = self.offset_network().map(widths);
        let certificate = self.certificate();
        Header {
            // What readers of version 1 would pass over makes another function.
            format_version: if offset_network.is_some() { 3 } else { 1 },
            kind: self.kind(),
            precision: T::PRECISION,
            n: self.net().map_or(self.dim(), BiLipschitz::dim),
            parameters: self.partial().map_or(0, |p| p.parameters()),
            bounds: self.claim().bounds(),
            blocks: self
                .monotone()
                .iter()
                .map(|l| Block {
                    units: l.units().to_vec(),
                    activation: l.activation(),
                    bounds: l.design(),
                    psi: l.psi().is_some(),
                })
                .collect(),
            input_scaling: self.net().is_some_and(|net| net.input().is_some()),
            output_scaling: self.net().is_some_and(|net| net.output().is_some()),
            offset: match self {
                Network::PlNet(f) => f.offset(),
                Network::PartialPlNet(f) => f.offset(),
                _ => 0.0,
            },
            known_minimizer: matches!(self, Network::PlNet(f) if f.minimizer().is_some()),
            orthogonal_bias_networks: self.partial().map_or(Vec::new(), |p| sizes(p.orthogonal_bias())),
            hidden_bias_networks: self.partial().map_or(Vec::new(), |p| sizes(p.hidden_bias())),
            offset_network,
            head: match self {
                Network::Classifier(c) => Some(head(c.head(), c.inputs(), c.factor())),
                _ => None,
            },
            certificate,
            provenance: provenance.clone(),
        }
    }

    fn tensors(&self) -> Vec<StoredTensor> {
        let mut tensors = Tensors(Vec::new());
        let partial = self.partial();
        for (k, l) in self.monotone().into_iter().enumerate() {
            for (j, v) in l.v().iter().enumerate() {
                tensors.matrix(format!("monotone.{k}.v.{}", j + 2), v.as_ref());
            }
            tensors.matrix(format!("monotone.{k}.s"), l.s());
            if let Some(psi) = l.psi() {
                tensors.vector(format!("monotone.{k}.psi"), psi);
            }
            if partial.is_none() {
                tensors.vector(format!("monotone.{k}.hidden_bias"), l.hidden_bias());
            }
            tensors.vector(format!("monotone.{k}.output_bias"), l.output_bias());
        }
        for (k, l) in self
            .net()
            .map_or(&[][..], |net| net.orthogonal())
            .iter()
            .enumerate()
        {
            tensors.matrix(format!("orthogonal.{k}.weight"), l.matrix());
            if partial.is_none() {
                tensors.vector(format!("orthogonal.{k}.bias"), l.bias());
            }
        }
        if let Some(net) = self.net() {
            for (which, scaling) in [("input", net.input()), ("output", net.output())] {
                if let Some(scaling) = scaling {
                    tensors.vector(format!("{which}.scale"), scaling.scale());
                    tensors.vector(format!("{which}.shift"), scaling.shift());
                }
            }
        }
        if let Some(partial) = partial {
            for (which, mlps) in [
                ("orthogonal_bias", partial.orthogonal_bias()),
                ("hidden_bias", partial.hidden_bias()),
            ] {
                for (k, mlp) in mlps.iter().enumerate() {
                    tensors.perceptron(&format!("{which}.{k}"), mlp);
                }
            }
        }
        if let Some(mlp) = self.offset_network() {
            tensors.perceptron("offset", mlp);
        }
        if let Network::PlNet(f) = self
            && let Some(x) = f.minimizer()
        {
            tensors.vector("minimizer".into(), x);
        }
        if let Network::Classifier(c) = self {
            tensors.head(c.head());
        }
        tensors.0
    }

    /// The contents of a model file.
    pub(super) fn to_bytes(&self, provenance: &BTreeMap<String, String>) -> Result<Vec<u8>> {
        let images = image_steps(self);
        let header = match &images {
            Some(images) => serde_json::to_string(&self.image_header(images, provenance)),
            None => serde_json::to_string(&self.header(provenance)),
        }
        .map_err(|e| Error::file(format!("metadata cannot be written: {e}")))?;
        let tensors = match &images {
            Some(images) => self.image_tensors(images),
            None => self.tensors(),
        };
        let views = tensors
            .iter()
            .map(|tensor| {
                TensorView::new(tensor.dtype, tensor.shape.clone(), &tensor.bytes)
                    .map(|view| (tensor.name.as_str(), view))
                    .map_err(|e| Error::file(format!("tensor {}: {e}", tensor.name)))
            })
            .collect::<Result<Vec<_>>>()?;
        let metadata = HashMap::from([(KEY.to_string(), header)]);
        safetensors::serialize(views, Some(metadata)).map_err(|e| Error::file(e.to_string()))
    }
}

/// The steps of a network on images.
fn image_steps<T: Real>(network: &Network<T>) -> Option<Vec<StepRef<'_, T>>> {
    match network {
        Network::ConvBiLipNet(net) => Some(vec![StepRef::Block(net)]),
        Network::ImageFeatures(f) => Some(steps_of(f.steps())),
        Network::ImageClassifier(c) => Some(steps_of(c.features().steps())),
        _ => None,
    }
}

fn steps_of<T>(steps: &[ImageStep<T>]) -> Vec<StepRef<'_, T>> {
    (steps.iter())
        .map(|step| match step {
            ImageStep::Block(net) => StepRef::Block(net),
            ImageStep::Convolution(c, bound) => StepRef::Convolution(c, *bound),
        })
        .collect()
}

enum StepRef<'a, T> {
    Block(&'a ConvBiLipNet<T>),
    Convolution(&'a Convolution<T>, f64),
}

fn head(head: &GpHead, inputs: usize, factor: f64) -> Head {
    Head {
        inputs,
        features: head.features().count(),
        classes: head.outputs(),
        normalized: head.features().normalized_inputs(),
        factor,
    }
}

impl<T: Real> Network<T> {
    fn features(&self) -> Option<&ImageFeatures<T>> {
        match self {
            Network::ImageFeatures(f) => Some(f),
            Network::ImageClassifier(c) => Some(c.features()),
            _ => None,
        }
    }

    fn image_header(
        &self,
        steps: &[StepRef<'_, T>],
        provenance: &BTreeMap<String, String>,
    ) -> ImageHeader<Certificate> {
        let (channels, image) = self.image().unwrap_or_default();
        let block = |l: &ConvMonLip<T>| Block {
            units: l.units().to_vec(),
            activation: l.activation(),
            bounds: l.design(),
            psi: l.explicit.psi.is_some(),
        };
        ImageHeader {
            format_version: 2,
            kind: self.kind(),
            precision: T::PRECISION,
            channels,
            image,
            bounds: self.claim().bounds(),
            steps: (steps.iter())
                .map(|step| match step {
                    StepRef::Block(net) => Step::Block {
                        bounds: net.claim().bounds(),
                        layers: net.monotone().iter().map(block).collect(),
                    },
                    StepRef::Convolution(c, bound) => Step::Convolution {
                        outputs: c.channels()[1],
                        kernel: c.kernel(),
                        stride: c.stride(),
                        bound: *bound,
                    },
                })
                .collect(),
            outputs: self.features().map_or(0, ImageFeatures::outputs),
            head: match self {
                Network::ImageClassifier(c) => Some(head(c.head(), c.features().outputs(), c.factor())),
                _ => None,
            },
            certificate: self.certificate(),
            provenance: provenance.clone(),
        }
    }

    fn image_tensors(&self, steps: &[StepRef<'_, T>]) -> Vec<StoredTensor> {
        let mut tensors = Tensors(Vec::new());
        for (k, step) in steps.iter().enumerate() {
            match step {
                StepRef::Convolution(c, _) => {
                    let ([inputs, outputs], kernel) = (c.channels(), c.kernel());
                    let shape = vec![outputs, inputs, kernel, kernel];
                    tensors.values(format!("step.{k}.weight"), shape, c.weight());
                }
                StepRef::Block(net) => {
                    for (j, (layer, map)) in net.monotone().iter().zip(net.orthogonal()).enumerate() {
                        let name = |part: &str| format!("step.{k}.{j}.{part}");
                        let e = &layer.explicit;
                        for i in 1..e.units.len() {
                            let v = e.frequencies.iter().map(|f| &f.v[i - 1]);
                            tensors.complex(name(&format!("v.{}", i + 1)), v);
                        }
                        tensors.complex(name("s"), e.frequencies.iter().map(|f| &f.s));
                        if let Some(psi) = &e.psi {
                            tensors.vector(name("psi"), psi);
                        }
                        tensors.vector(name("hidden_bias"), &e.hidden_bias);
                        tensors.vector(name("output_bias"), &e.output_bias);
                        tensors.matrix(name("orthogonal.weight"), map.map().matrix());
                        tensors.vector(name("orthogonal.bias"), map.map().bias());
                    }
                }
            }
        }
        if let Some(features) = self.features() {
            let (scale, shift) = features.affine();
            tensors.vector("scale".into(), scale);
            tensors.vector("shift".into(), shift);
            tensors.matrix("projection".into(), features.projection());
        }
        if let Network::ImageClassifier(c) = self {
            tensors.head(c.head());
        }
        tensors.0
    }
}

struct StoredTensor {
    name: String,
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

pub(super) fn dtype<T: Real>() -> Dtype {
    match T::PRECISION {
        Precision::F32 => Dtype::F32,
        Precision::F64 => Dtype::F64,
    }
}

struct Tensors(Vec<StoredTensor>);

impl Tensors {
    fn matrix<T: Real>(&mut self, name: String, m: MatRef<'_, T>) {
        let mut bytes = Vec::with_capacity(m.nrows() * m.ncols() * size_of::<T>());
        for i in 0..m.nrows() {
            for j in 0..m.ncols() {
                m[(i, j)].write_le(&mut bytes);
            }
        }
        self.push::<T>(name, vec![m.nrows(), m.ncols()], bytes);
    }

    fn perceptron<T: Real>(&mut self, name: &str, mlp: &Mlp<T>) {
        for (i, (weight, bias)) in mlp.layers().iter().enumerate() {
            self.matrix(format!("{name}.{i}.weight"), weight.as_ref());
            self.vector(format!("{name}.{i}.bias"), bias);
        }
    }

    fn vector<T: Real>(&mut self, name: String, v: &[T]) {
        self.values(name, vec![v.len()], v);
    }

    fn values<T: Real>(&mut self, name: String, shape: Vec<usize>, v: &[T]) {
        let mut bytes = Vec::with_capacity(size_of_val(v));
        for value in v {
            value.write_le(&mut bytes);
        }
        self.push::<T>(name, shape, bytes);
    }

    /// Complex matrices of one size, `[count, 2, rows, columns]`: real parts, imaginary parts.
    fn complex<'a, T: Real>(&mut self, name: String, all: impl ExactSizeIterator<Item = &'a Complex<T>>) {
        let count = all.len();
        let (mut values, mut shape) = (Vec::new(), (0, 0));
        for matrix in all {
            shape = matrix.re.shape();
            for part in [&matrix.re, &matrix.im] {
                for i in 0..shape.0 {
                    values.extend((0..shape.1).map(|j| part[(i, j)]));
                }
            }
        }
        self.values(name, vec![count, 2, shape.0, shape.1], &values);
    }

    /// The process of a classifier, in f64 whatever the precision of the feature map.
    fn head(&mut self, head: &GpHead) {
        self.matrix("head.frequencies".into(), head.features().frequencies());
        self.vector("head.phases".into(), head.features().phases());
        self.matrix("head.weights".into(), head.weights());
        self.vector("head.bias".into(), head.bias());
        self.vector("head.factor".into(), &head.triangle());
    }

    fn push<T: Real>(&mut self, name: String, shape: Vec<usize>, bytes: Vec<u8>) {
        self.0.push(StoredTensor {
            name,
            dtype: dtype::<T>(),
            shape,
            bytes,
        });
    }
}
