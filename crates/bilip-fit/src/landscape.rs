//! Minima of the model without a guarantee, and the passes between them: a table whose values rise
//! by more than their errors on every way from one low place to another has more than one minimum,
//! however well a network with one minimum fits most of its rows.
//!
//! Measured on a model of the rows; nothing here is proved.

use crate::free::Free;

/// Rows among which low places are sought.
const MOST_ROWS: usize = 1_000;

/// Low places that descent starts from, and minima that are looked at.
const STARTS: usize = 24;
const MINIMA: usize = 6;

/// Points of a path between two minima, steps of its relaxation, and points that each of its
/// segments is looked at in the end.
const POINTS: usize = 17;
const STEPS: usize = 120;
const BETWEEN: usize = 4;

/// A pass counts when it is higher than the higher minimum by this many errors of the model, and by
/// this share of the deviation of the values.
const ERRORS: f64 = 3.0;
const MATTERS: f64 = 0.03;

/// Nearer to an end of the data than this share of its range is at the edge.
const EDGE: f64 = 0.02;

/// A second minimum of the free model, in standardized variables.
#[derive(Clone, Debug)]
pub(crate) struct Second {
    pub x: Vec<f64>,
    /// How much the values rise on the lowest path that was found from there to the first minimum.
    #[cfg_attr(not(test), expect(dead_code))]
    pub rise: f64,
}

/// A second minimum inside a box, if passes between minima are clearly higher than both.
///
/// `error` is that of the model among low rows that it has not seen, `deviation` that of the values.
pub(crate) fn second_minimum(
    free: &Free,
    rows: &[f64],
    bounds: &[(f64, f64)],
    error: f64,
    deviation: f64,
) -> Option<Second> {
    let n = bounds.len();
    let rows = &rows[..rows.len().min(MOST_ROWS * n)];
    let mut minima: Vec<(Vec<f64>, f64)> = (low_places(free, rows, n).iter())
        .map(|start| free.descend(start, bounds, n))
        .collect();
    minima.sort_by(|a, b| a.1.total_cmp(&b.1));
    let mut distinct: Vec<(Vec<f64>, f64)> = Vec::new();
    for (x, value) in minima {
        let near = |other: &[f64]| square(&x, other).sqrt() < 0.1 * (n as f64).sqrt();
        let inside = x.iter().zip(bounds).all(|(v, (low, high))| {
            let margin = EDGE * (high - low);
            *v > low + margin && *v < high - margin
        });
        if inside && !distinct.iter().any(|(other, _)| near(other)) {
            distinct.push((x, value));
        }
    }
    let (first, others) = distinct.split_first()?;
    let needed = (ERRORS * error).max(MATTERS * deviation);
    for (x, value) in others.iter().take(MINIMA) {
        let rise = pass(free, &first.0, x, bounds) - value.max(first.1);
        if rise > needed {
            return Some(Second { x: x.clone(), rise });
        }
    }
    None
}

fn square(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| (a - b).powi(2)).sum()
}

/// Rows that are lower than those around them, the lowest first.
fn low_places(free: &Free, rows: &[f64], n: usize) -> Vec<Vec<f64>> {
    let values = free.values(rows);
    let row = |r: usize| &rows[r * n..(r + 1) * n];
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|a, b| values[*a].total_cmp(&values[*b]));
    let around = 2 * n + 1;
    let mut places = Vec::new();
    for r in order {
        let mut others: Vec<(f64, usize)> = (0..values.len())
            .filter(|other| *other != r)
            .map(|other| (square(row(r), row(other)), other))
            .collect();
        if others.len() > around {
            others.select_nth_unstable_by(around, |a, b| a.0.total_cmp(&b.0));
            others.truncate(around);
        }
        if others.iter().all(|(_, other)| values[*other] >= values[r]) {
            places.push(row(r).to_vec());
        }
        if places.len() == STARTS {
            break;
        }
    }
    places
}

/// The highest value on a path between two points that starts as a straight line and is relaxed
/// downhill across its own direction, its points kept at equal distances (the string method: E, Ren
/// and Vanden-Eijnden 2007). A valley that bends is followed.
fn pass(free: &Free, from: &[f64], to: &[f64], bounds: &[(f64, f64)]) -> f64 {
    let n = from.len();
    let between = |a: &[f64], b: &[f64], share: f64| -> Vec<f64> {
        a.iter().zip(b).map(|(a, b)| a + share * (b - a)).collect()
    };
    let mut path: Vec<Vec<f64>> = (0..POINTS)
        .map(|k| between(from, to, k as f64 / (POINTS - 1) as f64))
        .collect();
    let mut sizes = [0.25 * square(from, to).sqrt() / POINTS as f64; POINTS];
    let mut lowest = f64::INFINITY;
    for step in 0..=STEPS {
        if step % 10 == 0 {
            let fine: Vec<f64> = (path.windows(2))
                .flat_map(|ends| (0..BETWEEN).map(|k| between(&ends[0], &ends[1], k as f64 / BETWEEN as f64)))
                .flatten()
                .collect();
            let highest = free.values(&fine).into_iter().fold(f64::NEG_INFINITY, f64::max);
            lowest = lowest.min(highest);
        }
        for k in 1..POINTS - 1 {
            let tangent: Vec<f64> = path[k + 1].iter().zip(&path[k - 1]).map(|(a, b)| a - b).collect();
            let length = tangent.iter().map(|t| t * t).sum::<f64>().max(1e-300);
            let mut across = free.gradient(&path[k]);
            let along = across.iter().zip(&tangent).map(|(g, t)| g * t).sum::<f64>() / length;
            across.iter_mut().zip(&tangent).for_each(|(g, t)| *g -= along * t);
            let size = across.iter().map(|g| g * g).sum::<f64>().sqrt();
            if size < 1e-12 {
                continue;
            }
            let next: Vec<f64> = (0..n)
                .map(|j| (path[k][j] - sizes[k] / size * across[j]).clamp(bounds[j].0, bounds[j].1))
                .collect();
            let (old, new) = (free.values(&path[k])[0], free.values(&next)[0]);
            if new < old {
                path[k] = next;
                sizes[k] *= 1.3;
            } else {
                sizes[k] *= 0.5;
            }
        }
        path = evenly(&path);
    }
    lowest
}

/// Points at equal distances along a path.
fn evenly(path: &[Vec<f64>]) -> Vec<Vec<f64>> {
    let mut places = vec![0.0];
    for ends in path.windows(2) {
        places.push(places[places.len() - 1] + square(&ends[0], &ends[1]).sqrt());
    }
    let (last, total) = (path.len() - 1, places[path.len() - 1]);
    let mut segment = 0;
    (0..=last)
        .map(|k| {
            if k == last {
                return path[last].clone();
            }
            let place = total * k as f64 / last as f64;
            while segment + 2 < path.len() && places[segment + 1] <= place {
                segment += 1;
            }
            let length = (places[segment + 1] - places[segment]).max(1e-300);
            let share = ((place - places[segment]) / length).clamp(0.0, 1.0);
            (path[segment].iter().zip(&path[segment + 1]))
                .map(|(a, b)| a + share * (b - a))
                .collect()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use bilip::Rng;

    fn free_model(n: usize, f: impl Fn(&[f64]) -> f64) -> (Free, Vec<f64>) {
        let mut rng = Rng::new(11);
        let x: Vec<f64> = (0..n * 1_000).map(|_| 3.4 * rng.uniform() - 1.7).collect();
        let y: Vec<f64> = x.chunks_exact(n).map(f).collect();
        let (seen, other) = x.split_at(800 * n);
        (Free::fit((seen, &y[..800]), (other, &y[800..]), n), x)
    }

    #[test]
    fn two_wells_are_told_from_one_and_from_a_bent_valley() {
        let bounds = [(-1.7, 1.7); 2];
        let found = |f: fn(&[f64]) -> f64| {
            let (free, x) = free_model(2, f);
            second_minimum(&free, &x, &bounds, 0.01, 1.0)
        };
        // Wells at ±1 on the first axis, a pass of 1 between them.
        let wells = found(|x| (x[0] * x[0] - 1.0).powi(2) + x[1] * x[1] + 0.2 * x[0]);
        let wells = wells.expect("a second minimum");
        assert!(
            (wells.x[0] - 1.0).abs() < 0.2 && wells.x[1].abs() < 0.2,
            "{wells:?}"
        );
        assert!((0.7..1.0).contains(&wells.rise), "{wells:?}");
        assert!(found(|x| x[0] * x[0] + 3.0 * x[1] * x[1]).is_none());
        // A valley around half a circle: straight lines between its ends cross a hill.
        let valley = found(|x| {
            let (r, angle) = (x[0].hypot(x[1]), x[1].atan2(x[0]));
            4.0 * (r - 1.2).powi(2) + 0.05 * angle
        });
        assert!(valley.is_none(), "{valley:?}");
    }
}
