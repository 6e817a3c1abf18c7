//! Writes one tiny model of every kind and precision into `corpus/load` and `corpus/whole`: where
//! the fuzzers start from.

use bilip::faer::Mat;
use bilip::{
    Activation, BiLipNet, BiLipNetFree, Bounds, Classifier, ConvBiLipNet, ConvFree, RandomConvLayer, Convolution, GpHead, ImageClassifier,
    ImageFeatures, ImageStep, Mlp, Model, MonLip, MonLipFree, RandomLayer, Network, Orthogonal, PartialBiLipNet, PartialPlNet, PlNet,
    PosteriorPrecision, RandomFeatures, Real, Rng, Scaling,
};

fn networks<T: Real>() -> Result<Vec<Network<T>>, bilip::Error> {
    let bounds = Bounds::new(0.5, 2.0)?;
    let mut rng = Rng::new(1);
    let mut layer = MonLipFree::random(&RandomLayer::new(2, &[2, 1], bounds).with_activation(Activation::Tanh).with_bias(1.0), &mut rng)?;
    layer.log_psi = Some(vec![0.1, -0.2, 0.3]);
    let net = BiLipNet::<T>::from_free(&BiLipNetFree::random(&RandomLayer::new(1, &[2], bounds).with_bias(1.0), 1, &mut rng)?)?;
    let mut mlp = |outputs: usize| -> Result<Mlp<T>, bilip::Error> {
        Ok(Mlp::new(vec![(rng.glorot(2, 1), rng.normals(2)), (rng.glorot(outputs, 2), rng.normals(outputs))])?.convert())
    };
    let partial = PartialBiLipNet::new(net.clone(), vec![mlp(1)?, mlp(1)?], vec![mlp(2)?])?;
    let one = |v: f64| vec![T::round_from(v)];
    let scaled = net.clone().with_scalings(
        Some(Scaling::new(one(0.5), one(1.0))?),
        Some(Scaling::new(one(4.0), one(-2.0))?),
    )?;
    let mut rng = Rng::new(2);
    let features = RandomFeatures::draw(1, 2, 1.0, true, &mut rng)?;
    let mut precision = PosteriorPrecision::new(2, 0.5)?;
    precision.add(&rng.normals(4), &[0.1; 2])?;
    let head = GpHead::new(features, rng.matrix(2, 2, 1.0), rng.normals(2), &precision)?;
    let conv = |channels: usize, image: usize, rng: &mut Rng| -> Result<ConvBiLipNet<T>, bilip::Error> {
        let free = ConvFree::random(&RandomConvLayer::new(channels, image, &[1, 1], bounds), rng)?;
        let mixing = Orthogonal::from_free(rng.glorot(channels, channels).as_ref(), &rng.normals(channels))?;
        ConvBiLipNet::from_free(&[free], vec![mixing], bounds)
    };
    let kernels = |count: usize, rng: &mut Rng| rng.normals(count).iter().map(|v| T::round_from(*v)).collect();
    let thinned = Convolution::new([1, 2], 4, 3, 2, kernels(18, &mut rng))?;
    let norm = thinned.norm_bound()?;
    let images = ImageFeatures::new(
        vec![ImageStep::Convolution(thinned, norm), ImageStep::Block(conv(2, 2, &mut rng)?)],
        vec![T::round_from(1.5); 2],
        vec![T::round_from(-0.1); 2],
        Mat::from_fn(1, 2, |_, j| T::round_from(0.5 - j as f64)),
        bounds,
    )?;
    Ok(vec![
        Network::ConvBiLipNet(conv(1, 3, &mut rng)?),
        Network::ImageFeatures(images.clone()),
        Network::ImageClassifier(ImageClassifier::new(images, head.clone(), 0.4)?),
        Network::BiLipNet(scaled.clone()),
        Network::Classifier(Classifier::new(scaled, 1, head, 0.4)?),
        Network::MonLip(MonLip::from_free(&layer)?),
        Network::BiLipNet(net.clone()),
        Network::PlNet(PlNet::new(net.clone(), 0.5)?),
        Network::PlNet(PlNet::with_minimizer(net, 0.5, vec![T::round_from(0.25)])?),
        Network::PartialBiLipNet(partial.clone()),
        Network::PartialPlNet(PartialPlNet::new(partial, 0.0)?),
    ])
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folders = ["load", "whole"].map(|f| format!("{}/corpus/{f}", env!("CARGO_MANIFEST_DIR")));
    for folder in &folders {
        std::fs::create_dir_all(folder)?;
    }
    let models = networks::<f32>()?
        .into_iter()
        .map(Model::from)
        .chain(networks::<f64>()?.into_iter().map(Model::from));
    for (k, model) in models.enumerate() {
        for folder in &folders {
            model.save(format!("{folder}/seed-{k:02}.safetensors"))?;
        }
    }
    Ok(())
}
