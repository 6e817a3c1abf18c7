//! How good probabilities are, and how well an uncertainty tells known from unknown. Plain
//! functions on slices.
//!
//! Probabilities are row-major, one row a sample and one column a class; labels are classes from 0.

use crate::base::error::{Error, Result};

/// The number of classes, once everything has been checked.
fn check(probabilities: &[f64], labels: &[usize]) -> Result<usize> {
    let classes = probabilities.len().checked_div(labels.len()).unwrap_or(0);
    if classes == 0 || classes * labels.len() != probabilities.len() {
        return Err(Error::setting(
            "probabilities",
            probabilities.len(),
            format!(
                "must be as many for each of the {} labels, and at least one",
                labels.len()
            ),
        ));
    }
    if let Some(k) = probabilities.iter().position(|p| !(0.0..=1.0).contains(p)) {
        return Err(Error::setting(
            "probabilities",
            probabilities[k],
            format!("entry {k} is not between 0 and 1"),
        ));
    }
    if let Some(k) = labels.iter().position(|l| *l >= classes) {
        return Err(Error::setting(
            "labels",
            labels[k],
            format!("entry {k} is not one of the {classes} classes"),
        ));
    }
    Ok(classes)
}

/// The class with the largest probability, the first of equals, and that probability.
fn decision(row: &[f64]) -> (usize, f64) {
    row.iter().copied().enumerate().fold(
        (0, f64::NEG_INFINITY),
        |best, (k, p)| if p > best.1 { (k, p) } else { best },
    )
}

/// The share of samples whose most probable class is the true one.
///
/// # Errors
/// When sizes do not match, there are no samples, or a number is out of range.
pub fn accuracy(probabilities: &[f64], labels: &[usize]) -> Result<f64> {
    let classes = check(probabilities, labels)?;
    let right = probabilities
        .chunks_exact(classes)
        .zip(labels)
        .filter(|(row, label)| decision(row).0 == **label)
        .count();
    Ok(right as f64 / labels.len() as f64)
}

/// The mean of `−ln p` of the true class; infinite where one was held for impossible.
///
/// # Errors
/// As [`accuracy`].
pub fn negative_log_likelihood(probabilities: &[f64], labels: &[usize]) -> Result<f64> {
    let classes = check(probabilities, labels)?;
    let sum: f64 = labels
        .iter()
        .enumerate()
        .map(|(i, label)| -probabilities[i * classes + label].ln())
        .sum();
    Ok(sum / labels.len() as f64)
}

/// Brier's score: the mean of `Σ (p_k − 1{k is true})²` over all classes, between 0 and 2.
///
/// # Errors
/// As [`accuracy`].
pub fn brier_score(probabilities: &[f64], labels: &[usize]) -> Result<f64> {
    let classes = check(probabilities, labels)?;
    let sum: f64 = probabilities
        .iter()
        .enumerate()
        .map(|(i, p)| {
            let truth = if i % classes == labels[i / classes] {
                1.0
            } else {
                0.0
            };
            (p - truth) * (p - truth)
        })
        .sum();
    Ok(sum / labels.len() as f64)
}

/// How even the probabilities of every row are: `(1 − Σp²)·K/(K − 1)` for K classes, from 0 where
/// one of them is sure to 1 where all are alike; with two classes, `4p(1 − p)`.
///
/// # Errors
/// When there are fewer than two classes, the numbers do not make rows, or are not probabilities.
pub fn uncertainty(probabilities: &[f64], classes: usize) -> Result<Vec<f64>> {
    if classes < 2 || !probabilities.len().is_multiple_of(classes) {
        return Err(Error::shape(
            "probabilities",
            "rows of at least two classes",
            format!("{} numbers, {classes} classes", probabilities.len()),
        ));
    }
    if let Some(p) = probabilities.iter().find(|p| !(0.0..=1.0 + 1e-9).contains(*p)) {
        return Err(Error::setting("probability", p, "must be between 0 and 1"));
    }
    let scale = classes as f64 / (classes as f64 - 1.0);
    Ok(probabilities
        .chunks_exact(classes)
        .map(|row| (scale * (1.0 - row.iter().map(|p| p * p).sum::<f64>())).clamp(0.0, 1.0))
        .collect())
}

/// The expected calibration error: samples are sorted into bins of equal width by the probability
/// of their most probable class, `(0, 1/bins], (1/bins, 2/bins], …`; the error is the mean over
/// samples of a bin's distance between its share of right decisions and its mean probability.
///
/// # Errors
/// As [`accuracy`], and when there are no bins.
pub fn calibration_error(probabilities: &[f64], labels: &[usize], bins: usize) -> Result<f64> {
    let classes = check(probabilities, labels)?;
    if bins == 0 {
        return Err(Error::setting("bins", bins, "must be at least 1"));
    }
    // Sums of probabilities and of right decisions; their difference is all that is needed.
    let mut difference = vec![0.0; bins];
    for (row, label) in probabilities.chunks_exact(classes).zip(labels) {
        let (class, p) = decision(row);
        let bin = ((p * bins as f64).ceil() as usize).clamp(1, bins) - 1;
        difference[bin] += p - if class == *label { 1.0 } else { 0.0 };
    }
    Ok(difference.iter().map(|d: &f64| d.abs()).sum::<f64>() / labels.len() as f64)
}

/// Scores in falling order with whether they belong to a positive, checked.
fn ranked(negatives: &[f64], positives: &[f64]) -> Result<Vec<(f64, bool)>> {
    for (name, scores) in [("negatives", negatives), ("positives", positives)] {
        if scores.is_empty() {
            return Err(Error::setting(name, scores.len(), "must be at least one"));
        }
        if let Some(k) = scores.iter().position(|s| s.is_nan()) {
            return Err(Error::setting(
                name,
                scores[k],
                format!("entry {k} is not a number"),
            ));
        }
    }
    let mut all: Vec<(f64, bool)> = negatives.iter().map(|s| (*s, false)).collect();
    all.extend(positives.iter().map(|s| (*s, true)));
    all.sort_by(|a, b| b.0.total_cmp(&a.0));
    Ok(all)
}

/// The area under the receiver's operating characteristic: the probability that a positive has a
/// larger score than a negative, ties counted half.
///
/// For uncertainty as a detector, `negatives` are the scores of known data and `positives` those of
/// unknown.
///
/// # Errors
/// When there are no scores of either kind, or one is not a number.
pub fn auroc(negatives: &[f64], positives: &[f64]) -> Result<f64> {
    let all = ranked(negatives, positives)?;
    // Twice the number of pairs in the right order; whole numbers, so that nothing is rounded.
    let (mut twice, mut above, mut at) = (0u128, 0u128, 0);
    while at < all.len() {
        let equal = all[at..].iter().take_while(|s| s.0 == all[at].0).count();
        let positive = all[at..at + equal].iter().filter(|s| s.1).count() as u128;
        let negative = equal as u128 - positive;
        twice += negative * (2 * above + positive);
        above += positive;
        at += equal;
    }
    Ok(twice as f64 / (2.0 * negatives.len() as f64 * positives.len() as f64))
}

/// The average precision, the area under the curve of precision against recall in steps: `Σ (R_k −
/// R_{k−1})P_k` over falling thresholds.
///
/// # Errors
/// As [`auroc`].
pub fn average_precision(negatives: &[f64], positives: &[f64]) -> Result<f64> {
    let all = ranked(negatives, positives)?;
    let (mut sum, mut found, mut at) = (0.0, 0, 0);
    while at < all.len() {
        let equal = all[at..].iter().take_while(|s| s.0 == all[at].0).count();
        let positive = all[at..at + equal].iter().filter(|s| s.1).count();
        at += equal;
        found += positive;
        sum += positive as f64 * found as f64 / at as f64;
    }
    Ok(sum / positives.len() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_cases_by_hand() {
        let p = [0.9, 0.1, 0.4, 0.6, 0.2, 0.8];
        let labels = [0, 0, 1];
        assert_eq!(accuracy(&p, &labels).unwrap(), 2.0 / 3.0);
        let nll = negative_log_likelihood(&p, &labels).unwrap();
        assert!((nll + (0.9f64.ln() + 0.4f64.ln() + 0.8f64.ln()) / 3.0).abs() < 1e-15);
        let brier = brier_score(&p, &labels).unwrap();
        assert!((brier - (0.02 + 0.72 + 0.08) / 3.0).abs() < 1e-15);
        // One bin: mean probability 2.3/3 against 2/3 right.
        assert!((calibration_error(&p, &labels, 1).unwrap() - 0.1).abs() < 1e-15);
        // Ten bins: 0.6 wrong, 0.8 and 0.9 right, each alone.
        assert!((calibration_error(&p, &labels, 10).unwrap() - (0.6 + 0.2 + 0.1) / 3.0).abs() < 1e-15);
    }

    #[test]
    fn uncertainty_goes_from_sure_to_even() {
        assert_eq!(uncertainty(&[1.0, 0.0, 0.5, 0.5], 2).unwrap(), [0.0, 1.0]);
        let u = uncertainty(&[0.9, 0.1], 2).unwrap();
        assert!((u[0] - 0.9 * 0.1 / 0.25).abs() < 1e-15);
        let u = uncertainty(&[1.0 / 3.0; 3], 3).unwrap();
        assert!((u[0] - 1.0).abs() < 1e-15);
        for (p, classes) in [
            (&[1.0][..], 1),
            (&[0.5, 0.5, 0.5], 2),
            (&[2.0, -1.0], 2),
            (&[f64::NAN, 0.0], 2),
        ] {
            assert!(uncertainty(p, classes).is_err());
        }
    }

    #[test]
    fn detection_is_perfect_random_or_tied() {
        assert_eq!(auroc(&[0.1, 0.2], &[0.3, 0.4]).unwrap(), 1.0);
        assert_eq!(auroc(&[0.3, 0.4], &[0.1, 0.2]).unwrap(), 0.0);
        assert_eq!(auroc(&[0.5, 0.5], &[0.5]).unwrap(), 0.5);
        assert_eq!(auroc(&[0.0, 1.0], &[0.5]).unwrap(), 0.5);
        assert_eq!(average_precision(&[0.1, 0.2], &[0.3, 0.4]).unwrap(), 1.0);
        // Everything at one threshold: the share of positives.
        assert_eq!(average_precision(&[0.5, 0.5, 0.5], &[0.5]).unwrap(), 0.25);
        // Ranks: positive, negative, positive.
        let expected = 0.5 * (1.0 + 2.0 / 3.0);
        assert!((average_precision(&[0.5], &[0.9, 0.1]).unwrap() - expected).abs() < 1e-15);
    }

    #[test]
    fn bad_input_is_an_error_that_says_what() {
        for (p, labels) in [
            (vec![], vec![]),
            (vec![0.5], vec![]),
            (vec![0.5, 0.5, 1.0], vec![0, 1]),
            (vec![0.5, 1.5], vec![0]),
            (vec![f64::NAN, 0.5], vec![0]),
            (vec![0.5, 0.5], vec![2]),
        ] {
            assert!(accuracy(&p, &labels).is_err(), "{p:?} {labels:?}");
        }
        assert!(calibration_error(&[1.0], &[0], 0).is_err());
        assert!(auroc(&[], &[1.0]).is_err());
        assert!(average_precision(&[1.0], &[f64::NAN]).is_err());
    }
}
