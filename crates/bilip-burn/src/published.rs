//! The bi-Lipschitz network as the published two-moons code has it, which does not keep its bounds.

use bilip::faer::Mat;
use bilip::{BiLipschitz, Bounds, MonLipExplicit, cayley};
use burn::module::Module;
use burn::tensor::Tensor;
use burn::tensor::backend::Backend;

use crate::error::{Error, Result};
use crate::modules::MonLip;
use crate::network::{BiLipNet, BiLipNetConfig};
use crate::predict::Predict;

/// A [`BiLipNet`] with the slip of the published two-moons code: there the position in Q is set to a layer's width instead of being moved on by it
/// (`=+` for `+=`), so every hidden layer after the second takes the second's rows of Q.
///
/// Then `S` no longer has the norm that ν rests on. It is here to be compared with; use [`BiLipNet`].
#[derive(Module, Debug)]
pub struct PublishedBiLipNet<B: Backend> {
    net: BiLipNet<B>,
}

/// The first row of Q that each hidden layer takes.
fn starts(units: &[usize]) -> Vec<usize> {
    (0..units.len())
        .map(|k| if k == 0 { 0 } else { units[k - 1] })
        .collect()
}

impl<B: Backend> PublishedBiLipNet<B> {
    /// The network that the settings give without the slip, with it.
    ///
    /// # Errors
    /// On settings out of range, and when hidden widths differ, where the published code stops.
    pub fn new(config: &BiLipNetConfig, device: &B::Device) -> Result<Self> {
        let units = &config.layer.units;
        if units.windows(2).any(|w| w[0] != w[1]) {
            return Err(Error::setting(
                "units",
                units,
                "must be equal in the published variant",
            ));
        }
        Ok(PublishedBiLipNet {
            net: config.init(device)?,
        })
    }

    /// The bounds that the published code claims.
    ///
    /// # Errors
    /// When a learned bound has left the range of numbers.
    pub fn bounds(&self) -> Result<Bounds> {
        self.net.bounds()
    }

    /// The bounds that can be proved of the network as it is.
    ///
    /// # Errors
    /// When none can, or a parameter is not a finite number.
    pub fn certified_bounds(&self) -> Result<Bounds> {
        let orthogonal = self
            .net
            .orthogonal
            .iter()
            .map(|l| l.freeze())
            .collect::<Result<_>>()?;
        let monotone = self.net.monotone.iter().map(frozen).collect::<Result<_>>()?;
        let net = bilip::BiLipNet::<f64>::from_layers(orthogonal, monotone)?;
        let certificate = net.certificate();
        certificate.proved().bounds().ok_or_else(|| {
            Error::from(bilip::Error::NotCertifiable {
                what: "network".into(),
                reason: "no positive lower bound is left".into(),
            })
        })
    }

    fn forward(&self, x: Tensor<B, 2>) -> Tensor<B, 2> {
        let mut x = x;
        for (k, orthogonal) in self.net.orthogonal.iter().enumerate() {
            x = orthogonal.forward(x);
            if let Some(layer) = self.net.monotone.get(k) {
                x = layer.forward_with_rows_of_q(x, &starts(layer.units()));
            }
        }
        x
    }
}

/// The explicit layer, its claim not proved.
fn frozen<B: Backend>(layer: &MonLip<B>) -> Result<bilip::MonLip<f64>> {
    let free = layer.free()?;
    let units = free.check()?;
    let (v, _) = free.explicit_weights()?;
    let q = cayley(free.fq.as_ref())?;
    let starts = starts(&units);
    let mut s = Mat::<f64>::zeros(0, 0);
    for (k, &m) in units.iter().enumerate() {
        // [A_kᵀ; B_kᵀ].
        let j = cayley(free.fab[k].as_ref())?;
        let mut part = j.subrows(0, m).transpose() * q.subrows(starts[k], m);
        if k > 0 {
            let before = units[k - 1];
            part -= j.subrows(m, before).transpose() * q.subrows(starts[k - 1], before);
        }
        let above = s;
        s = Mat::from_fn(above.nrows() + m, q.ncols(), |i, c| {
            if i < above.nrows() {
                above[(i, c)]
            } else {
                part[(i - above.nrows(), c)]
            }
        });
    }
    Ok(bilip::MonLip::from_explicit(MonLipExplicit {
        bounds: free.bounds,
        activation: free.activation,
        v,
        s,
        psi: free.log_psi.map(|d| d.iter().map(|d| d.exp()).collect()),
        hidden_bias: free.hidden_bias,
        output_bias: free.output_bias,
    })?)
}

impl<B: Backend> Predict<B> for PublishedBiLipNet<B> {
    fn predict(&self, x: Tensor<B, 2>, _: Option<Tensor<B, 2>>) -> Tensor<B, 2> {
        self.forward(x)
    }

    fn columns(&self) -> (Option<usize>, usize, Option<usize>) {
        (Some(self.net.dim()), 0, Some(self.net.dim()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BoundsMode, MonLipConfig};
    use bilip::Rng;
    use burn::backend::Flex;
    use burn::tensor::{DType, TensorData};

    #[test]
    fn the_slip_voids_the_claim_and_is_the_network_that_runs() -> Result<()> {
        let bounds = Bounds::new(0.1, 2.0)?;
        let layer = MonLipConfig {
            dtype: DType::F64,
            ..MonLipConfig::new(6, &[4, 4, 4, 4], BoundsMode::Fixed(bounds))
        };
        let device = Default::default();
        let net = PublishedBiLipNet::<Flex>::new(&BiLipNetConfig::new(1, layer), &device)?;
        assert_eq!(net.bounds()?, bounds);
        let layer = frozen(&net.net.monotone[0])?;
        assert!(!layer.layer_certificate().holds(), "the slipped layer passed");
        let certified = net.certified_bounds()?;
        assert!(
            certified.nu() > bounds.nu() && certified.mu() < bounds.mu(),
            "{certified:?}"
        );
        // What runs and what is judged are the same map.
        let rows = Rng::new(3).normals(5 * 6);
        let x = Tensor::from_data(TensorData::new(rows, [5, 6]), (&device, DType::F64));
        let inner = net.net.orthogonal[0].forward(x.clone());
        let inner: Vec<f64> = inner.to_data().iter::<f64>().collect();
        let middle = frozen(&net.net.monotone[0])?.forward(&inner)?;
        let middle = Tensor::from_data(TensorData::new(middle, [5, 6]), (&device, DType::F64));
        let expected: Vec<f64> = net.net.orthogonal[1].forward(middle).to_data().iter().collect();
        let got: Vec<f64> = net.forward(x).to_data().iter().collect();
        for (a, b) in got.iter().zip(&expected) {
            assert!((a - b).abs() < 1e-11, "{a} {b}");
        }
        Ok(())
    }

    #[test]
    fn unequal_widths_are_refused() {
        let bounds = BoundsMode::Fixed(Bounds::new(0.1, 2.0).unwrap());
        let config = BiLipNetConfig::new(1, MonLipConfig::new(3, &[4, 5], bounds));
        assert!(PublishedBiLipNet::<Flex>::new(&config, &Default::default()).is_err());
    }
}
