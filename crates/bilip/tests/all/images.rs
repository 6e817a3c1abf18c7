//! Networks on images: frozen, stored, read back, certified, inverted.

use bilip::faer::Mat;
use bilip::{
    Activation, BiLipschitz, Bounds, ConvBiLipNet, ConvFree, Convolution, GpHead, ImageClassifier,
    ImageFeatures, ImageStep, InverseOptions, Model, Network, Orthogonal, PosteriorPrecision,
    RandomConvLayer, RandomFeatures, Real, Rng, Status,
};

fn net<T: Real>(channels: usize, image: usize, blocks: usize, activation: Activation) -> ConvBiLipNet<T> {
    let mut rng = Rng::new(9);
    let share = Bounds::new(0.4, 2.5).unwrap();
    let bounds = Bounds::new(0.4f64.powi(blocks as i32), 2.5f64.powi(blocks as i32)).unwrap();
    let mut free = Vec::new();
    let mut maps = Vec::new();
    for _ in 0..blocks {
        let mut layer = ConvFree::random(
            &RandomConvLayer::new(channels, image, &[3, 2], share)
                .with_activation(activation)
                .with_bias(0.3),
            &mut rng,
        )
        .unwrap();
        layer.log_psi = Some(rng.normals(5).iter().map(|v| 0.2 * v).collect());
        free.push(layer);
        let bias = rng.normals(channels);
        maps.push(Orthogonal::from_free(rng.glorot(channels, channels).as_ref(), &bias).unwrap());
    }
    ConvBiLipNet::from_free(&free, maps, bounds).unwrap()
}

#[test]
fn networks_on_images_keep_their_bounds_and_come_back_from_a_file() {
    fn check<T: Real>(model: fn(ConvBiLipNet<T>) -> Model, activation: Activation) {
        let net = net::<T>(3, 6, 2, activation);
        assert_eq!(net.bounds().bounds(), Some(net.claim().bounds()));
        let n = net.dim();
        let mut rng = Rng::new(4);
        let x = rng.normals(3 * n);
        let (y, errors) = net.forward_with_error(&x).unwrap();
        // Products with the Jacobian are each other's transposes, through both kinds of layers.
        let narrow = |v: &[f64]| v.iter().map(|v| T::round_from(*v)).collect::<Vec<T>>();
        let (d, w) = (rng.normals(3 * n), rng.normals(3 * n));
        let dot = |a: &[T], b: &[f64]| a.iter().zip(b).map(|(a, b)| a.as_f64() * b).sum::<f64>();
        let forward = dot(&net.jvp(&narrow(&x), &narrow(&d)).unwrap(), &w);
        let reverse = dot(&net.vjp(&narrow(&x), &narrow(&w)).unwrap(), &d);
        assert!(
            (forward - reverse).abs() < 1e-3 * forward.abs().max(1.0),
            "{forward} {reverse}"
        );

        let bytes = model(net).to_bytes().unwrap();
        let again = Model::from_bytes(&bytes).unwrap();
        assert_eq!(again.to_bytes().unwrap(), bytes);
        assert!(again.verify().holds(), "{}", again.verify());
        assert_eq!(again.image(), Some((3, 6)));
        let z = again.evaluate(&x, &[]).unwrap();
        for (a, b) in y.iter().zip(&z) {
            assert!((a - b).abs() < 1e-4, "{a} {b}");
        }
        let tolerance = 1e-7;
        let options = InverseOptions {
            tolerance,
            ..Default::default()
        };
        let inverse = again.invert(&y, &[], &options).unwrap();
        for (r, row) in inverse.rows.iter().enumerate() {
            assert_eq!(row.status, Status::Converged, "{row:?}");
            let distance = (r * n..(r + 1) * n)
                .map(|i| (inverse.x[i] - x[i]).powi(2))
                .sum::<f64>()
                .sqrt();
            let mu = again.certificate().proved().mu();
            assert!(
                distance <= row.error_bound + errors[r] / mu + 1e-14,
                "{distance} {row:?}"
            );
        }
    }
    for activation in [Activation::Relu, Activation::Tanh] {
        check::<f32>(|net| Model::from(Network::ConvBiLipNet(net)), activation);
        check::<f64>(|net| Model::from(Network::ConvBiLipNet(net)), activation);
    }
}

fn features<T: Real>() -> ImageFeatures<T> {
    let mut rng = Rng::new(2);
    let narrow = |v: Vec<f64>| v.iter().map(|v| T::round_from(0.3 * v)).collect::<Vec<T>>();
    let first = Convolution::new([3, 3], 6, 3, 1, narrow(rng.normals(81))).unwrap();
    let second = Convolution::new([3, 2], 6, 3, 2, narrow(rng.normals(54))).unwrap();
    let bound = |c: &Convolution<T>| c.norm_bound().unwrap() * 1.01;
    let claim = net::<T>(3, 6, 1, Activation::Relu).claim();
    let steps = vec![
        ImageStep::Convolution(first.clone(), bound(&first)),
        ImageStep::Block(net(3, 6, 1, Activation::Relu)),
        ImageStep::Convolution(second.clone(), bound(&second)),
        ImageStep::Block(net(2, 3, 1, Activation::Relu)),
    ];
    let projection = Mat::from_fn(4, 2, |i, j| T::round_from((i + 2 * j) as f64 * 0.1 - 0.2));
    ImageFeatures::new(
        steps,
        narrow(vec![3.0, 5.0]),
        narrow(vec![1.0, -1.0]),
        projection,
        claim,
    )
    .unwrap()
}

#[test]
fn feature_maps_and_classifiers_of_images_come_back_from_a_file() {
    let map = features::<f32>();
    let mut rng = Rng::new(5);
    let x = rng.normals(20 * map.dim());
    let model = Model::from(Network::ImageFeatures(map.clone()));
    let certificate = model.verify();
    assert!(certificate.holds(), "{certificate}");
    // Two images are never further apart in the features than the Lipschitz bound allows.
    let lipschitz = certificate.lipschitz().unwrap();
    let h = model.evaluate(&x, &[]).unwrap();
    let norm = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| (a - b).powi(2)).sum::<f64>().sqrt();
    let (n, outputs) = (map.dim(), map.outputs());
    for k in 1..20 {
        let dx = norm(&x[..n], &x[k * n..(k + 1) * n]);
        let dh = norm(&h[..outputs], &h[k * outputs..(k + 1) * outputs]);
        assert!(dh <= lipschitz * dx * (1.0 + 1e-5), "{dh} {}", lipschitz * dx);
    }
    let again = Model::from_bytes(&model.to_bytes().unwrap()).unwrap();
    assert_eq!(again.evaluate(&x, &[]).unwrap(), h);
    assert_eq!(again.to_bytes().unwrap(), model.to_bytes().unwrap());
    assert!(again.invert(&h, &[], &InverseOptions::default()).is_err());
    assert!(again.minimize(&[], &InverseOptions::default()).is_err());

    let drawn = RandomFeatures::draw(outputs, 10, 1.0, false, &mut rng).unwrap();
    let prior = PosteriorPrecision::new(10, 1.0).unwrap();
    let head = GpHead::new(drawn, rng.matrix(10, 3, 1.0), vec![0.0; 3], &prior).unwrap();
    let classifier = ImageClassifier::new(map, head, 0.4).unwrap();
    let model = Model::from(Network::ImageClassifier(classifier));
    let p = model.evaluate(&x, &[]).unwrap();
    assert_eq!((p.len(), model.classes()), (20 * 4, Some(3)));
    let again = Model::from_bytes(&model.to_bytes().unwrap()).unwrap();
    assert_eq!(again.evaluate(&x, &[]).unwrap(), p);
}

#[test]
fn a_claim_that_the_weights_do_not_keep_is_found_out() {
    let mut rng = Rng::new(1);
    let layer = Convolution::<f64>::new([3, 3], 6, 3, 1, rng.normals(81)).unwrap();
    let claim = net::<f64>(3, 6, 1, Activation::Relu).claim();
    let half = 0.5 * layer.norm_bound().unwrap();
    let steps = vec![
        ImageStep::Convolution(layer, half),
        ImageStep::Block(net(3, 6, 1, Activation::Relu)),
    ];
    let map = ImageFeatures::new(steps, vec![1.0; 3], vec![0.0; 3], Mat::zeros(2, 3), claim).unwrap();
    let certificate = Model::from(Network::ImageFeatures(map)).verify();
    assert!(!certificate.holds());
    assert!(
        certificate.to_string().contains("more than claimed"),
        "{certificate}"
    );
}

#[test]
fn damaged_files_of_networks_on_images_are_errors_or_tell_the_truth() {
    let bytes = Model::from(Network::ConvBiLipNet(net::<f32>(1, 3, 1, Activation::Relu)))
        .to_bytes()
        .unwrap();
    for length in (0..bytes.len()).step_by(7) {
        assert!(Model::from_bytes(&bytes[..length]).is_err());
    }
    let mut rng = Rng::new(3);
    let x = rng.normals(2 * 9);
    for at in 0..bytes.len() {
        let mut bad = bytes.clone();
        bad[at] ^= 1 << (at % 8);
        let Ok(model) = Model::from_bytes(&bad) else {
            continue;
        };
        let certificate = model.verify();
        let Some(bounds) = certificate.proved().bounds() else {
            continue;
        };
        // What is proved is true of two images, whatever the damage.
        let Ok(y) = model.evaluate(&x, &[]) else { continue };
        let norm = |v: &[f64]| (0..9).map(|i| (v[i] - v[9 + i]).powi(2)).sum::<f64>().sqrt();
        let slope = norm(&y) / norm(&x);
        assert!(
            (bounds.mu() * 0.999..=bounds.nu() * 1.001).contains(&slope),
            "byte {at}: {slope} outside {bounds:?}"
        );
    }
}
