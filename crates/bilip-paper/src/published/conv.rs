//! The convolutional layer of the published code.

use bilip::Bounds;

use crate::error::Result;

/// The bounds that the published convolutional layer has where it claims others.
///
/// It scales x by √γ before x goes into the skip connection ½(μ + ν)x of its form of the layer,
/// which is `½(μ + ν)(√γ − 1)x` too much: the layer is that of bounds moved by this factor.
///
/// # Errors
/// When that leaves no positive μ.
pub fn conv_bounds(claimed: Bounds) -> Result<Bounds> {
    let (mu, nu) = (claimed.mu(), claimed.nu());
    let moved = 0.5 * (mu + nu) * (claimed.gap().sqrt() - 1.0);
    Ok(Bounds::new(mu + moved, nu + moved)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bilip::{BiLipschitz, ConvFree, ConvMonLip, RandomConvLayer, Rng};

    #[test]
    fn the_published_layer_has_other_bounds_than_it_claims() {
        let c: f64 = 0.35;
        let claimed = Bounds::new((1.0 - c).powi(4), (1.0 + c).powi(4)).unwrap();
        let bounds = conv_bounds(claimed).unwrap();
        assert!((bounds.mu() - 1.53).abs() < 0.005 && (bounds.nu() - 4.67).abs() < 0.005);
        let mut rng = Rng::new(1);
        let free = ConvFree::random(&RandomConvLayer::new(2, 4, &[3, 3], claimed), &mut rng).unwrap();
        let ours = ConvMonLip::<f64>::from_free(&free).unwrap();
        let theirs = ConvMonLip::<f64>::from_free(&ConvFree { bounds, ..free }).unwrap();
        // The published formula: ours, and x times what the slip adds.
        let x = rng.normals(5 * ours.dim());
        let slip = 0.5 * (claimed.mu() + claimed.nu()) * (claimed.gap().sqrt() - 1.0);
        let (a, b) = (ours.forward(&x).unwrap(), theirs.forward(&x).unwrap());
        for i in 0..x.len() {
            assert!((a[i] + slip * x[i] - b[i]).abs() < 1e-10);
        }
        assert!(theirs.verify().holds());
        assert!(theirs.bounds().mu() > 5.0 * claimed.mu());
    }
}
