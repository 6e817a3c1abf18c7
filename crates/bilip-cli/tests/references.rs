//! Gaussian processes and metrics against implementations of other people.

mod common;

use bilip::{GpHead, RandomFeatures, Rng, metrics};
use common::{Place, parse_csv, run_python};

fn csv(values: &[f64], columns: usize) -> String {
    values
        .chunks(columns)
        .map(|row| row.iter().map(f64::to_string).collect::<Vec<_>>().join(",") + "\n")
        .collect()
}

const METRICS: &str = r#"
import sys, numpy as np, calibration
from sklearn import metrics as m
p = np.loadtxt(sys.argv[1], delimiter=",", ndmin=2)
labels = np.loadtxt(sys.argv[2], delimiter=",").astype(int)
scores = np.loadtxt(sys.argv[3], delimiter=",", ndmin=2)
classes = p.shape[1]
one_hot = np.eye(classes)[labels]
print(",".join(repr(float(v)) for v in [
    m.accuracy_score(labels, p.argmax(axis=1)),
    m.log_loss(labels, p, labels=range(classes)),
    # Of two classes scikit-learn takes one, we take both.
    m.brier_score_loss(one_hot, p, scale_by_half=False) if classes > 2 else 2 * m.brier_score_loss(labels, p[:, 1], scale_by_half=True),
    calibration.get_ece(p, labels, num_bins=15),
    m.roc_auc_score(scores[:, 1], scores[:, 0]),
    m.average_precision_score(scores[:, 1], scores[:, 0]),
]))
"#;

#[test]
fn metrics_agree_with_scikit_learn_and_uncertainty_calibration() {
    let place = Place::new();
    let script = place.write("metrics.py", METRICS);
    let mut rng = Rng::new(17);
    let mut worst = 0.0f64;
    for (classes, rows) in [(2, 501), (3, 1000), (10, 2000)] {
        let mut p = Vec::new();
        let mut labels = Vec::new();
        for _ in 0..rows {
            let logits: Vec<f64> = rng.normals(classes).iter().map(|v| 1.5 * v).collect();
            let sum: f64 = logits.iter().map(|v| v.exp()).sum();
            p.extend(logits.iter().map(|v| v.exp() / sum));
            // Right more often than not, and not as often as the probabilities say.
            let top = (0..classes)
                .max_by(|a, b| logits[*a].total_cmp(&logits[*b]))
                .unwrap();
            let other = (rng.uniform() * classes as f64) as usize % classes;
            labels.push(if rng.uniform() < 0.6 { top } else { other });
        }
        // Scores with ties.
        let scores = |rng: &mut Rng, shift: f64| -> Vec<f64> {
            (0..rows)
                .map(|_| (8.0 * (rng.normals(1)[0] + shift)).round() / 8.0)
                .collect()
        };
        let (negatives, positives) = (scores(&mut rng, 0.0), scores(&mut rng, 0.7));
        let ranked: Vec<f64> = negatives
            .iter()
            .flat_map(|s| [*s, 0.0])
            .chain(positives.iter().flat_map(|s| [*s, 1.0]))
            .collect();
        let numbers: Vec<f64> = labels.iter().map(|l| *l as f64).collect();
        let files = [
            place.write("p.csv", csv(&p, classes)),
            place.write("labels.csv", csv(&numbers, 1)),
            place.write("scores.csv", csv(&ranked, 2)),
        ];
        let theirs: Vec<f64> = run_python(&script, &files)
            .trim()
            .split(',')
            .map(|v| v.parse().unwrap())
            .collect();
        let ours = [
            metrics::accuracy(&p, &labels).unwrap(),
            metrics::negative_log_likelihood(&p, &labels).unwrap(),
            metrics::brier_score(&p, &labels).unwrap(),
            metrics::calibration_error(&p, &labels, 15).unwrap(),
            metrics::auroc(&negatives, &positives).unwrap(),
            metrics::average_precision(&negatives, &positives).unwrap(),
        ];
        for (k, (a, b)) in ours.iter().zip(&theirs).enumerate() {
            worst = worst.max((a - b).abs());
            assert!((a - b).abs() <= 1e-12, "{classes} classes, metric {k}: {a} {b}");
        }
    }
    println!("largest difference {worst:.1e}");
}

const PROCESS: &str = r#"
import sys, numpy as np
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF
x, y, new = (np.loadtxt(path, delimiter=",", ndmin=2) for path in sys.argv[1:])
gp = GaussianProcessRegressor(RBF(1.2), alpha=0.1, optimizer=None).fit(x, y[:, 0])
mean, deviation = gp.predict(new, return_std=True)
np.savetxt(sys.stdout, np.column_stack([mean, deviation ** 2]), delimiter=",", fmt="%.17g")
"#;

#[test]
fn random_features_approach_the_exact_process_of_scikit_learn() {
    let place = Place::new();
    let script = place.write("process.py", PROCESS);
    let mut rng = Rng::new(3);
    let (rows, new_rows, n) = (60, 40, 3);
    let x = rng.normals(rows * n);
    let y: Vec<f64> = x
        .chunks(n)
        .map(|r| (2.0 * r[0]).sin() + r[1] * r[2] + 0.1 * rng.normals(1)[0])
        .collect();
    let new = rng.normals(new_rows * n);
    let files = [
        place.write("x.csv", csv(&x, n)),
        place.write("y.csv", csv(&y, 1)),
        place.write("new.csv", csv(&new, n)),
    ];
    let exact = parse_csv(&format!("mean,variance\n{}", run_python(&script, &files))).1;
    for orthogonal in [false, true] {
        // Mean squares over points and draws, of means and variances.
        let mut errors = Vec::new();
        for count in [64, 256, 1024] {
            let draws = 8;
            let (mut mean_square, mut variance_square) = (0.0, 0.0);
            for seed in 0..draws {
                let features =
                    RandomFeatures::draw(n, count, 1.2, orthogonal, &mut Rng::new(100 + seed)).unwrap();
                let head = GpHead::regression(features, &x, &y, 0.1).unwrap();
                let (mean, variance) = head.predict(&new).unwrap();
                for ((m, v), row) in mean.iter().zip(&variance).zip(&exact) {
                    mean_square += (m - row[0]).powi(2);
                    variance_square += (v - row[1]).powi(2);
                }
            }
            let total = (draws as usize * new_rows) as f64;
            errors.push([(mean_square / total).sqrt(), (variance_square / total).sqrt()]);
        }
        println!("orthogonal {orthogonal}: {errors:.4?}");
        for k in 0..2 {
            for pair in errors.windows(2) {
                // Four times the features halve the error, give or take the draws.
                let ratio = pair[0][k] / pair[1][k];
                assert!((1.4..3.5).contains(&ratio), "orthogonal {orthogonal}: {errors:?}");
            }
            assert!(errors[2][k] < 0.12, "orthogonal {orthogonal}: {errors:?}");
        }
    }
}
