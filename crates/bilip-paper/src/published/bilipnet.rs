//! The bi-Lipschitz network as the published two-moons code has it, which does not keep its bounds.

use bilip::faer::{Mat, MatRef};
use bilip::{Activation, BiLipschitz, Bounds, MonLipExplicit, MonLipFree, with_norm};
use bilip_burn::ops::{activate, cayley, matmul};
use bilip_burn::{BiLipNetConfig, Columns, LayerBounds, MonLip, OrthogonalLayer, Predict};
use burn::module::{Module, Param};
use burn::tensor::backend::Backend;
use burn::tensor::{DType, Tensor, TensorData};

use crate::error::{Error, Result};

/// A `BiLipNet` with the slip of the published two-moons code: there the position in Q is set to a
/// layer's width instead of being moved on by it (`=+` for `+=`), so every hidden layer after the
/// second takes the second's rows of Q.
///
/// Then `S` no longer has the norm that ν rests on.
#[derive(Module, Debug)]
pub struct PublishedBiLipNet<B: Backend> {
    orthogonal: Vec<OrthogonalLayer<B>>,
    monotone: Vec<PublishedMonLip<B>>,
    #[module(skip)]
    claimed: Bounds,
}

/// A monotone layer with the slip.
#[derive(Module, Debug)]
struct PublishedMonLip<B: Backend> {
    /// `[m, n]`.
    q: Param<Tensor<B, 2>>,
    /// `[m_k + m_{k−1}, m_k]`.
    ab: Vec<Param<Tensor<B, 2>>>,
    /// Of q, then of the hidden layers.
    gains: Param<Tensor<B, 1>>,
    bias: Param<Tensor<B, 1>>,
    output_bias: Param<Tensor<B, 1>>,
    bounds: LayerBounds<B>,
    #[module(skip)]
    activation: Activation,
}

/// The first row of Q that each hidden layer takes.
fn starts(units: &[usize]) -> Vec<usize> {
    (0..units.len())
        .map(|k| if k == 0 { 0 } else { units[k - 1] })
        .collect()
}

fn numbers<B: Backend, const D: usize>(tensor: Tensor<B, D>) -> Vec<f64> {
    tensor.to_data().iter::<f64>().collect()
}

impl<B: Backend> PublishedBiLipNet<B> {
    /// The network that the settings give without the slip, with it.
    ///
    /// # Errors
    /// On settings out of range, when hidden widths differ, where the published code stops, and for
    /// activations with a learned ψ, which it was not written for.
    pub fn new(config: &BiLipNetConfig, device: &B::Device) -> Result<Self> {
        let layer = &config.layer;
        if layer.units.windows(2).any(|w| w[0] != w[1]) {
            return Err(Error::config("units", "must be equal in the published variant"));
        }
        if !layer.activation.is_homogeneous() || layer.general {
            return Err(Error::config(
                "published variant",
                "needs relu or leaky_relu, and the published form of Q",
            ));
        }
        let net = config.init::<B>(device)?;
        let share = layer.bounds.share(config.blocks)?;
        let slipped = |layer: &MonLip<B>| -> Result<_> {
            let bounds = LayerBounds::new(share, device, config.layer.dtype);
            Ok(PublishedMonLip::new(
                &layer.free()?,
                bounds,
                device,
                config.layer.dtype,
            ))
        };
        Ok(PublishedBiLipNet {
            orthogonal: net.orthogonal().to_vec(),
            monotone: net.monotone().iter().map(slipped).collect::<Result<_>>()?,
            claimed: net.bounds()?,
        })
    }

    /// The bounds that the published code claims.
    pub fn claim(&self) -> Bounds {
        self.claimed
    }

    /// The bounds that can be proved of the network as it is.
    ///
    /// # Errors
    /// When none can, or a parameter is not a finite number.
    pub fn certified_bounds(&self) -> Result<Bounds> {
        let orthogonal = (self.orthogonal.iter())
            .map(|l| Ok(l.freeze()?))
            .collect::<Result<_>>()?;
        let monotone = (self.monotone.iter())
            .map(PublishedMonLip::frozen)
            .collect::<Result<_>>()?;
        let net = bilip::BiLipNet::<f64>::from_layers(orthogonal, monotone)?;
        (net.certificate().proved().bounds())
            .ok_or_else(|| Error::config("network", "no positive lower bound can be proved"))
    }

    fn forward(&self, x: Tensor<B, 2>) -> Tensor<B, 2> {
        let mut x = x;
        for (k, orthogonal) in self.orthogonal.iter().enumerate() {
            x = orthogonal.forward(x);
            if let Some(layer) = self.monotone.get(k) {
                x = layer.forward(x);
            }
        }
        x
    }
}

impl<B: Backend> PublishedMonLip<B> {
    fn new(free: &MonLipFree, bounds: LayerBounds<B>, device: &B::Device, dtype: DType) -> Self {
        let matrix = |m: &Mat<f64>| {
            let (rows, columns) = m.shape();
            let values = (0..rows * columns)
                .map(|k| m[(k / columns, k % columns)])
                .collect();
            let data = TensorData::new::<f64, _>(values, [rows, columns]).convert_dtype(dtype);
            Param::from_tensor(Tensor::<B, 2>::from_data(data, (device, dtype)))
        };
        let vector = |values: Vec<f64>| {
            let data = TensorData::new(values.clone(), [values.len()]).convert_dtype(dtype);
            Param::from_tensor(Tensor::<B, 1>::from_data(data, (device, dtype)))
        };
        let gains = [&free.fq].into_iter().chain(&free.fab).map(|m| m.norm_l2());
        PublishedMonLip {
            q: matrix(&free.fq),
            ab: free.fab.iter().map(matrix).collect(),
            gains: vector(gains.collect()),
            bias: vector(free.hidden_bias.clone()),
            output_bias: vector(free.output_bias.clone()),
            bounds,
            activation: free.activation,
        }
    }

    fn units(&self) -> Vec<usize> {
        self.ab.iter().map(|ab| ab.val().dims()[1]).collect()
    }

    fn forward(&self, x: Tensor<B, 2>) -> Tensor<B, 2> {
        let units = self.units();
        let starts = starts(&units);
        let bounds = self.bounds.tensor(&x.device(), x.dtype());
        let mu = bounds.clone().slice(0..1).unsqueeze::<2>();
        let gain_in = bounds.slice(1..2).mul_scalar(2.0).sqrt().unsqueeze::<2>();
        let gain = |k: usize| self.gains.val().slice(k..k + 1);
        let [m, n] = self.q.val().dims();
        // A wide matrix is transformed transposed.
        let q = match m < n {
            true => cayley(self.q.val().transpose(), gain(0)).transpose(),
            false => cayley(self.q.val(), gain(0)),
        };
        let mut y = x.clone() * mu + self.output_bias.val().unsqueeze();
        // Aᵀ and ẑ of the layer before.
        let mut before: Option<(Tensor<B, 2>, Tensor<B, 2>)> = None;
        let mut offset = 0;
        for (k, &width) in units.iter().enumerate() {
            // J = [Aᵀ; Bᵀ].
            let j = cayley(self.ab[k].val(), gain(k + 1));
            let [rows, _] = j.dims();
            let of_q = |k: usize| q.clone().slice([starts[k]..starts[k] + width, 0..n]);
            let at = j.clone().slice([0..width, 0..width]);
            let mut s = matmul(at.clone().transpose(), of_q(k));
            let mut v = self.bias.val().slice(offset..offset + width).unsqueeze::<2>();
            if let Some((at_before, z)) = before {
                let b = j.slice([width..rows, 0..width]).transpose();
                s = s - matmul(b.clone(), of_q(k - 1));
                let weight = matmul(b, at_before).mul_scalar(2.0);
                v = v + matmul(z, weight.transpose());
            }
            v = v + matmul(x.clone(), s.clone().transpose()) * gain_in.clone();
            let z = activate(self.activation, v);
            y = y + matmul(z.clone(), s) * gain_in.clone().div_scalar(2.0);
            before = Some((at, z));
            offset += width;
        }
        y
    }

    /// The free parameters in f64.
    fn free(&self) -> Result<MonLipFree> {
        let gains = numbers(self.gains.val());
        let matrix = |param: &Param<Tensor<B, 2>>, gain: f64| {
            let [rows, columns] = param.val().dims();
            let values = numbers(param.val());
            with_norm(MatRef::from_row_major_slice(&values, rows, columns), gain)
        };
        Ok(MonLipFree {
            bounds: self.bounds.value()?,
            activation: self.activation,
            fq: matrix(&self.q, gains[0]),
            fp: None,
            fab: (self.ab.iter().zip(&gains[1..]))
                .map(|(m, gain)| matrix(m, *gain))
                .collect(),
            log_psi: None,
            hidden_bias: numbers(self.bias.val()),
            output_bias: numbers(self.output_bias.val()),
        })
    }

    /// The explicit layer, its claim not proved.
    fn frozen(&self) -> Result<bilip::MonLip<f64>> {
        let free = self.free()?;
        let units = free.check()?;
        let (v, _) = free.explicit_weights()?;
        let q = bilip::cayley(free.fq.as_ref())?;
        let starts = starts(&units);
        let mut s = Mat::<f64>::zeros(units.iter().sum(), q.ncols());
        let mut offset = 0;
        for (k, &m) in units.iter().enumerate() {
            let j = bilip::cayley(free.fab[k].as_ref())?;
            let mut part = j.subrows(0, m).transpose() * q.subrows(starts[k], m);
            if k > 0 {
                let before = units[k - 1];
                part -= j.subrows(m, before).transpose() * q.subrows(starts[k - 1], before);
            }
            s.as_mut().subrows_mut(offset, m).copy_from(&part);
            offset += m;
        }
        Ok(bilip::MonLip::from_explicit(MonLipExplicit {
            bounds: free.bounds,
            activation: free.activation,
            v,
            s,
            psi: None,
            hidden_bias: free.hidden_bias,
            output_bias: free.output_bias,
        })?)
    }
}

impl<B: Backend> Predict<B> for PublishedBiLipNet<B> {
    fn predict(&self, x: Tensor<B, 2>, _: Option<Tensor<B, 2>>) -> Tensor<B, 2> {
        self.forward(x)
    }

    fn columns(&self) -> Columns {
        let n = self.orthogonal[0].dim();
        Columns::new(n, n)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bilip::Rng;
    use bilip_burn::{BoundsMode, MonLipConfig};
    use burn::backend::Flex;

    #[test]
    fn the_slip_voids_the_claim_and_is_the_network_that_runs() -> Result<()> {
        let bounds = Bounds::new(0.1, 2.0)?;
        let layer = MonLipConfig::new(6, vec![4, 4, 4, 4], BoundsMode::Fixed(bounds)).with_dtype(DType::F64);
        let device = Default::default();
        let net = PublishedBiLipNet::<Flex>::new(&BiLipNetConfig::new(1, layer), &device)?;
        assert_eq!(net.claim(), bounds);
        let layer = net.monotone[0].frozen()?;
        assert!(!layer.layer_certificate().holds(), "the slipped layer passed");
        let certified = net.certified_bounds()?;
        assert!(
            certified.nu() > bounds.nu() && certified.mu() < bounds.mu(),
            "{certified:?}"
        );
        // What runs and what is judged are the same map.
        let rows = Rng::new(3).normals(5 * 6);
        let x = Tensor::from_data(TensorData::new(rows, [5, 6]), (&device, DType::F64));
        let inner = net.orthogonal[0].forward(x.clone());
        let inner: Vec<f64> = inner.to_data().iter::<f64>().collect();
        let middle = net.monotone[0].frozen()?.forward(&inner)?;
        let middle = Tensor::from_data(TensorData::new(middle, [5, 6]), (&device, DType::F64));
        let expected: Vec<f64> = net.orthogonal[1].forward(middle).to_data().iter().collect();
        let got: Vec<f64> = net.forward(x).to_data().iter().collect();
        for (a, b) in got.iter().zip(&expected) {
            assert!((a - b).abs() < 1e-11, "{a} {b}");
        }
        Ok(())
    }

    #[test]
    fn unequal_widths_are_refused() {
        let bounds = BoundsMode::Fixed(Bounds::new(0.1, 2.0).unwrap());
        let config = BiLipNetConfig::new(1, MonLipConfig::new(3, vec![4, 5], bounds));
        assert!(PublishedBiLipNet::<Flex>::new(&config, &Default::default()).is_err());
    }
}
