//! From the bytes of a model file to a network, everything checked.

use faer::Mat;
use safetensors::tensor::SafeTensors;

use super::format::{Block, Head, Header, ImageHeader, MlpSizes, NetworkKind, Step, StoredCertificate};
use super::network::Network;
use super::write::dtype;
use crate::base::bounds::Bounds;
use crate::base::error::{Error, Result, check_finite};
use crate::base::real::{Precision, Real};
use crate::certify::LayerKind;
use crate::layers::channels::ChannelOrthogonal;
use crate::layers::conv::fourier::{Complex, frequency_count};
use crate::layers::conv::{ConvExplicit, ConvMonLip, Frequency};
use crate::layers::convolution::Convolution;
use crate::layers::gp::{GpHead, RandomFeatures};
use crate::layers::mlp::Mlp;
use crate::layers::monlip::{MonLip, MonLipExplicit};
use crate::layers::orthogonal::Orthogonal;
use crate::layers::scaling::Scaling;
use crate::networks::bilipnet::BiLipNet;
use crate::networks::classifier::Classifier;
use crate::networks::conv::ConvBiLipNet;
use crate::networks::image::{ImageClassifier, ImageFeatures, ImageStep};
use crate::networks::map::BiLipschitz;
use crate::networks::partial::{PartialBiLipNet, PartialPlNet};
use crate::networks::plnet::PlNet;

/// Takes tensors out of a file, each once.
pub(super) struct Reader<'a> {
    tensors: &'a SafeTensors<'a>,
    used: usize,
}

impl<'a> Reader<'a> {
    pub(super) fn new(tensors: &'a SafeTensors<'a>) -> Self {
        Reader { tensors, used: 0 }
    }

    fn values<T: Real>(&mut self, name: &str, shape: &[usize]) -> Result<Vec<T>> {
        let view = self
            .tensors
            .tensor(name)
            .map_err(|_| Error::file(format!("tensor {name} is missing")))?;
        if view.shape() != shape {
            return Err(Error::file(format!(
                "tensor {name}: expected shape {shape:?}, found {:?}",
                view.shape()
            )));
        }
        let expected = dtype::<T>();
        if view.dtype() != expected {
            return Err(Error::file(format!(
                "tensor {name}: expected {expected:?}, found {:?}",
                view.dtype()
            )));
        }
        self.used += 1;
        let values: Vec<T> = match T::PRECISION {
            Precision::F32 => view
                .data()
                .as_chunks::<4>()
                .0
                .iter()
                .map(|b| T::round_from(f64::from(f32::from_le_bytes(*b))))
                .collect(),
            Precision::F64 => view
                .data()
                .as_chunks::<8>()
                .0
                .iter()
                .map(|b| T::round_from(f64::from_le_bytes(*b)))
                .collect(),
        };
        check_finite(&format!("tensor {name}"), &values)?;
        Ok(values)
    }

    fn matrix<T: Real>(&mut self, name: &str, rows: usize, cols: usize) -> Result<Mat<T>> {
        let values = self.values::<T>(name, &[rows, cols])?;
        Ok(Mat::from_fn(rows, cols, |i, j| values[i * cols + j]))
    }

    /// Complex matrices of one size, `[count, 2, rows, columns]`.
    fn complex<T: Real>(
        &mut self,
        name: &str,
        count: usize,
        rows: usize,
        columns: usize,
    ) -> Result<Vec<Complex<T>>> {
        let values = self.values::<T>(name, &[count, 2, rows, columns])?;
        let size = rows * columns;
        let part = |at: usize| Mat::from_fn(rows, columns, |i, j| values[at * size + i * columns + j]);
        Ok((0..count)
            .map(|f| Complex {
                re: part(2 * f),
                im: part(2 * f + 1),
            })
            .collect())
    }

    /// Every tensor of the file must have been asked for.
    fn finish(&self) -> Result<()> {
        if self.used != self.tensors.len() {
            return Err(Error::file(format!(
                "{} tensors that do not belong to the model",
                self.tensors.len() - self.used
            )));
        }
        Ok(())
    }
}

/// The network of a file of format version 1 or 3.
pub(super) fn read<T: Real>(
    header: &Header<StoredCertificate>,
    mut reader: Reader<'_>,
) -> Result<Network<T>> {
    let n = header.n;
    let blocks = header.blocks.len();
    if n == 0 {
        return Err(Error::file("n = 0"));
    }
    if matches!(
        header.kind,
        NetworkKind::ConvBiLipNet | NetworkKind::ImageFeatures | NetworkKind::ImageClassifier
    ) {
        return Err(Error::file("networks on images have format version 2"));
    }
    match (header.format_version, &header.offset_network) {
        (3, None) => {
            return Err(Error::file(
                "format version 3 is that of networks with an offset network",
            ));
        }
        (3, Some(_)) if header.kind != NetworkKind::PartialPlNet => {
            return Err(Error::file("only a partial PL network has an offset network"));
        }
        (3, Some(_)) | (_, None) => {}
        (version, Some(_)) => {
            return Err(Error::file(format!(
                "an offset network has format version 3, not {version}"
            )));
        }
    }
    if header.kind == NetworkKind::MonLip && blocks != 1 {
        return Err(Error::file(format!(
            "a monotone layer needs one block, found {blocks}"
        )));
    }
    let partial = matches!(
        header.kind,
        NetworkKind::PartialBiLipNet | NetworkKind::PartialPlNet
    );
    check_certificate(header)?;

    let mut monotone = Vec::new();
    for (k, block) in header.blocks.iter().enumerate() {
        let m = total_units(&format!("block {k}"), &block.units)?;
        let mut v = Vec::new();
        for j in 1..block.units.len() {
            v.push(reader.matrix(
                &format!("monotone.{k}.v.{}", j + 1),
                block.units[j],
                block.units[j - 1],
            )?);
        }
        let explicit = MonLipExplicit {
            bounds: block.bounds,
            activation: block.activation,
            v,
            s: reader.matrix(&format!("monotone.{k}.s"), m, n)?,
            psi: match block.psi {
                true => Some(reader.values(&format!("monotone.{k}.psi"), &[m])?),
                false => None,
            },
            hidden_bias: match partial {
                true => vec![T::zero(); m],
                false => reader.values(&format!("monotone.{k}.hidden_bias"), &[m])?,
            },
            output_bias: reader.values(&format!("monotone.{k}.output_bias"), &[n])?,
        };
        monotone.push(MonLip::unproved(explicit)?);
    }
    if header.kind == NetworkKind::MonLip {
        reader.finish()?;
        let layer = monotone.pop().ok_or_else(|| Error::file("no block"))?;
        if layer.design() != header.bounds {
            return Err(Error::file("the bounds of the layer and of the model differ"));
        }
        return Ok(Network::MonLip(layer));
    }

    let mut orthogonal = Vec::new();
    for k in 0..=blocks {
        let matrix = reader.matrix(&format!("orthogonal.{k}.weight"), n, n)?;
        let bias = match partial {
            true => vec![T::zero(); n],
            false => reader.values(&format!("orthogonal.{k}.bias"), &[n])?,
        };
        orthogonal.push(Orthogonal::unproved(matrix, bias)?);
    }
    let mut scaling = |which: &str, there: bool| -> Result<Option<Scaling<T>>> {
        if !there {
            return Ok(None);
        }
        let scale = reader.values(&format!("{which}.scale"), &[n])?;
        let shift = reader.values(&format!("{which}.shift"), &[n])?;
        Ok(Some(Scaling::new(scale, shift)?))
    };
    let input = scaling("input", header.input_scaling)?;
    let output = scaling("output", header.output_scaling)?;
    let net = BiLipNet::with_claim(orthogonal, monotone, Bounds::ISOMETRY.into())?
        .with_scalings(input, output)?
        .claiming(header.bounds.into());
    let network = if partial {
        let mut mlp = |name: &str, sizes: &MlpSizes| -> Result<Mlp<T>> {
            let mut before = header.parameters;
            let mut layers = Vec::new();
            for (i, &size) in sizes.iter().enumerate() {
                layers.push((
                    reader.matrix(&format!("{name}.{i}.weight"), size, before)?,
                    reader.values(&format!("{name}.{i}.bias"), &[size])?,
                ));
                before = size;
            }
            Mlp::new(layers)
        };
        let mut mlps = |which: &str, sizes: &[MlpSizes]| -> Result<Vec<Mlp<T>>> {
            (sizes.iter().enumerate())
                .map(|(k, sizes)| mlp(&format!("{which}.{k}"), sizes))
                .collect()
        };
        let orthogonal_bias = mlps("orthogonal_bias", &header.orthogonal_bias_networks)?;
        let hidden_bias = mlps("hidden_bias", &header.hidden_bias_networks)?;
        let net = PartialBiLipNet::new(net, orthogonal_bias, hidden_bias)?;
        match header.kind {
            NetworkKind::PartialPlNet => {
                let f = PartialPlNet::new(net, header.offset)?;
                Network::PartialPlNet(match &header.offset_network {
                    None => f,
                    Some(sizes) => f.with_offset_network(mlp("offset", sizes)?)?,
                })
            }
            _ => Network::PartialBiLipNet(net),
        }
    } else {
        match header.kind {
            NetworkKind::PlNet if header.known_minimizer => {
                let x = reader.values("minimizer", &[n])?;
                Network::PlNet(PlNet::with_minimizer(net, header.offset, x)?)
            }
            NetworkKind::PlNet => Network::PlNet(PlNet::new(net, header.offset)?),
            NetworkKind::Classifier => {
                let head = header
                    .head
                    .ok_or_else(|| Error::file("a classifier without a head"))?;
                Network::Classifier(Classifier::new(
                    net,
                    head.inputs,
                    read_head(&mut reader, head, n)?,
                    head.factor,
                )?)
            }
            _ => Network::BiLipNet(net),
        }
    };
    reader.finish()?;
    Ok(network)
}

fn total_units(what: &str, units: &[usize]) -> Result<usize> {
    units
        .iter()
        .try_fold(0usize, |sum, u| sum.checked_add(*u))
        .filter(|m| *m > 0)
        .ok_or_else(|| {
            let shown: Vec<String> = units.iter().take(8).map(|u| u.to_string()).collect();
            Error::file(format!("{what}: hidden widths [{}] cannot be", shown.join(", ")))
        })
}

fn read_head(reader: &mut Reader<'_>, head: Head, n: usize) -> Result<GpHead> {
    let (count, classes) = (head.features, head.classes);
    let frequencies = reader.matrix::<f64>("head.frequencies", count, n)?;
    let mut features = RandomFeatures::new(frequencies, reader.values("head.phases", &[count])?)?;
    if head.normalized {
        features = features.with_normalized_inputs();
    }
    let weights = reader.matrix::<f64>("head.weights", count, classes)?;
    let bias = reader.values::<f64>("head.bias", &[classes])?;
    let numbers = count
        .checked_add(1)
        .and_then(|next| count.checked_mul(next))
        .ok_or_else(|| Error::file("too many features"))?
        / 2;
    let triangle = reader.values::<f64>("head.factor", &[numbers])?;
    GpHead::from_triangle(features, weights, bias, &triangle)
}

/// The network of a file of format version 2: a network on images.
pub(super) fn read_images<T: Real>(
    header: &ImageHeader<StoredCertificate>,
    mut reader: Reader<'_>,
) -> Result<Network<T>> {
    let (mut channels, mut image) = (header.channels, header.image);
    if channels == 0 || image == 0 || image > MAX_SIDE {
        return Err(Error::file(format!(
            "images of {channels} channels and side {image} cannot be"
        )));
    }
    let mut steps = Vec::new();
    for (k, step) in header.steps.iter().enumerate() {
        steps.push(match step {
            Step::Block { bounds, layers } => {
                let net = read_block(&mut reader, k, (channels, image), layers, *bounds)?;
                ImageStep::Block(net)
            }
            Step::Convolution {
                outputs,
                kernel,
                stride,
                bound,
            } => {
                let shape = [*outputs, channels, *kernel, *kernel];
                let weight = reader.values(&format!("step.{k}.weight"), &shape)?;
                if !(*bound > 0.0 && bound.is_finite()) {
                    return Err(Error::file(format!(
                        "step {k}: a norm of {bound} cannot be claimed"
                    )));
                }
                let layer = Convolution::new([channels, *outputs], image, *kernel, *stride, weight)?;
                (channels, image) = (*outputs, layer.output_size());
                ImageStep::Convolution(layer, *bound)
            }
        });
    }
    let network = match header.kind {
        NetworkKind::ConvBiLipNet => match (steps.pop(), steps.is_empty()) {
            (Some(ImageStep::Block(net)), true) if net.claim().bounds() == header.bounds => {
                Network::ConvBiLipNet(net)
            }
            _ => return Err(Error::file("a network on images is one block with its bounds")),
        },
        NetworkKind::ImageFeatures | NetworkKind::ImageClassifier => {
            let features = ImageFeatures::new(
                steps,
                reader.values("scale", &[channels])?,
                reader.values("shift", &[channels])?,
                reader.matrix("projection", header.outputs, channels)?,
                header.bounds,
            )?;
            match (header.kind, header.head) {
                (NetworkKind::ImageFeatures, None) => Network::ImageFeatures(features),
                (NetworkKind::ImageClassifier, Some(head)) if head.inputs == features.outputs() => {
                    let process = read_head(&mut reader, head, features.outputs())?;
                    Network::ImageClassifier(ImageClassifier::new(features, process, head.factor)?)
                }
                _ => return Err(Error::file("a classifier has a head, a feature map has none")),
            }
        }
        _ => return Err(Error::file("networks on vectors have format version 1")),
    };
    reader.finish()?;
    Ok(network)
}

/// Largest side of images.
const MAX_SIDE: usize = 1 << 14;

fn read_block<T: Real>(
    reader: &mut Reader<'_>,
    step: usize,
    (channels, image): (usize, usize),
    layers: &[Block],
    bounds: Bounds,
) -> Result<ConvBiLipNet<T>> {
    let frequencies = frequency_count(image);
    let (mut monotone, mut orthogonal) = (Vec::new(), Vec::new());
    for (j, block) in layers.iter().enumerate() {
        let name = |part: &str| format!("step.{step}.{j}.{part}");
        let m = total_units(&name("units"), &block.units)?;
        let mut parts: Vec<Vec<Complex<T>>> = Vec::new();
        for i in 1..block.units.len() {
            let (rows, columns) = (block.units[i], block.units[i - 1]);
            parts.push(reader.complex(&name(&format!("v.{}", i + 1)), frequencies, rows, columns)?);
        }
        let s = reader.complex(&name("s"), frequencies, m, channels)?;
        let mut parts: Vec<_> = parts.into_iter().map(Vec::into_iter).collect();
        let all = s.into_iter().map(|s| Frequency {
            v: parts.iter_mut().filter_map(Iterator::next).collect(),
            s,
        });
        let explicit = ConvExplicit {
            bounds: block.bounds,
            activation: block.activation,
            image,
            units: block.units.clone(),
            frequencies: all.collect(),
            psi: match block.psi {
                true => Some(reader.values(&name("psi"), &[m])?),
                false => None,
            },
            hidden_bias: reader.values(&name("hidden_bias"), &[m])?,
            output_bias: reader.values(&name("output_bias"), &[channels])?,
        };
        monotone.push(ConvMonLip::unproved(explicit)?);
        let matrix = reader.matrix(&name("orthogonal.weight"), channels, channels)?;
        let bias = reader.values(&name("orthogonal.bias"), &[channels])?;
        orthogonal.push(ChannelOrthogonal::new(
            Orthogonal::unproved(matrix, bias)?,
            image,
        )?);
    }
    ConvBiLipNet::with_claim(monotone, orthogonal, bounds.into())
}

/// Checks that the stored certificate belongs to these layers and agrees with itself: that of an
/// undamaged file does.
fn check_certificate(header: &Header<StoredCertificate>) -> Result<()> {
    let layers = &header.certificate.layers;
    let scalings = usize::from(header.input_scaling) + usize::from(header.output_scaling);
    let expected = match header.kind {
        NetworkKind::MonLip if scalings > 0 => {
            return Err(Error::file("a monotone layer has no change of variables"));
        }
        NetworkKind::MonLip => 1,
        _ => 2 * header.blocks.len() + 1 + scalings,
    };
    if layers.len() != expected {
        return Err(Error::file(format!(
            "certificate of {} layers, the model has {expected}",
            layers.len()
        )));
    }
    let first = usize::from(header.input_scaling);
    for (k, layer) in layers.iter().enumerate() {
        let scaling = (k == 0 && header.input_scaling) || (k + 1 == layers.len() && header.output_scaling);
        let consistent = if scaling {
            layer.is_consistent(LayerKind::Scaling, None)
        } else if header.kind != NetworkKind::MonLip && (k - first).is_multiple_of(2) {
            layer.is_consistent(LayerKind::Orthogonal, None)
        } else {
            let block = &header.blocks[(k - first) / 2];
            layer.is_consistent(LayerKind::MonLip, Some(block.bounds))
        };
        if !consistent {
            return Err(Error::file(format!(
                "the certificate of layer {k} contradicts the model or itself"
            )));
        }
    }
    Ok(())
}
