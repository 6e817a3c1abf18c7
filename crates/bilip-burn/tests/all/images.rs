//! The image classifier in small: it learns, its blocks are certified afterwards, and they can be
//! inverted.

use bilip::{BiLipschitz, ImageClassifier, InverseOptions, Model, Network, Rng, metrics};
use bilip_burn::{
    Accumulation, Augment, ConvFeaturesConfig, Dataset, GpConfig, GpNet, Loss, OptimizerKind, Schedule,
    TrainConfig, train,
};
use burn::backend::{Autodiff, Flex};
use burn::module::{AutodiffModule, Module, ModuleMapper, Param};
use burn::record::{FullPrecisionSettings, NamedMpkBytesRecorder, Recorder};
use burn::tensor::{DType, Tensor, TensorData};

type B = Autodiff<Flex>;

const SIZE: usize = 8;
const COUNT: usize = 240;

/// The parameters in double precision.
struct InDouble;

impl ModuleMapper<Flex> for InDouble {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<Flex, D>>) -> Param<Tensor<Flex, D>> {
        param.map(|t| t.cast(DType::F64))
    }
}

/// Horizontal, vertical and diagonal stripes, in random colors, with noise.
fn stripes(seed: u64) -> Dataset {
    let mut rng = Rng::new(seed);
    let (mut images, mut classes) = (Vec::new(), Vec::new());
    for k in 0..COUNT {
        let class = k % 3;
        let (phase, color) = (8.0 * rng.uniform(), rng.normals(3));
        for c in 0..3 {
            for p in 0..SIZE {
                for q in 0..SIZE {
                    let along = match class {
                        0 => p as f64,
                        1 => q as f64,
                        _ => (p + q) as f64,
                    };
                    let wave = (1.6 * (along + phase)).sin();
                    images.push((0.5 + 0.5 * color[c].abs()) * wave + 0.3 * rng.normal());
                }
            }
        }
        classes.push(class as f64);
    }
    Dataset::new(images, 3 * SIZE * SIZE, classes, 1).unwrap()
}

#[test]
fn a_small_image_classifier_learns_and_keeps_its_guarantee() {
    let device = Default::default();
    let (training, test) = (stripes(1), stripes(2));
    let config = ConvFeaturesConfig {
        size: SIZE,
        outputs: 16,
        ..ConvFeaturesConfig::of_branch_bound(0.65, 1).unwrap()
    };
    let head_config = GpConfig {
        features: 64,
        length_scale: 4.0,
        orthogonal: true,
        normalize: true,
        ..GpConfig::new(16, 3)
    };
    let net = GpNet::new(
        config.init::<B>(&device).unwrap(),
        head_config.init::<B>(&device).unwrap(),
    );
    let settings = TrainConfig {
        epochs: 12,
        batch: 40,
        loss: Loss::CrossEntropy,
        optimizer: OptimizerKind::Sgd {
            momentum: 0.9,
            nesterov: true,
        },
        schedule: Schedule::one_cycle(0.1, (0.25, 0.7, 10.0, 10.0)),
        augment: Some(Augment {
            channels: 3,
            size: SIZE,
            pad: 1,
        }),
        ..Default::default()
    };
    let clock = std::time::Instant::now();
    let trained = train::<B, _>(net, &training, None, &settings).unwrap();
    println!(
        "{} s, losses {:?}",
        clock.elapsed().as_secs_f64(),
        trained.history.iter().map(|e| e.train_loss).collect::<Vec<_>>()
    );
    // Stored, not trained: Fourier tables of 34, 10 and 4 frequencies, images of power iterations,
    // projection, random features, moving means and variances.
    let tables = 2 * (34 * (64 + 64 + 9) + 10 * (16 + 16 + 9) + 4 * (4 + 4 + 9));
    let fixed = tables + (3 + 16 + 16) * 64 + 32 * 16 + 64 * 16 + (16 + 1) * 64 + 2 * 64;
    assert_eq!(trained.parameters, trained.model.num_params() - fixed);
    let net = trained.model.valid();
    let head = net
        .posterior(&training, Loss::CrossEntropy, 1.0, Accumulation::Exact, &device)
        .unwrap();
    let rows = net.hidden_rows(test.inputs(), 3 * SIZE * SIZE, &device);
    let p = head.probabilities(&rows, std::f64::consts::PI / 8.0).unwrap();
    let labels: Vec<usize> = test.targets().iter().map(|v| *v as usize).collect();
    let accuracy = metrics::accuracy(&p, &labels).unwrap();
    println!("accuracy {accuracy}");
    assert!(accuracy > 0.9, "{accuracy}");

    // A record of all that was trained gives the same network.
    let recorder = NamedMpkBytesRecorder::<FullPrecisionSettings>::default();
    let bytes = recorder.record(net.clone().into_record(), ()).unwrap();
    let other = config.clone().with_seed(9);
    let blank = GpNet::new(
        other.init::<Flex>(&device).unwrap(),
        head_config.init::<Flex>(&device).unwrap(),
    );
    let loaded = blank.load_record(recorder.load(bytes, &device).unwrap());
    assert_eq!(loaded.hidden_rows(test.inputs(), 3 * SIZE * SIZE, &device), rows);

    let features = net.net();
    for convolution in features.convolutions() {
        let norm = convolution.certified_norm().unwrap();
        assert!(norm < 8.0, "{norm}");
    }
    let data = TensorData::new(test.inputs()[..2 * 3 * SIZE * SIZE].to_vec(), [2, 3, SIZE, SIZE]);
    let x = Tensor::<Flex, 4>::from_data(data.convert_dtype(DType::F32), (&device, DType::F32));
    for (k, block) in features.blocks().iter().enumerate() {
        let layer = block.monotone().freeze::<f64>().unwrap();
        let certificate = layer.verify();
        assert!(certificate.holds(), "block {k}");
        assert_eq!(certificate.proved().bounds(), Some(config.bounds));
        assert!(
            block
                .orthogonal()
                .freeze::<f64>()
                .unwrap()
                .layer_certificate()
                .holds()
        );
        // What the block sees of real pictures comes back.
        let inputs: Vec<f64> = features
            .before_block(x.clone(), k)
            .to_data()
            .iter::<f64>()
            .collect();
        let y = layer.forward(&inputs).unwrap();
        let options = InverseOptions {
            tolerance: 1e-6,
            ..Default::default()
        };
        let inverse = layer.inverse(&y, &options).unwrap();
        assert!(inverse.converged(), "block {k}: {:?}", inverse.rows);
        let n = layer.dim();
        for (r, report) in inverse.rows.iter().enumerate() {
            let range = r * n..(r + 1) * n;
            let error: f64 = range
                .map(|i| (inverse.x[i] - inputs[i]).powi(2))
                .sum::<f64>()
                .sqrt();
            assert!(error <= report.error_bound && report.error_bound <= 1e-6);
        }
    }

    // The whole classifier in a model file: certified, and the same to single precision.
    let frozen = features.freeze::<f64>().unwrap();
    let outputs = frozen.outputs();
    let classifier = ImageClassifier::new(frozen.clone(), head, std::f64::consts::PI / 8.0).unwrap();
    let folder = std::env::temp_dir().join(format!("bilip-images-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let stored = |network: Network<f64>| {
        let path = folder.join("model.safetensors");
        Model::from(network).save(&path).unwrap();
        Model::load_verified(&path).unwrap()
    };
    let images = &test.inputs()[..20 * 3 * SIZE * SIZE];
    let model = stored(Network::ImageFeatures(frozen));
    assert!(model.verify().holds(), "{}", model.verify());
    let h = model.evaluate(images, &[]).unwrap();
    let data = TensorData::new(images.to_vec(), [20, 3, SIZE, SIZE]);
    // In double precision: in single, the module itself is off by 1e-6.
    let ours: Vec<f64> = (features.clone().map(&mut InDouble))
        .forward(Tensor::from_data(data, (&device, DType::F64)))
        .to_data()
        .iter::<f64>()
        .collect();
    assert_eq!((h.len(), ours.len()), (20 * outputs, 20 * outputs));
    let norm = |v: &[f64]| v.iter().map(|v| v * v).sum::<f64>().sqrt();
    for (a, b) in h.chunks(outputs).zip(ours.chunks(outputs)) {
        let difference: Vec<f64> = a.iter().zip(b).map(|(a, b)| a - b).collect();
        assert!(norm(&difference) <= 1e-6 * norm(b), "{a:?} {b:?}");
    }
    let model = stored(Network::ImageClassifier(classifier));
    let values = model.evaluate(images, &[]).unwrap();
    for (a, b) in values.chunks(4).zip(p.chunks(3)) {
        for k in 0..3 {
            assert!((a[k] - b[k]).abs() < 1e-5, "{a:?} {b:?}");
        }
    }

    // A block by itself: evaluated and inverted from its file.
    let block = &features.blocks()[0];
    let inputs = features.before_block(x, 0);
    let numbers = |t: Tensor<Flex, 4>| t.to_data().iter::<f64>().collect::<Vec<_>>();
    let model = stored(Network::ConvBiLipNet(block.freeze::<f64>().unwrap()));
    assert!(model.certificate().holds());
    assert_eq!(model.claim().bounds(), config.bounds);
    let inputs_64 = numbers(inputs.clone());
    let y = model.evaluate(&inputs_64, &[]).unwrap();
    let in_double = block.clone().map(&mut InDouble);
    for (a, b) in y.iter().zip(numbers(in_double.forward(inputs.cast(DType::F64)))) {
        assert!((a - b).abs() < 1e-6 * b.abs().max(1.0), "{a} {b}");
    }
    let options = InverseOptions {
        tolerance: 1e-6,
        ..Default::default()
    };
    let inverse = model.invert(&y, &[], &options).unwrap();
    assert!(inverse.converged() && inverse.max_error_bound() <= 1e-6);
    for (a, b) in inverse.x.iter().zip(&inputs_64) {
        assert!((a - b).abs() < 2e-6, "{a} {b}");
    }
    std::fs::remove_dir_all(folder).unwrap();
}
