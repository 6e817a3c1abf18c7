//! Builds a network, certifies it, inverts a point, and minimizes a PL network.

use bilip::{BiLipNet, BiLipNetFree, BiLipschitz, Bounds, InverseOptions, PlNet, RandomLayer, Rng};

fn main() -> Result<(), bilip::Error> {
    // A random bi-Lipschitz network on R^20: two monotone layers of 8 x 256 hidden units between
    // orthogonal ones.
    let bounds = Bounds::new(0.1, 10.0)?;
    let free = BiLipNetFree::random(&RandomLayer::new(20, &[256; 8], bounds), 2, &mut Rng::new(1))?;
    let net = BiLipNet::<f64>::from_free(&free)?;

    // Its bounds are proved for the very numbers stored.
    print!("{}", net.verify());

    // Invert a point, to a certified error.
    let x: Vec<f64> = (0..20).map(|i| (i as f64).sin()).collect();
    let y = net.forward(&x)?;
    let inverse = net.inverse(&y, &InverseOptions::default())?;
    let row = &inverse.rows[0];
    let error = x
        .iter()
        .zip(&inverse.x)
        .map(|(a, b)| (a - b).powi(2))
        .sum::<f64>()
        .sqrt();
    println!(
        "inverse: {:?} in {} steps, error {error:.1e}, proved below {:.1e}",
        row.status, row.iterations, row.error_bound
    );

    // Under a quadratic it is a function with exactly one minimum, which can be computed.
    let f = PlNet::new(net, 3.0)?;
    let minimum = f.minimize(&InverseOptions::default())?;
    println!(
        "minimum: {:.6} at distance {:.3} from the origin, found to within {:.1e} (proved)",
        minimum.value,
        minimum.x.iter().map(|v| v * v).sum::<f64>().sqrt(),
        minimum.distance_bound
    );
    Ok(())
}
