//! Partial networks `G(x; p)`: the bounds hold in x for every value of the parameter p.

use crate::base::error::{Error, Result, check_batch, check_finite, check_rows};
use crate::base::parallel;
use crate::base::real::{Real, UNIT_ROUNDOFF};
use crate::base::rounding::SAFETY;
use crate::certify::{Certificate, Proved};
use crate::inverse::{Inverse, InverseOptions, invert};
use crate::layers::bias::RowBiases;
use crate::layers::layer::Direction;
use crate::layers::mlp::Mlp;
use crate::layers::scaling::Scaling;
use crate::layers::stack::{Stack, with_f64};
use crate::networks::bilipnet::BiLipNet;
use crate::networks::map::BiLipschitz;
use crate::networks::plnet::{potential, residual};

/// A BiLipNet whose orthogonal and hidden biases are functions of p, each its own [`Mlp`]; the
/// weights are shared.
///
/// Batches of x and p go row by row together.
#[derive(Clone, Debug)]
pub struct PartialBiLipNet<T> {
    net: BiLipNet<T>,
    orthogonal_bias: Vec<Mlp<T>>,
    hidden_bias: Vec<Mlp<T>>,
}

impl<T: Real> PartialBiLipNet<T> {
    /// A partial network from a BiLipNet, whose own orthogonal and hidden biases are replaced, and
    /// the bias networks.
    ///
    /// # Errors
    /// When the number of bias networks or their sizes do not fit.
    pub fn new(net: BiLipNet<T>, orthogonal_bias: Vec<Mlp<T>>, hidden_bias: Vec<Mlp<T>>) -> Result<Self> {
        let blocks = net.monotone().len();
        if orthogonal_bias.len() != blocks + 1 || hidden_bias.len() != blocks {
            return Err(Error::shape(
                "bias networks",
                format!("{} orthogonal and {blocks} hidden", blocks + 1),
                format!("{} and {}", orthogonal_bias.len(), hidden_bias.len()),
            ));
        }
        let parameters = orthogonal_bias[0].inputs();
        for (k, mlp) in orthogonal_bias.iter().enumerate() {
            check_mlp(
                mlp,
                format!("bias network of orthogonal layer {k}"),
                parameters,
                net.dim(),
            )?;
        }
        for (k, (mlp, layer)) in hidden_bias.iter().zip(net.monotone()).enumerate() {
            check_mlp(
                mlp,
                format!("bias network of monotone layer {k}"),
                parameters,
                layer.hidden(),
            )?;
        }
        Ok(PartialBiLipNet {
            net,
            orthogonal_bias,
            hidden_bias,
        })
    }

    /// The weights, in a network whose own orthogonal and hidden biases play no part.
    pub fn net(&self) -> &BiLipNet<T> {
        &self.net
    }

    /// Bias networks of the orthogonal layers.
    pub fn orthogonal_bias(&self) -> &[Mlp<T>] {
        &self.orthogonal_bias
    }

    /// Bias networks of the monotone layers.
    pub fn hidden_bias(&self) -> &[Mlp<T>] {
        &self.hidden_bias
    }

    /// The dimension n of x.
    pub fn dim(&self) -> usize {
        self.net.dim()
    }

    /// The dimension of p.
    pub fn parameters(&self) -> usize {
        self.orthogonal_bias[0].inputs()
    }

    /// Proved bounds in x, for every p.
    pub fn bounds(&self) -> Proved {
        self.net.bounds()
    }

    /// What has been proved of the stored numbers.
    pub fn certificate(&self) -> Certificate {
        self.net.certificate()
    }

    /// As [`certificate`](Self::certificate), proved again.
    pub fn verify(&self) -> Certificate {
        self.net.verify()
    }

    /// The network of one p, with the weights shared.
    ///
    /// # Errors
    /// On a p of the wrong size or with NaN or infinity.
    pub fn at(&self, p: &[T]) -> Result<BiLipNet<T>> {
        check_rows("p", p, 1, self.parameters())?;
        self.net.with_biases(
            self.orthogonal_bias.iter().map(|mlp| mlp.forward(p)).collect(),
            self.hidden_bias.iter().map(|mlp| mlp.forward(p)).collect(),
        )
    }

    /// The biases of every row, in the order of the layers.
    fn biases(&self, p: &[T]) -> RowBiases<T> {
        let rows = p.len() / self.parameters();
        let constant = |s: &Scaling<T>| (s.dim(), s.shift().repeat(rows));
        let mut layers: Vec<_> = self.net.input().map(constant).into_iter().collect();
        for (k, mlp) in self.orthogonal_bias.iter().enumerate() {
            layers.push((mlp.outputs(), mlp.forward(p)));
            layers.extend(self.hidden_bias.get(k).map(|mlp| (mlp.outputs(), mlp.forward(p))));
        }
        layers.extend(self.net.output().map(constant));
        RowBiases {
            layers,
            errors: Vec::new(),
        }
    }

    /// The biases of every row in f64, with bounds on their errors.
    pub(crate) fn certified_biases(&self, p: &[f64]) -> Result<RowBiases<f64>> {
        let mut biases = RowBiases {
            layers: Vec::new(),
            errors: Vec::new(),
        };
        let constant = |biases: &mut RowBiases<f64>, s: &Scaling<T>| {
            let rows = p.len() / self.parameters();
            biases.layers.push((s.dim(), s.to_f64().shift().repeat(rows)));
            biases.errors.push(vec![0.0; rows]);
        };
        if let Some(scaling) = self.net.input() {
            constant(&mut biases, scaling);
        }
        let mut add = |mlp: &Mlp<T>| {
            let wide: Mlp<f64> = mlp.convert();
            let rows = p.len() / wide.inputs();
            let parts = parallel::map_chunks(rows, 64, |range| {
                range
                    .map(|r| wide.forward_accurate(&p[r * wide.inputs()..(r + 1) * wide.inputs()]))
                    .collect::<Vec<_>>()
            });
            let (mut data, mut errors) = (Vec::new(), Vec::new());
            for (value, error) in parts.into_iter().flatten() {
                data.extend(value);
                errors.push(error);
            }
            biases.layers.push((wide.outputs(), data));
            biases.errors.push(errors);
        };
        for (k, mlp) in self.orthogonal_bias.iter().enumerate() {
            add(mlp);
            if let Some(mlp) = self.hidden_bias.get(k) {
                add(mlp);
            }
        }
        if let Some(scaling) = self.net.output() {
            constant(&mut biases, scaling);
        }
        for (_, bias) in &biases.layers {
            check_finite("bias computed from p", bias)?;
        }
        Ok(biases)
    }

    fn stack(&self, x: &[T], p: &[T]) -> Result<Stack<'_, T>> {
        let rows = check_batch("x", x, self.dim())?;
        check_rows("p", p, rows, self.parameters())?;
        let biases = self.biases(p);
        for (_, bias) in &biases.layers {
            check_finite("bias computed from p", bias)?;
        }
        Ok(Stack::new(self.net.layers(), Some(biases)))
    }

    /// `G(x; p)` for every row, `[batch, n]` and `[batch, parameters] → [batch, n]`.
    ///
    /// # Errors
    /// On batches that do not fit together or hold NaN or infinity.
    pub fn forward(&self, x: &[T], p: &[T]) -> Result<Vec<T>> {
        self.stack(x, p)?.forward(x)
    }

    /// `∂G/∂x · dx` for every row.
    ///
    /// # Errors
    /// As for [`forward`](Self::forward).
    pub fn jvp(&self, x: &[T], p: &[T], dx: &[T]) -> Result<Vec<T>> {
        self.stack(x, p)?.product(x, dx, Direction::Forward)
    }

    /// `(∂G/∂x)ᵀ w` for every row.
    ///
    /// # Errors
    /// As for [`forward`](Self::forward).
    pub fn vjp(&self, x: &[T], p: &[T], cotangent: &[T]) -> Result<Vec<T>> {
        self.stack(x, p)?.product(x, cotangent, Direction::Reverse)
    }

    /// The exact `∂G/∂x` at every row, `[batch, n, n]`.
    ///
    /// # Errors
    /// As for [`forward`](Self::forward).
    pub fn jacobian(&self, x: &[T], p: &[T]) -> Result<Vec<T>> {
        self.stack(x, p)?.jacobian(x)
    }

    /// The x with `G(x; p) = y` for every row, each with a certified error.
    ///
    /// # Errors
    /// As for [`BiLipschitz::inverse`].
    pub fn inverse(&self, y: &[f64], p: &[f64], options: &InverseOptions) -> Result<Inverse> {
        let rows = check_batch("y", y, self.dim())?;
        check_rows("p", p, rows, self.parameters())?;
        let biases = self.certified_biases(p)?;
        with_f64(&self.net.layers(), |layers| {
            invert(&Stack::new(layers, Some(biases)), y, options)
        })
    }
}

fn check_mlp<T: Real>(mlp: &Mlp<T>, what: String, inputs: usize, outputs: usize) -> Result<()> {
    if mlp.inputs() != inputs || mlp.outputs() != outputs {
        return Err(Error::shape(
            what.clone(),
            format!("{inputs} inputs and {outputs} outputs"),
            format!("{} and {}", mlp.inputs(), mlp.outputs()),
        ));
    }
    for (weight, bias) in mlp.layers() {
        // A conversion to single precision may have left its range.
        crate::base::matrix::check_matrix(&what, weight.as_ref())?;
        check_finite(&what, bias)?;
    }
    Ok(())
}

/// A partial PL network `f(x; p) = ½‖G(x; p)‖² + c`: for every p one minimum in x.
///
/// With an offset network c is `c + c(p)`, so that the minimum has another value for every p. It
/// changes nothing in the guarantee, which is one in x.
#[derive(Clone, Debug)]
pub struct PartialPlNet<T> {
    net: PartialBiLipNet<T>,
    offset: f64,
    offset_network: Option<Mlp<T>>,
}

impl<T: Real> PartialPlNet<T> {
    /// `½‖G(x; p)‖² + offset`.
    ///
    /// # Errors
    /// When the offset is not finite.
    pub fn new(net: PartialBiLipNet<T>, offset: f64) -> Result<Self> {
        check_finite("offset", &[offset])?;
        Ok(PartialPlNet {
            net,
            offset,
            offset_network: None,
        })
    }

    /// The same plus a function of p with one value.
    ///
    /// # Errors
    /// When the perceptron has other inputs than p, more outputs than one, or a number that is not
    /// finite.
    pub fn with_offset_network(self, network: Mlp<T>) -> Result<Self> {
        check_mlp(&network, "offset network".into(), self.net.parameters(), 1)?;
        Ok(PartialPlNet {
            offset_network: Some(network),
            ..self
        })
    }

    /// The network G.
    pub fn net(&self) -> &PartialBiLipNet<T> {
        &self.net
    }

    /// The constant c: without an offset network, the minimum of f for every p.
    pub fn offset(&self) -> f64 {
        self.offset
    }

    /// The network `c(p)` that is added to the constant, where there is one.
    pub fn offset_network(&self) -> Option<&Mlp<T>> {
        self.offset_network.as_ref()
    }

    /// `c + c(p)` for every row of p in f64, each with a bound on its error.
    pub(crate) fn offsets(&self, p: &[f64]) -> Result<Vec<(f64, f64)>> {
        let parameters = self.net.parameters();
        let rows = check_batch("p", p, parameters)?;
        let Some(network) = &self.offset_network else {
            return Ok(vec![(self.offset, 0.0); rows]);
        };
        let network: Mlp<f64> = network.convert();
        let offsets: Vec<(f64, f64)> = (p.chunks_exact(parameters))
            .map(|p| {
                let (value, error) = network.forward_accurate(p);
                let sum = self.offset + value[0];
                (sum, (error + UNIT_ROUNDOFF * sum.abs()) * SAFETY)
            })
            .collect();
        let values: Vec<f64> = offsets.iter().map(|(value, _)| *value).collect();
        check_finite("offset computed from p", &values)?;
        Ok(offsets)
    }

    /// What has been proved, with the PL constant `μ²`.
    pub fn certificate(&self) -> Certificate {
        self.net.certificate().with_pl_constant()
    }

    /// As [`certificate`](Self::certificate), proved again.
    pub fn verify(&self) -> Certificate {
        self.net.verify().with_pl_constant()
    }

    /// f at every row, `[batch, n]` and `[batch, parameters] → [batch]`.
    ///
    /// # Errors
    /// As for [`PartialBiLipNet::forward`].
    pub fn value(&self, x: &[T], p: &[T]) -> Result<Vec<T>> {
        let center = vec![T::zero(); self.net.dim()];
        let mut values = potential(&self.net.forward(x, p)?, &center, self.offset)?;
        if let Some(network) = &self.offset_network {
            for (value, offset) in values.iter_mut().zip(network.forward(p)) {
                *value += offset;
            }
            check_finite("result (numbers out of range)", &values)?;
        }
        Ok(values)
    }

    /// ∇ₓf at every row.
    ///
    /// # Errors
    /// As for [`PartialBiLipNet::forward`].
    pub fn gradient(&self, x: &[T], p: &[T]) -> Result<Vec<T>> {
        let center = vec![T::zero(); self.net.dim()];
        let g = self.net.forward(x, p)?;
        self.net.vjp(x, p, &residual(&g, &center))
    }
}
