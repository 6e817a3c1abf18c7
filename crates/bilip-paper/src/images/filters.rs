//! What corrupts pictures: filters, distortions and clouds, on planes of [`SIDE`]² values.

use std::ops::Range;

use bilip::Rng;

use super::{PIXELS, SIDE};
use crate::error::{Error, Result};

const AREA: usize = SIDE * SIDE;

/// What is beyond the border of a picture.
#[derive(Clone, Copy, Debug)]
pub(super) enum Border {
    /// The outermost pixel, again and again.
    Edge,
    /// The picture mirrored at its outermost pixels.
    Mirror,
    /// The picture mirrored at their outer sides.
    Reflect,
}

impl Border {
    fn place(self, at: isize) -> usize {
        let side = SIDE as isize;
        let folded = |at: isize, period: isize, turn: isize| match at.rem_euclid(period) {
            at if at < side => at,
            at => turn - at,
        };
        (match self {
            Border::Edge => at.clamp(0, side - 1),
            Border::Mirror => folded(at, 2 * side - 2, 2 * side - 2),
            Border::Reflect => folded(at, 2 * side, 2 * side - 1),
        }) as usize
    }
}

/// Every plane with a Gaussian filter, cut off at a number of deviations.
pub(super) fn blurred(x: &[f64], deviation: f64, cut: f64, border: Border) -> Vec<f64> {
    let radius = (cut * deviation + 0.5) as isize;
    if radius == 0 {
        return x.to_vec();
    }
    let mut weights: Vec<f64> = (-radius..=radius)
        .map(|d| (-0.5 * (d as f64 / deviation).powi(2)).exp())
        .collect();
    let sum: f64 = weights.iter().sum();
    weights.iter_mut().for_each(|w| *w /= sum);
    let along = |x: &[f64], columns: bool| -> Vec<f64> {
        (0..x.len())
            .map(|k| {
                let (plane, p, q) = (k / AREA, k / SIDE % SIDE, k % SIDE);
                (-radius..=radius)
                    .zip(&weights)
                    .map(|(d, w)| {
                        let moved = |v: usize| border.place(v as isize + d);
                        let (p, q) = if columns { (p, moved(q)) } else { (moved(p), q) };
                        w * x[plane * AREA + p * SIDE + q]
                    })
                    .sum()
            })
            .collect()
    };
    along(&along(x, false), true)
}

/// A filter by its entries that are not zero: where they are taken from, downwards and to the
/// right, and their weights.
pub(super) type Taps = Vec<((isize, isize), f64)>;

pub(super) fn filtered(x: &[f64], taps: &Taps, border: Border) -> Vec<f64> {
    (0..x.len())
        .map(|k| {
            let (plane, p, q) = (k / AREA, (k / SIDE % SIDE) as isize, (k % SIDE) as isize);
            taps.iter()
                .map(|((dp, dq), w)| w * x[plane * AREA + border.place(p + dp) * SIDE + border.place(q + dq)])
                .sum()
        })
        .collect()
}

/// A disk of the given radius, its edge softened.
pub(super) fn disk(radius: f64, alias: f64) -> Taps {
    const REACH: isize = 8;
    let inside = |p: isize, q: isize| {
        p.abs() <= REACH && q.abs() <= REACH && ((p * p + q * q) as f64) <= radius * radius
    };
    let places = || (-REACH..=REACH).flat_map(|p| (-REACH..=REACH).map(move |q| (p, q)));
    let count = places().filter(|(p, q)| inside(*p, *q)).count() as f64;
    // A Gaussian of three by three.
    let mut weights = [-1.0f64, 0.0, 1.0].map(|d| (-0.5 * (d / alias).powi(2)).exp());
    let total: f64 = weights.iter().sum();
    weights.iter_mut().for_each(|w| *w /= total);
    places()
        .map(|(p, q)| {
            let mut value = 0.0;
            for (dp, a) in (-1..=1).zip(weights) {
                for (dq, b) in (-1..=1).zip(weights) {
                    value += if inside(p + dp, q + dq) {
                        a * b / count
                    } else {
                        0.0
                    };
                }
            }
            ((p, q), value)
        })
        .filter(|(_, value)| *value > 1e-12)
        .collect()
}

/// Half a Gaussian along a line: what moves while the shutter is open. The angle is in degrees; the
/// filter that ImageMagick has.
pub(super) fn motion(radius: f64, deviation: f64, angle: f64) -> Taps {
    let width = 2 * radius.ceil() as usize + 1;
    let weight = |k: usize| (-0.5 * (k as f64 / deviation).powi(2)).exp();
    let sum: f64 = (0..width).map(weight).sum();
    let (sine, cosine) = angle.to_radians().sin_cos();
    let step = |k: usize, by: f64| (k as f64 * by - 0.5).ceil() as isize;
    (0..width)
        .map(|k| ((step(k, sine), step(k, cosine)), weight(k) / sum))
        .collect()
}

/// The middle of every plane enlarged to the whole, linear between pixels: for every row and
/// column, the pixel before its place and the share of the next.
pub(super) fn zoom(factor: f64) -> Vec<(usize, f64)> {
    let kept = (SIDE as f64 / factor).ceil() as usize;
    let first = (SIDE - kept) / 2;
    let enlarged = (kept as f64 * factor).round_ties_even() as usize;
    let trimmed = (enlarged - SIDE) / 2;
    (0..SIDE)
        .map(|k| {
            let at = (k + trimmed) as f64 * (kept - 1) as f64 / (enlarged - 1) as f64;
            let low = (at as usize).min(kept - 2);
            (first + low, at - low as f64)
        })
        .collect()
}

pub(super) fn zoomed(x: &[f64], zoom: &[(usize, f64)]) -> Vec<f64> {
    (x.chunks_exact(AREA))
        .flat_map(|plane| {
            zoom.iter().flat_map(move |(p, a)| {
                let row = move |q: usize| plane[p * SIDE + q] * (1.0 - a) + plane[(p + 1) * SIDE + q] * a;
                zoom.iter()
                    .map(move |(q, b)| row(*q) * (1.0 - b) + row(q + 1) * b)
            })
        })
        .collect()
}

/// Every plane with its pixels taken from elsewhere, linear between pixels.
pub(super) fn warped(x: &[f64], from: impl Fn(usize, usize) -> (f64, f64), border: Border) -> Vec<f64> {
    (0..x.len())
        .map(|k| {
            let plane = &x[k / AREA * AREA..][..AREA];
            let (p, q) = from(k / SIDE % SIDE, k % SIDE);
            let at = |p: isize, q: isize| plane[border.place(p) * SIDE + border.place(q)];
            let (a, b) = (p - p.floor(), q - q.floor());
            let (p, q) = (p.floor() as isize, q.floor() as isize);
            let row = |p: isize| at(p, q) * (1.0 - b) + at(p, q + 1) * b;
            row(p) * (1.0 - a) + row(p + 1) * a
        })
        .collect()
}

/// The affine map of the plane that takes three points to three others, `[x, y]` each: two rows of
/// `a·x + b·y + c`.
pub(super) fn affine(from: [[f64; 2]; 3], to: [[f64; 2]; 3]) -> [[f64; 3]; 2] {
    let [u, v] = [1, 2].map(|k| [from[k][0] - from[0][0], from[k][1] - from[0][1]]);
    let determinant = u[0] * v[1] - u[1] * v[0];
    [0, 1].map(|i| {
        let (du, dv) = (to[1][i] - to[0][i], to[2][i] - to[0][i]);
        let a = (du * v[1] - dv * u[1]) / determinant;
        let b = (dv * u[0] - du * v[0]) / determinant;
        [a, b, to[0][i] - a * from[0][0] - b * from[0][1]]
    })
}

/// A picture moved by a random affine map and stretched like rubber: the largest shift of the
/// corners, and deviation and size of the smooth shifts.
pub(super) fn rubber(x: &[f64], corners: f64, deviation: f64, size: f64, rng: &mut Rng) -> Vec<f64> {
    let mut shift = |by: f64| by * (2.0 * rng.uniform() - 1.0);
    let (low, high) = ((SIDE / 2 - SIDE / 3) as f64, (SIDE / 2 + SIDE / 3) as f64);
    let before = [[high, high], [high, low], [low, low]];
    let after = before.map(|point| point.map(|v| v + shift(corners)));
    // Pixels are taken from where the map would bring them here.
    let [across, down] = affine(after, before);
    let mut field = || {
        let raw: Vec<f64> = (0..AREA).map(|_| shift(1.0)).collect();
        blurred(&raw, deviation, 3.0, Border::Reflect)
    };
    let (dq, dp) = (field(), field());
    let moved = warped(
        x,
        |p, q| {
            let at = |[a, b, c]: [f64; 3]| a * q as f64 + b * p as f64 + c;
            (at(down), at(across))
        },
        Border::Mirror,
    );
    let by = |field: &[f64], p: usize, q: usize| size * field[p * SIDE + q];
    warped(
        &moved,
        |p, q| (p as f64 + by(&dp, p, q), q as f64 + by(&dq, p, q)),
        Border::Reflect,
    )
}

/// Every pixel but those of the border replaced by itself or a neighbor above or to the left, at
/// random, one after the other.
pub(super) fn shuffled(x: &mut [f64], rng: &mut Rng) {
    for p in (2..SIDE).rev() {
        for q in (2..SIDE).rev() {
            let mut back = |v: usize| if rng.uniform() < 0.5 { v - 1 } else { v };
            let (from_q, from_p) = (back(q), back(p));
            for plane in 0..x.len() / AREA {
                x[plane * AREA + p * SIDE + q] = x[plane * AREA + from_p * SIDE + from_q];
            }
        }
    }
}

/// A cloud between 0 and 1: the diamond-square fractal on a torus, its steps shrinking by the
/// square of the decay.
pub(super) fn plasma(decay: f64, rng: &mut Rng) -> Vec<f64> {
    let mut map = vec![0.0f64; AREA];
    let place = |p: usize, q: usize| (p % SIDE) * SIDE + q % SIDE;
    let mut step = SIDE;
    let mut wobble = 1.0;
    while step >= 2 {
        let half = step / 2;
        let mut shaken = |sum: f64| sum / 4.0 + wobble * (2.0 * rng.uniform() - 1.0);
        for p in (0..SIDE).step_by(step) {
            for q in (0..SIDE).step_by(step) {
                let corners = map[place(p, q)]
                    + map[place(p + step, q)]
                    + map[place(p, q + step)]
                    + map[place(p + step, q + step)];
                map[place(p + half, q + half)] = shaken(corners);
            }
        }
        for p in (0..SIDE).step_by(step) {
            for q in (0..SIDE).step_by(step) {
                let middle = map[place(p + half, q + half)];
                let (left, above) = (
                    map[place(p + half, q + SIDE - half)],
                    map[place(p + SIDE - half, q + half)],
                );
                let here = map[place(p, q)];
                map[place(p + half, q)] = shaken(here + map[place(p + step, q)] + middle + left);
                map[place(p, q + half)] = shaken(here + map[place(p, q + step)] + middle + above);
            }
        }
        step = half;
        wobble /= decay * decay;
    }
    let (low, high) = map.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), v| {
        (a.min(*v), b.max(*v))
    });
    map.iter().map(|v| (v - low) / (high - low).max(1e-300)).collect()
}

/// Every pixel's three colors changed at once.
pub(super) fn recolored(x: &[f64], f: impl Fn([f64; 3]) -> [f64; 3]) -> Vec<f64> {
    let mut out = x.to_vec();
    for k in 0..AREA {
        for (c, v) in f([x[k], x[AREA + k], x[2 * AREA + k]]).into_iter().enumerate() {
            out[c * AREA + k] = v;
        }
    }
    out
}

/// The largest of the three colors raised, hue and saturation kept.
pub(super) fn brightened(color: [f64; 3], by: f64) -> [f64; 3] {
    let value = color.into_iter().fold(0.0, f64::max);
    let raised = (value + by).clamp(0.0, 1.0);
    // Black has no color to keep.
    color.map(|v| if value > 0.0 { v * raised / value } else { raised })
}

/// Saturation times a factor plus a term, hue and the largest of the three colors kept.
pub(super) fn saturated(color: [f64; 3], factor: f64, term: f64) -> [f64; 3] {
    let value = color.into_iter().fold(0.0, f64::max);
    let least = color.into_iter().fold(f64::INFINITY, f64::min);
    if value <= least {
        // Gray has no hue; red is the first of them.
        return [1.0, 1.0 - term, 1.0 - term].map(|v| v * value);
    }
    let saturation = (value - least) / value;
    let changed = (saturation * factor + term).clamp(0.0, 1.0);
    color.map(|v| value - (value - v) * changed / saturation)
}

/// A picture after compression, its colors at half the resolution, as is usual.
pub(super) fn compressed(image: &[u8], quality: u8) -> Result<Vec<u8>> {
    let fail = |e: &dyn std::fmt::Display| Error::config("jpeg", e.to_string());
    let interleaved: Vec<u8> = (0..AREA)
        .flat_map(|k| [image[k], image[AREA + k], image[2 * AREA + k]])
        .collect();
    let mut bytes = Vec::new();
    let mut encoder = jpeg_encoder::Encoder::new(&mut bytes, quality);
    encoder.set_sampling_factor(jpeg_encoder::SamplingFactor::R_4_2_0);
    encoder.set_chroma_subsampling_method(jpeg_encoder::ChromaSubsamplingMethod::Average);
    let side = SIDE as u16;
    encoder
        .encode(&interleaved, side, side, jpeg_encoder::ColorType::Rgb)
        .map_err(|e| fail(&e))?;
    let raw = zune_jpeg::JpegDecoder::new(std::io::Cursor::new(&bytes))
        .decode()
        .map_err(|e| fail(&e))?;
    Ok((0..PIXELS).map(|k| raw[k % AREA * 3 + k / AREA]).collect())
}

/// Planes of another side. A pixel is the mean of the old ones whose centers are in it, as pictures
/// are resized by their box filter; enlarged, it is the nearest one.
pub(super) fn resized(x: &[u8], from: usize, to: usize) -> Vec<u8> {
    let scale = from as f64 / to as f64;
    let half = 0.5 * scale.max(1.0);
    let covered: Vec<Range<usize>> = (0..to)
        .map(|k| {
            let center = (k as f64 + 0.5) * scale;
            (center - half + 0.5) as usize..((center + half + 0.5) as usize).min(from)
        })
        .collect();
    // Along the rows, then along the columns, with whole numbers in between.
    let mean = |of: &mut dyn Iterator<Item = u8>, count: usize| {
        let sum: f64 = of.map(f64::from).sum();
        (sum / count as f64 + 0.5) as u8
    };
    let mut out = Vec::with_capacity(x.len() / (from * from) * to * to);
    for plane in x.chunks_exact(from * from) {
        let rows: Vec<u8> = plane
            .chunks_exact(from)
            .flat_map(|row| {
                let over = |range: &Range<usize>| mean(&mut row[range.clone()].iter().copied(), range.len());
                covered.iter().map(over).collect::<Vec<u8>>()
            })
            .collect();
        for range in &covered {
            out.extend((0..to).map(|q| mean(&mut range.clone().map(|p| rows[p * to + q]), range.len())));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn picture() -> Vec<f64> {
        Rng::new(4).normals(3 * AREA)
    }

    fn near(a: &[f64], b: &[f64]) -> bool {
        a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-9)
    }

    #[test]
    fn filters_keep_a_gray_picture() {
        let gray = vec![0.5; PIXELS];
        let mut rng = Rng::new(1);
        for y in [
            blurred(&gray, 1.0, 4.0, Border::Edge),
            filtered(&gray, &disk(1.5, 0.1), Border::Mirror),
            filtered(&gray, &motion(9.0, 2.5, 30.0), Border::Edge),
            zoomed(&gray, &zoom(1.25)),
            rubber(&gray, 2.0, 2.0, 3.0, &mut rng),
        ] {
            assert!(y.iter().all(|v| (v - 0.5).abs() < 1e-9));
        }
    }

    #[test]
    fn pictures_are_resized_as_by_the_box_filter_of_others() {
        // Sums of what Pillow 13 makes of this, down to a side and up again.
        let plane: Vec<u8> = (0..AREA)
            .map(|k| ((k * k * 7 + 13 * k) / 5 % 256) as u8)
            .collect();
        for (side, start, sum) in [
            (30, [0, 4, 10, 20, 32, 48, 66, 98], 68_080_825),
            (28, [0, 4, 10, 26, 26, 48, 66, 86], 68_086_274),
            (27, [0, 4, 15, 15, 32, 48, 66, 86], 68_087_092),
            (24, [0, 7, 7, 20, 32, 57, 57, 86], 68_111_785),
            (20, [79, 79, 90, 46, 46, 134, 102, 102], 68_174_796),
        ] {
            let y = resized(&resized(&plane, SIDE, side), side, SIDE);
            assert_eq!(y[..8], start, "{side}");
            let found: usize = y.iter().enumerate().map(|(k, v)| (k + 1) * usize::from(*v)).sum();
            assert_eq!(found, sum, "{side}");
        }
    }

    #[test]
    fn borders_continue_a_picture_as_they_say() {
        let at = |border: Border| [-2, -1, 0, 31, 32, 33].map(|k| border.place(k));
        assert_eq!(at(Border::Edge), [0, 0, 0, 31, 31, 31]);
        assert_eq!(at(Border::Mirror), [2, 1, 0, 31, 30, 29]);
        assert_eq!(at(Border::Reflect), [1, 0, 0, 31, 31, 30]);
    }

    #[test]
    fn distortions_move_pixels_where_they_should() {
        let x = picture();
        assert!(near(&zoomed(&x, &zoom(1.0)), &x));
        // Twice as large: the corners are those of the middle.
        let twice = zoom(2.0);
        assert_eq!((twice[0], twice[31].0), ((8, 0.0), 22));
        let to_the_right = warped(&x, |p, q| (p as f64, q as f64 - 1.0), Border::Edge);
        assert_eq!(to_the_right[5 * SIDE + 7], x[5 * SIDE + 6]);
        assert_eq!(to_the_right[5 * SIDE], x[5 * SIDE]);
        assert!(near(&rubber(&x, 0.0, 1.0, 0.0, &mut Rng::new(1)), &x));
        // A quarter turn with a shift.
        let (from, to) = (
            [[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]],
            [[3.0, 4.0], [3.0, 5.0], [2.0, 4.0]],
        );
        assert_eq!(affine(from, to), [[0.0, -1.0, 3.0], [1.0, 0.0, 4.0]]);
        // To the right, and downwards.
        assert!((motion(6.0, 1.0, 0.0).iter().zip(0..)).all(|((at, _), k)| *at == (0, k)));
        assert!((motion(6.0, 1.0, 90.0).iter().zip(0..)).all(|((at, _), k)| *at == (k, 0)));
        let mut mixed = x.clone();
        shuffled(&mut mixed, &mut Rng::new(2));
        assert_eq!(mixed[..2 * SIDE], x[..2 * SIDE]);
        assert!(mixed.iter().all(|v| x.contains(v)) && mixed != x);
    }

    #[test]
    fn clouds_are_smoother_with_more_decay() {
        let roughness = |decay: f64| -> f64 {
            (0..20)
                .map(|seed| {
                    let cloud = plasma(decay, &mut Rng::new(seed));
                    assert!(cloud.iter().all(|v| (0.0..=1.0).contains(v)));
                    (1..AREA).map(|k| (cloud[k] - cloud[k - 1]).abs()).sum::<f64>() / AREA as f64
                })
                .sum::<f64>()
                / 20.0
        };
        let (rough, smooth) = (roughness(1.2), roughness(3.0));
        assert!(smooth < 0.6 * rough, "{smooth} {rough}");
    }

    #[test]
    fn colors_keep_what_they_should() {
        let color = [0.6, 0.3, 0.45];
        assert!(near(&saturated(color, 1.0, 0.0), &color));
        // Half the saturation, the same value and order.
        assert!(near(&saturated(color, 0.5, 0.0), &[0.6, 0.45, 0.525]));
        assert!(near(&saturated([0.4; 3], 2.0, 0.1), &[0.4, 0.36, 0.36]));
        assert!(near(&saturated([0.0; 3], 2.0, 0.1), &[0.0; 3]));
        assert!(near(&brightened(color, 0.3), &[0.9, 0.45, 0.675]));
        assert!(near(&brightened([0.0; 3], 0.3), &[0.3; 3]));
    }
}
