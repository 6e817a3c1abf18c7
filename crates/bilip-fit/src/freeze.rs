//! Trained models in the user's units, with their stored weights.

use bilip::faer::Mat;
use bilip::{BiLipNet, BiLipschitz, Mlp, Network, Orthogonal, Real};
use bilip_burn::{Accumulation, GpNet, Loss, MonLip, PlNet};
use burn::tensor::backend::AutodiffBackend;

use crate::error::{Error, Result};
use crate::prepare::{Prepared, padded};
use crate::recipe::Recipe;
use crate::standard::Standard;

/// The ridge of the Laplace approximation.
const RIDGE: f64 = 1.0;

/// A network in the user's units: `√s·G` under a potential of scale s, `s·G + m` otherwise.
pub(crate) fn scaled<T: Real>(
    net: BiLipNet<T>,
    prepared: &Prepared,
    recipe: &Recipe,
    potential: bool,
) -> Result<BiLipNet<T>> {
    let net = match recipe.reversed {
        true => net.with_reflected_output(0)?,
        false => net,
    };
    let net = match &recipe.front {
        Some(front) => front.with(net)?,
        None => net,
    };
    in_units(net, prepared, potential)
}

/// A network of standardized variables in the user's units.
fn in_units<T: Real>(net: BiLipNet<T>, prepared: &Prepared, potential: bool) -> Result<BiLipNet<T>> {
    let output = if potential {
        let n = prepared.inputs.len();
        let root = Standard {
            center: vec![0.0; n],
            scale: vec![prepared.y.scale[0].sqrt(); n],
        };
        root.backward()?
    } else {
        prepared.y.backward()?
    };
    Ok(net.with_scalings(prepared.x.forward()?, output)?)
}

/// The front of a recipe alone: a quadratic function or a linear map.
pub(crate) fn linear_network<T: Real>(
    prepared: &Prepared,
    recipe: &Recipe,
    potential: bool,
) -> Result<Network<T>> {
    let front = (recipe.front.as_ref())
        .ok_or_else(|| Error::Data("there is no linear part to use without a network".into()))?;
    let net = in_units(front.network::<T>()?, prepared, potential)?;
    Ok(match potential {
        true => Network::PlNet(bilip::PlNet::new(net, offset(recipe.level, prepared))?),
        false => Network::BiLipNet(net),
    })
}

/// A monotone layer in the user's units.
pub(crate) fn freeze_monlip<B: AutodiffBackend, T: Real>(
    model: &MonLip<B>,
    prepared: &Prepared,
    recipe: &Recipe,
) -> Result<Network<T>> {
    let (x, mut y) = (&prepared.x, prepared.y.clone());
    if recipe.negated {
        y.center.iter_mut().for_each(|c| *c = -*c);
    }
    let free = model.free()?;
    let at = |center: &[f64]| free.in_variables((center, x.scale[0]), (&y.center, y.scale[0]));
    let layer = bilip::MonLip::<T>::from_free(&at(&x.center)?)?;
    // The center meets the stored weights: with those before rounding, a large one would not
    // cancel.
    let centered = at(&vec![0.0; x.center.len()])?;
    let gain = (2.0 * layer.design().gap()).sqrt();
    let s = layer.s();
    let bias = (0..s.nrows())
        .map(|i| {
            let moved: f64 = (0..s.ncols()).map(|j| s[(i, j)].as_f64() * x.center[j]).sum();
            T::round_from(centered.hidden_bias[i] - gain * moved)
        })
        .collect();
    let layer = layer.with_hidden_bias(bias)?;
    if !recipe.negated {
        return Ok(Network::MonLip(layer));
    }
    // A layer that decreases: a monotone one with its sign changed, which keeps every bound.
    let n = x.center.len();
    let diagonal = |value: T| {
        let matrix = Mat::from_fn(n, n, |i, j| if i == j { value } else { T::zero() });
        Orthogonal::from_explicit(matrix, vec![T::zero(); n])
    };
    let ends = vec![diagonal(T::one())?, diagonal(-T::one())?];
    Ok(Network::BiLipNet(BiLipNet::from_layers(ends, vec![layer])?))
}

/// A classifier in the user's units, its posterior that of the stored weights.
pub(crate) fn freeze_classifier<B: AutodiffBackend, T: Real>(
    model: &GpNet<B, bilip_burn::BiLipNet<B>>,
    prepared: &Prepared,
) -> Result<Network<T>> {
    let net = model.net().freeze::<T>()?;
    let (inputs, width) = (prepared.inputs.len(), net.dim());
    // What pads the inputs is zero before and after, and takes a factor that is there already.
    let mut padded_x = prepared.x.clone();
    padded_x.center.resize(width, 0.0);
    padded_x.scale.resize(width, prepared.x.scale[0]);
    let net = net.with_scalings(padded_x.forward()?, None)?;
    let rows: Vec<T> = padded(&prepared.kept.x, inputs, width)
        .iter()
        .map(|v| T::round_from(*v))
        .collect();
    let h: Vec<f64> = net.forward(&rows)?.iter().map(|v| v.as_f64()).collect();
    let head = model
        .head()
        .posterior(&h, Loss::CrossEntropy, RIDGE, Accumulation::Exact)?;
    let factor = bilip::Classifier::<T>::FACTOR;
    Ok(Network::Classifier(bilip::Classifier::new(
        net, inputs, head, factor,
    )?))
}

/// The offset of a potential in the user's units.
fn offset(standardized: f64, prepared: &Prepared) -> f64 {
    prepared.y.scale[0] * standardized + prepared.y.center[0]
}

pub(crate) fn freeze_plnet<B: AutodiffBackend, T: Real>(
    model: &PlNet<B>,
    prepared: &Prepared,
    recipe: &Recipe,
    minimum: Option<&[f64]>,
) -> Result<Network<T>> {
    let frozen = model.freeze::<T>()?;
    let net = scaled(frozen.net().clone(), prepared, recipe, true)?;
    let offset = offset(frozen.offset() + recipe.level, prepared);
    Ok(Network::PlNet(match minimum {
        None => bilip::PlNet::new(net, offset)?,
        Some(x) => bilip::PlNet::with_minimizer(net, offset, x.iter().map(|v| T::round_from(*v)).collect())?,
    }))
}

/// The layers of a network of p, with the scale of p in the first.
fn folded<T: Real>(mlp: &Mlp<T>, prepared: &Prepared) -> Vec<(Mat<f64>, Vec<f64>)> {
    let mut layers = mlp.convert::<f64>().layers().to_vec();
    if let Some((weight, bias)) = layers.first_mut() {
        let (center, scale) = (&prepared.p.center, &prepared.p.scale);
        let folded = Mat::from_fn(weight.nrows(), weight.ncols(), |i, j| weight[(i, j)] / scale[j]);
        for (i, b) in bias.iter_mut().enumerate() {
            *b -= (0..center.len()).map(|j| folded[(i, j)] * center[j]).sum::<f64>();
        }
        *weight = folded;
    }
    layers
}

/// A partial network in the user's units; the scale of p goes into the first layers of the bias
/// networks.
pub(crate) fn partial<T: Real>(
    frozen: &bilip::PartialBiLipNet<T>,
    prepared: &Prepared,
    recipe: &Recipe,
    potential: bool,
) -> Result<bilip::PartialBiLipNet<T>> {
    let fold = |mlps: &[Mlp<T>]| -> Result<Vec<Mlp<T>>> {
        (mlps.iter())
            .map(|mlp| Ok(Mlp::new(folded(mlp, prepared))?.convert::<T>()))
            .collect()
    };
    let net = scaled(frozen.net().clone(), prepared, recipe, potential)?;
    let mut orthogonal_bias = fold(frozen.orthogonal_bias())?;
    if let Some(last) = orthogonal_bias.last_mut().filter(|_| recipe.reversed) {
        // The bias of the output that is negated.
        let mut layers = last.layers().to_vec();
        if let Some((weight, bias)) = layers.last_mut() {
            weight.row_mut(0).iter_mut().for_each(|w| *w = -*w);
            bias[0] = -bias[0];
        }
        *last = Mlp::new(layers)?;
    }
    Ok(bilip::PartialBiLipNet::new(
        net,
        orthogonal_bias,
        fold(frozen.hidden_bias())?,
    )?)
}

/// A partial PL network in the user's units; the scale of its values goes into the last layer of
/// the offset network, their center into the constant beside it.
pub(crate) fn freeze_partial_plnet<T: Real>(
    frozen: &bilip::PartialPlNet<T>,
    prepared: &Prepared,
    recipe: &Recipe,
) -> Result<Network<T>> {
    let net = partial(frozen.net(), prepared, recipe, true)?;
    let scaled = bilip::PartialPlNet::new(net, offset(frozen.offset() + recipe.level, prepared))?;
    let Some(mlp) = frozen.offset_network() else {
        return Ok(Network::PartialPlNet(scaled));
    };
    let mut layers = folded(mlp, prepared);
    if let Some((weight, bias)) = layers.last_mut() {
        let scale = prepared.y.scale[0];
        *weight = Mat::from_fn(weight.nrows(), weight.ncols(), |i, j| scale * weight[(i, j)]);
        bias.iter_mut().for_each(|b| *b *= scale);
    }
    let offset_network = Mlp::new(layers)?.convert::<T>();
    Ok(Network::PartialPlNet(scaled.with_offset_network(offset_network)?))
}
