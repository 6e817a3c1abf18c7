//! Inverse and minimum: warm starts, traces, extremes, and the comparison with gradient methods.

use bilip::faer::Mat;
use bilip::{
    Activation, BiLipNet, BiLipNetFree, BiLipschitz, Bounds, GradientMethod, InverseOptions, Method, MonLip,
    MonLipFree, Orthogonal, PlNet, RandomLayer, Rng, Status,
};

fn layer(distortion: f64, n: usize) -> MonLip<f64> {
    let bounds = Bounds::from_parts(None, None, Some(distortion)).unwrap();
    let free = MonLipFree::random(&RandomLayer::new(n, &[24, 16, 24], bounds), &mut Rng::new(1)).unwrap();
    MonLip::from_free(&free).unwrap()
}

fn distance(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| (a - b).powi(2)).sum::<f64>().sqrt()
}

#[test]
fn a_warm_start_at_the_answer_takes_no_steps() {
    let layer = layer(20.0, 5);
    let y = Rng::new(2).normals(5 * 7);
    let sharp = InverseOptions {
        tolerance: 1e-12,
        ..Default::default()
    };
    let start = layer.inverse(&y, &sharp).unwrap().x;
    for method in Method::all() {
        let name = method.name();
        let cold = InverseOptions {
            max_iterations: Some(20_000),
            ..InverseOptions::with_method(method.clone())
        };
        let cold = layer.inverse(&y, &cold).unwrap();
        // Forward-backward splitting's proved step can be too short to arrive; the others do.
        assert!(cold.converged() || name == "fbs", "{name}");
        let options = InverseOptions {
            start: Some(start.clone()),
            ..InverseOptions::with_method(method)
        };
        let warm = layer.inverse(&y, &options).unwrap();
        assert_eq!(warm.max_iterations(), 0, "{name}");
        assert!(cold.max_iterations() > 0, "{name}");
    }
}

#[test]
fn traces_start_high_end_low_and_belong_to_their_rows() {
    let bounds = Bounds::new(0.2, 4.0).unwrap();
    let free = BiLipNetFree::random(&RandomLayer::new(3, &[12, 12], bounds), 2, &mut Rng::new(3)).unwrap();
    let net = BiLipNet::<f64>::from_free(&free).unwrap();
    let y = Rng::new(4).normals(3 * 2);
    for method in [Method::Auto, "dys".parse().unwrap(), "fsm".parse().unwrap()] {
        let options = InverseOptions {
            trace: true,
            ..InverseOptions::with_method(method)
        };
        let inverse = net.inverse(&y, &options).unwrap();
        for row in &inverse.rows {
            assert_eq!(row.status, Status::Converged);
            // Layers are inverted from the last: 3, then 1.
            let layers: Vec<usize> = row.trace.iter().map(|p| p.layer).collect();
            assert!(layers.is_sorted_by(|a, b| a >= b) && layers[0] == 3 && layers[layers.len() - 1] == 1);
            for layer in [3, 1] {
                let errors: Vec<f64> = row
                    .trace
                    .iter()
                    .filter(|p| p.layer == layer)
                    .map(|p| p.error)
                    .collect();
                assert!(
                    errors[errors.len() - 1] < 1e-6 * (1e-6 + errors[0]).max(1e-2),
                    "{errors:?}"
                );
            }
        }
    }
}

#[test]
fn rows_of_one_batch_do_not_disturb_each_other() {
    // Rows that take very different numbers of steps, alone and together.
    let layer = layer(30.0, 4);
    let mut rng = Rng::new(5);
    let y: Vec<f64> = (0..40)
        .flat_map(|r| rng.normals(4).into_iter().map(move |v| v * 10f64.powi(r % 7 - 3)))
        .collect();
    for method in Method::all() {
        let options = InverseOptions {
            tolerance: 1e-9,
            ..InverseOptions::with_method(method.clone())
        };
        let together = layer.inverse(&y, &options).unwrap();
        for (r, row) in y.chunks(4).enumerate() {
            let alone = layer.inverse(row, &options).unwrap();
            let apart = distance(&alone.x, &together.x[r * 4..(r + 1) * 4]);
            assert!(
                apart <= alone.rows[0].error_bound + together.rows[r].error_bound,
                "{}",
                method.name()
            );
        }
    }
}

#[test]
fn enormous_and_tiny_right_hand_sides_get_true_bounds() {
    for distortion in [1.0 + 1e-6, 10.0, 1e6] {
        let layer = layer(distortion, 3);
        for scale in [0.0, 1e-300, 1e-12, 1e12, 1e100, 1e300] {
            let y: Vec<f64> = Rng::new(6).normals(3).iter().map(|v| v * scale).collect();
            for method in Method::all() {
                let options = InverseOptions {
                    max_iterations: Some(200),
                    ..InverseOptions::with_method(method)
                };
                let inverse = layer.inverse(&y, &options).unwrap();
                assert_eq!(inverse.x.len(), 3);
                let row = &inverse.rows[0];
                assert!(row.error_bound >= 0.0);
                assert!(
                    (row.status == Status::Converged) == (row.error_bound <= 1e-8),
                    "{row:?}"
                );
                if scale <= 1.0 && matches!(options.method, Method::Auto) {
                    assert_eq!(row.status, Status::Converged, "{distortion} {scale}");
                }
            }
        }
    }
}

#[test]
fn asking_for_more_than_f64_holds_is_answered_with_the_limit() {
    let layer = layer(1e6, 3);
    let y = layer.forward(&[0.3, -0.2, 0.9]).unwrap();
    for method in ["auto", "newton", "drs"] {
        let options = InverseOptions {
            tolerance: 0.0,
            max_iterations: Some(3_000),
            ..InverseOptions::with_method(method.parse().unwrap())
        };
        let inverse = layer.inverse(&y, &options).unwrap();
        let row = &inverse.rows[0];
        assert_ne!(row.status, Status::Converged);
        assert!(row.error_bound < 1e-6, "{method}: {row:?}");
        assert!(distance(&inverse.x, &[0.3, -0.2, 0.9]) <= row.error_bound + 1e-9);
    }
}

#[test]
fn wide_inputs_go_through_krylov() {
    let bounds = Bounds::new(0.5, 5.0).unwrap();
    let free = MonLipFree::random(&RandomLayer::new(300, &[64, 64], bounds), &mut Rng::new(8)).unwrap();
    let layer = MonLip::<f64>::from_free(&free).unwrap();
    let x = Rng::new(9).normals(300 * 2);
    let y = layer.forward(&x).unwrap();
    let inverse = layer.inverse(&y, &InverseOptions::default()).unwrap();
    assert!(inverse.converged());
    assert!(distance(&inverse.x, &x) < 1e-7);
    let w = Rng::new(10).normals(300);
    let v = layer.inverse_vjp(&x[..300], &w).unwrap();
    let back = layer.vjp(&x[..300], &v).unwrap();
    assert!(distance(&back, &w) < 1e-9);
}

#[test]
fn gradient_methods_approach_the_minimum_that_is_computed_directly() {
    let bounds = Bounds::new(0.5, 2.0).unwrap();
    let free = BiLipNetFree::random(
        &RandomLayer::new(4, &[16, 16], bounds).with_activation(Activation::Softplus),
        2,
        &mut Rng::new(11),
    )
    .unwrap();
    let f = PlNet::new(BiLipNet::from_free(&free).unwrap(), 1.0).unwrap();
    let minimum = f.minimize(&InverseOptions::default()).unwrap();
    for method in [
        GradientMethod::Descent { rate: 0.1 },
        GradientMethod::Adam { rate: 0.1 },
    ] {
        let path = method.run(&f, &[3.0, -1.0, 2.0, 0.5], 2_000).unwrap();
        assert_eq!(path.gaps.len(), 2_001);
        assert!(
            path.gaps[2_000] < 1e-9 * path.gaps[0],
            "{method:?}: {}",
            path.gaps[2_000]
        );
        assert!(distance(&path.x, &minimum.x) < 1e-3);
    }
    let wild = GradientMethod::Descent { rate: 1e9 }
        .run(&f, &[1.0; 4], 2_000)
        .unwrap();
    assert!(
        wild.gaps.len() < 2_001,
        "a rate far too large stops when the numbers overflow"
    );
    assert!(GradientMethod::Adam { rate: -1.0 }.run(&f, &[1.0; 4], 1).is_err());
    assert!(GradientMethod::Adam { rate: 0.1 }.run(&f, &[1.0; 3], 1).is_err());
}

#[test]
fn householder_layers_are_isometries_and_invert() {
    let mut rng = Rng::new(12);
    let layer = Orthogonal::<f32>::from_householder(rng.matrix(5, 8, 1.0).as_ref(), &rng.normals(8)).unwrap();
    let bounds = layer.bounds();
    assert!(bounds.mu() <= 1.0 && bounds.mu() > 1.0 - 1e-6 && bounds.nu() >= 1.0 && bounds.nu() < 1.0 + 1e-6);
    // The inverse is that of the stored f32 matrix, not of the orthogonal one it rounds.
    let y = rng.normals(8);
    let inverse = layer
        .inverse(
            &y,
            &InverseOptions {
                tolerance: 1e-13,
                ..Default::default()
            },
        )
        .unwrap();
    assert!(inverse.converged(), "{:?}", inverse.rows);
    assert!(Orthogonal::<f64>::from_explicit(Mat::from_fn(2, 2, |_, _| 1.0), vec![0.0; 2]).is_err());
    assert!(Orthogonal::<f64>::from_free(Mat::<f64>::zeros(2, 3).as_ref(), &[0.0; 2]).is_err());
}

#[test]
fn settings_and_free_parameters_that_make_no_sense_are_errors() {
    let bounds = Bounds::new(0.5, 2.0).unwrap();
    let mut rng = Rng::new(13);
    let equal = Bounds::new(1.0, 1.0).unwrap();
    let good = MonLipFree::random(&RandomLayer::new(2, &[3, 4], bounds), &mut rng).unwrap();
    assert!(MonLipFree::random(&RandomLayer::new(0, &[3], bounds), &mut rng).is_err());
    assert!(MonLipFree::random(&RandomLayer::new(2, &[3, 0], bounds), &mut rng).is_err());
    assert!(MonLipFree::random(&RandomLayer::new(2, &[], bounds), &mut rng).is_err());
    assert!(BiLipNetFree::random(&RandomLayer::new(2, &[3], bounds), 0, &mut rng).is_err());
    let mut cases = vec![
        MonLipFree {
            bounds: equal,
            ..good.clone()
        },
        MonLipFree {
            fab: vec![],
            ..good.clone()
        },
        MonLipFree {
            fq: Mat::zeros(6, 2),
            ..good.clone()
        },
        MonLipFree {
            fp: Some(Mat::zeros(3, 3)),
            ..good.clone()
        },
        MonLipFree {
            log_psi: Some(vec![0.0; 3]),
            ..good.clone()
        },
        MonLipFree {
            hidden_bias: vec![0.0; 3],
            ..good.clone()
        },
        MonLipFree {
            output_bias: vec![f64::NAN; 2],
            ..good.clone()
        },
        // ψ = e^d leaves the range of numbers.
        MonLipFree {
            log_psi: Some(vec![1e4; 7]),
            activation: Activation::Tanh,
            ..good.clone()
        },
    ];
    let mut nan = good.clone();
    nan.fab[1][(0, 0)] = f64::NAN;
    cases.push(nan);
    let mut huge = good.clone();
    huge.fq.fill(1e300);
    cases.push(huge);
    for (k, case) in cases.iter().enumerate() {
        assert!(MonLip::<f64>::from_free(case).is_err(), "case {k}");
    }
    assert!(MonLip::<f64>::from_free(&good).is_ok());
    // A network whose shares do not multiply to its bounds.
    let mut free = BiLipNetFree::random(&RandomLayer::new(2, &[3], bounds), 2, &mut rng).unwrap();
    free.monotone[0].bounds = bounds;
    assert!(BiLipNet::<f64>::from_free(&free).is_err());
    free.share_bounds().unwrap();
    free.orthogonal.pop();
    assert!(BiLipNet::<f64>::from_free(&free).is_err());
}

#[test]
fn bounds_stay_true_where_squares_underflow() {
    let bounds = Bounds::new(0.1, 10.0).unwrap();
    let free = MonLipFree::random(
        &RandomLayer::new(3, &[8, 8], bounds).with_bias(0.0),
        &mut Rng::new(14),
    )
    .unwrap();
    let layer = MonLip::<f64>::from_free(&free).unwrap();
    let y = Rng::new(15).normals(3);
    // Without biases the layer is positively homogeneous, so the inverse of a scaled y is the
    // scaled inverse.
    let sharp = InverseOptions {
        tolerance: 1e-13,
        ..Default::default()
    };
    let x = layer.inverse(&y, &sharp).unwrap().x;
    for scale in [1e-100, 1e-150, 1e-170, 1e-300] {
        let small: Vec<f64> = y.iter().map(|v| v * scale).collect();
        for tolerance in [0.0, 1e-8, scale] {
            let options = InverseOptions {
                tolerance,
                ..Default::default()
            };
            let inverse = layer.inverse(&small, &options).unwrap();
            let expected: Vec<f64> = x.iter().map(|v| v * scale).collect();
            // Compared in units of the scale, where squares are harmless.
            let error = inverse
                .x
                .iter()
                .zip(&expected)
                .map(|(a, b)| (a - b).abs())
                .fold(0.0, f64::max);
            assert!(
                error <= inverse.rows[0].error_bound + 1e-12 * scale,
                "{scale} {tolerance} {:?}",
                inverse.rows[0]
            );
        }
    }
}

#[test]
fn the_limit_on_iterations_is_kept_by_every_method() {
    let layer = layer(1e6, 4);
    let y: Vec<f64> = Rng::new(16).normals(4 * 3).iter().map(|v| 100.0 * v).collect();
    for limit in [1, 2, 7] {
        for method in Method::all() {
            let options = InverseOptions {
                max_iterations: Some(limit),
                tolerance: 0.0,
                ..InverseOptions::with_method(method)
            };
            let inverse = layer.inverse(&y, &options).unwrap();
            assert!(
                inverse.max_iterations() <= limit,
                "{} {:?}",
                options.method,
                inverse.rows
            );
        }
    }
}

#[test]
fn a_row_that_leaves_the_range_does_not_take_others_with_it() {
    let layer = layer(100.0, 2);
    let good = [0.3, -0.8];
    let y = [good, [1e300, -1e300], good].concat();
    for method in Method::all() {
        let options = InverseOptions {
            max_iterations: Some(5_000),
            ..InverseOptions::with_method(method)
        };
        let inverse = layer.inverse(&y, &options).unwrap();
        assert_eq!(inverse.x.len(), 6);
        let alone = layer.inverse(&good, &options).unwrap();
        for r in [0, 2] {
            assert_eq!(inverse.rows[r].status, alone.rows[0].status, "{}", options.method);
            let apart = distance(&inverse.x[2 * r..2 * r + 2], &alone.x);
            assert!(apart <= inverse.rows[r].error_bound + alone.rows[0].error_bound);
        }
        assert!(inverse.rows[1].error_bound > 1e-8);
    }
}

#[test]
fn a_poorly_orthogonal_layer_is_inverted_as_it_is() {
    let matrix = Mat::from_fn(3, 3, |i, j| {
        if i == j {
            1.0
        } else {
            0.12 * (i as f64 - j as f64) + 0.05
        }
    });
    let layer = Orthogonal::from_explicit(matrix, vec![0.1, 0.2, 0.3]).unwrap();
    let x = [1.0, -2.0, 0.5];
    let y = layer.forward(&x).unwrap();
    let inverse = layer
        .inverse(&y, &InverseOptions::with_method("dys".parse().unwrap()))
        .unwrap();
    assert!(inverse.converged(), "{:?}", inverse.rows);
    assert!(distance(&inverse.x, &x) < 1e-8);
}
