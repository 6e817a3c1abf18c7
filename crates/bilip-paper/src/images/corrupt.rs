//! Pictures spoilt in known ways and degrees, after CIFAR-10-C (Hendrycks and Dietterich 2019): the same kinds and constants, random numbers of our own. Figures are
//! comparable in spirit; they are not those of the published files.

use bilip::Rng;

use super::{PIXELS, SIDE};

/// Degrees of every corruption, 1 to 5.
pub const SEVERITIES: usize = 5;

/// What can happen to a picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Corruption {
    /// Normal noise.
    GaussianNoise,
    /// Poisson noise: few photons.
    ShotNoise,
    /// Single values turned black or white.
    ImpulseNoise,
    /// Noise in proportion to the value.
    SpeckleNoise,
    /// A Gaussian filter.
    GaussianBlur,
    /// A disk instead of a point.
    DefocusBlur,
    /// Light from a random cloud.
    Fog,
    /// Values pulled to their mean.
    Contrast,
    /// Values raised.
    Brightness,
    /// Compression with loss.
    Jpeg,
    /// Fewer pixels.
    Pixelate,
}

impl Corruption {
    /// All of them.
    pub const ALL: [Corruption; 11] = [
        Corruption::GaussianNoise,
        Corruption::ShotNoise,
        Corruption::ImpulseNoise,
        Corruption::SpeckleNoise,
        Corruption::GaussianBlur,
        Corruption::DefocusBlur,
        Corruption::Fog,
        Corruption::Contrast,
        Corruption::Brightness,
        Corruption::Jpeg,
        Corruption::Pixelate,
    ];

    /// Its name, as in CIFAR-10-C.
    pub fn name(self) -> &'static str {
        match self {
            Corruption::GaussianNoise => "gaussian_noise",
            Corruption::ShotNoise => "shot_noise",
            Corruption::ImpulseNoise => "impulse_noise",
            Corruption::SpeckleNoise => "speckle_noise",
            Corruption::GaussianBlur => "gaussian_blur",
            Corruption::DefocusBlur => "defocus_blur",
            Corruption::Fog => "fog",
            Corruption::Contrast => "contrast",
            Corruption::Brightness => "brightness",
            Corruption::Jpeg => "jpeg_compression",
            Corruption::Pixelate => "pixelate",
        }
    }

    /// What does not depend on the picture, for a severity from 1 to 5 (others are taken to the nearest).
    pub(crate) fn prepare(self, severity: usize) -> Spoil {
        let at = severity.clamp(1, SEVERITIES) - 1;
        match self {
            Corruption::GaussianNoise => Spoil::Noise([0.04, 0.06, 0.08, 0.09, 0.10][at], false),
            Corruption::SpeckleNoise => Spoil::Noise([0.06, 0.1, 0.12, 0.16, 0.2][at], true),
            Corruption::ShotNoise => {
                let photons = [500.0, 250.0, 100.0, 75.0, 50.0][at];
                // A picture has 256 values, so 256 distributions are all there are.
                let tables = (0..256)
                    .map(|v| poisson(photons * f64::from(v) / 255.0))
                    .collect();
                Spoil::Shot(photons, tables)
            }
            Corruption::ImpulseNoise => Spoil::Impulse([0.01, 0.02, 0.03, 0.05, 0.07][at]),
            Corruption::GaussianBlur => Spoil::Blur([0.4, 0.6, 0.7, 0.8, 1.0][at]),
            Corruption::DefocusBlur => {
                let (radius, alias) = [(0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1.0, 0.2), (1.5, 0.1)][at];
                Spoil::Disk(disk(radius, alias))
            }
            Corruption::Fog => {
                let (strength, decay) = [(0.2, 3.0), (0.5, 3.0), (0.75, 2.5), (1.0, 2.0), (1.5, 1.75)][at];
                Spoil::Fog(strength, decay)
            }
            Corruption::Contrast => Spoil::Contrast([0.75, 0.5, 0.4, 0.3, 0.15][at]),
            Corruption::Brightness => Spoil::Brightness([0.05, 0.1, 0.15, 0.2, 0.3][at]),
            Corruption::Jpeg => Spoil::Jpeg([80, 65, 58, 50, 40][at]),
            Corruption::Pixelate => {
                Spoil::Pixelate((SIDE as f64 * [0.95, 0.9, 0.85, 0.75, 0.65][at]) as usize)
            }
        }
    }
}

/// A corruption of known severity.
pub(crate) enum Spoil {
    /// Its deviation, and whether it is in proportion to the value.
    Noise(f64, bool),
    /// Photons of a white pixel, and for every value the distribution of their number.
    Shot(f64, Vec<Vec<f64>>),
    Impulse(f64),
    Blur(f64),
    Disk(Vec<((isize, isize), f64)>),
    Fog(f64, f64),
    Contrast(f64),
    Brightness(f64),
    Jpeg(u8),
    /// The side it is reduced to.
    Pixelate(usize),
}

impl Spoil {
    /// The picture, `[3, 32, 32]`, spoilt.
    pub(crate) fn apply(&self, image: &[u8], seed: u64) -> Vec<u8> {
        let mut rng = Rng::new(seed);
        let x: Vec<f64> = image.iter().map(|v| f64::from(*v) / 255.0).collect();
        let y = match self {
            Spoil::Noise(deviation, proportional) => x
                .iter()
                .map(|v| v + deviation * rng.normal() * if *proportional { *v } else { 1.0 })
                .collect(),
            Spoil::Shot(photons, tables) => image
                .iter()
                .map(|v| {
                    let table = &tables[usize::from(*v)];
                    let u = rng.uniform();
                    table.partition_point(|p| *p <= u) as f64 / photons
                })
                .collect(),
            Spoil::Impulse(share) => x
                .iter()
                .map(|v| match rng.uniform() {
                    u if u < 0.5 * share => 0.0,
                    u if u < *share => 1.0,
                    _ => *v,
                })
                .collect(),
            Spoil::Blur(deviation) => blurred(&x, *deviation),
            Spoil::Disk(kernel) => filtered(&x, kernel),
            Spoil::Fog(strength, decay) => {
                let cloud = plasma(*decay, &mut rng);
                let largest = x.iter().copied().fold(0.0, f64::max);
                let scale = largest / (largest + strength);
                (x.iter().enumerate())
                    .map(|(k, v)| (v + strength * cloud[k % (SIDE * SIDE)]) * scale)
                    .collect()
            }
            Spoil::Contrast(factor) => x
                .chunks_exact(SIDE * SIDE)
                .flat_map(|plane| {
                    let mean = plane.iter().sum::<f64>() / plane.len() as f64;
                    plane.iter().map(move |v| (v - mean) * factor + mean)
                })
                .collect(),
            Spoil::Brightness(by) => brightened(&x, *by),
            Spoil::Jpeg(quality) => return compressed(image, *quality),
            Spoil::Pixelate(side) => resized(&resized(&x, SIDE, *side), *side, SIDE),
        };
        // Cut off, as the published pictures are.
        y.iter()
            .map(|v: &f64| (v.clamp(0.0, 1.0) * 255.0) as u8)
            .collect()
    }
}

/// Probabilities of at most 0, 1, 2, … events.
fn poisson(mean: f64) -> Vec<f64> {
    let mut table = Vec::new();
    let mut p = (-mean).exp();
    let mut sum = p;
    let mut k = 0.0;
    while sum < 1.0 - 1e-15 && k < 10.0 * mean + 50.0 {
        table.push(sum);
        k += 1.0;
        p *= mean / k;
        sum += p;
    }
    table
}

/// An index beyond the border, mirrored at the outermost pixel.
fn mirrored(at: isize) -> usize {
    let last = SIDE as isize - 1;
    let at = at.rem_euclid(2 * last);
    (if at > last { 2 * last - at } else { at }) as usize
}

/// Every plane with a Gaussian filter, its border continued.
fn blurred(x: &[f64], deviation: f64) -> Vec<f64> {
    let radius = (4.0 * deviation + 0.5) as isize;
    let mut weights: Vec<f64> = (-radius..=radius)
        .map(|d| (-0.5 * (d as f64 / deviation).powi(2)).exp())
        .collect();
    let sum: f64 = weights.iter().sum();
    weights.iter_mut().for_each(|w| *w /= sum);
    let last = SIDE as isize - 1;
    let along = |x: &[f64], columns: bool| -> Vec<f64> {
        (0..x.len())
            .map(|k| {
                let (plane, p, q) = (k / (SIDE * SIDE), k / SIDE % SIDE, k % SIDE);
                (-radius..=radius)
                    .zip(&weights)
                    .map(|(d, w)| {
                        let moved = |v: usize| (v as isize + d).clamp(0, last) as usize;
                        let (p, q) = if columns { (p, moved(q)) } else { (moved(p), q) };
                        w * x[(plane * SIDE + p) * SIDE + q]
                    })
                    .sum()
            })
            .collect()
    };
    along(&along(x, false), true)
}

/// A disk of the given radius, its edge softened, by its entries that are not zero.
fn disk(radius: f64, alias: f64) -> Vec<((isize, isize), f64)> {
    const REACH: isize = 8;
    let side = 2 * REACH + 1;
    let inside = |p: isize, q: isize| ((p * p + q * q) as f64) <= radius * radius;
    let mut plain = vec![0.0; (side * side) as usize];
    for p in -REACH..=REACH {
        for q in -REACH..=REACH {
            if inside(p, q) {
                plain[((p + REACH) * side + q + REACH) as usize] = 1.0;
            }
        }
    }
    let sum: f64 = plain.iter().sum();
    // A Gaussian of three by three.
    let mut weights = [-1.0f64, 0.0, 1.0].map(|d| (-0.5 * (d / alias).powi(2)).exp());
    let total: f64 = weights.iter().sum();
    weights.iter_mut().for_each(|w| *w /= total);
    let mut out = Vec::new();
    for p in -REACH..=REACH {
        for q in -REACH..=REACH {
            let mut value = 0.0;
            for (dp, a) in (-1..=1).zip(weights) {
                for (dq, b) in (-1..=1).zip(weights) {
                    let (p, q) = (p + dp, q + dq);
                    if p.abs() <= REACH && q.abs() <= REACH {
                        value += a * b * plain[((p + REACH) * side + q + REACH) as usize] / sum;
                    }
                }
            }
            if value > 1e-12 {
                out.push(((p, q), value));
            }
        }
    }
    out
}

fn filtered(x: &[f64], kernel: &[((isize, isize), f64)]) -> Vec<f64> {
    (0..x.len())
        .map(|k| {
            let (plane, p, q) = (k / (SIDE * SIDE), (k / SIDE % SIDE) as isize, (k % SIDE) as isize);
            kernel
                .iter()
                .map(|((dp, dq), w)| w * x[(plane * SIDE + mirrored(p + dp)) * SIDE + mirrored(q + dq)])
                .sum()
        })
        .collect()
}

/// A cloud between 0 and 1: the diamond-square fractal on a torus, its steps shrinking by the decay.
fn plasma(decay: f64, rng: &mut Rng) -> Vec<f64> {
    let mut map = vec![0.0f64; SIDE * SIDE];
    let place = |p: usize, q: usize| (p % SIDE) * SIDE + q % SIDE;
    let mut step = SIDE;
    let mut wobble = 100.0;
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
        wobble /= decay;
    }
    let (low, high) = map.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), v| {
        (a.min(*v), b.max(*v))
    });
    map.iter().map(|v| (v - low) / (high - low).max(1e-300)).collect()
}

/// The largest of the three colours raised, hue and saturation kept.
fn brightened(x: &[f64], by: f64) -> Vec<f64> {
    let pixels = SIDE * SIDE;
    let mut out = x.to_vec();
    for k in 0..pixels {
        let color = [x[k], x[pixels + k], x[2 * pixels + k]];
        let value = color.iter().copied().fold(0.0, f64::max);
        let raised = (value + by).clamp(0.0, 1.0);
        for (c, v) in color.iter().enumerate() {
            // Black has no colour to keep.
            out[c * pixels + k] = if value > 0.0 { v * raised / value } else { raised };
        }
    }
    out
}

fn compressed(image: &[u8], quality: u8) -> Vec<u8> {
    let pixels = SIDE * SIDE;
    let interleaved: Vec<u8> = (0..pixels)
        .flat_map(|k| [image[k], image[pixels + k], image[2 * pixels + k]])
        .collect();
    let mut bytes = Vec::new();
    let encoder = image::codecs::jpeg::JpegEncoder::new_with_quality(&mut bytes, quality);
    let side = SIDE as u32;
    let decoded =
        image::ImageEncoder::write_image(encoder, &interleaved, side, side, image::ExtendedColorType::Rgb8)
            .and_then(|()| image::load_from_memory_with_format(&bytes, image::ImageFormat::Jpeg));
    match decoded {
        Ok(decoded) => {
            let raw = decoded.into_rgb8().into_raw();
            (0..PIXELS).map(|k| raw[k % pixels * 3 + k / pixels]).collect()
        }
        // An encoder in memory has nothing to fail at.
        Err(_) => image.to_vec(),
    }
}

/// Planes of another side, each pixel the mean of what it covers.
fn resized(x: &[f64], from: usize, to: usize) -> Vec<f64> {
    let scale = from as f64 / to as f64;
    // Shares of the old pixels in a new one.
    let shares: Vec<Vec<(usize, f64)>> = (0..to)
        .map(|k| {
            let (low, high) = (k as f64 * scale, (k + 1) as f64 * scale);
            (low as usize..(high.ceil() as usize).min(from))
                .map(|i| (i, (high.min((i + 1) as f64) - low.max(i as f64)).max(0.0) / scale))
                .collect()
        })
        .collect();
    let planes = x.len() / (from * from);
    let mut out = Vec::with_capacity(planes * to * to);
    for plane in x.chunks_exact(from * from) {
        for rows in &shares {
            for columns in &shares {
                let mut value = 0.0;
                for (p, a) in rows {
                    for (q, b) in columns {
                        value += a * b * plane[p * from + q];
                    }
                }
                out.push(value);
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::images::Images;

    fn picture() -> Vec<u8> {
        // A slope, an edge, and something like grass.
        (0..PIXELS)
            .map(|k| {
                let (c, p, q) = (k / 1024, k / 32 % 32, k % 32);
                let grass = 25.0 * ((12.9898 * p as f64 + 78.233 * q as f64).sin() * 43_758.545).fract();
                let v = 60.0 + 3.0 * p as f64 + 15.0 * c as f64 + if q > 15 { 45.0 } else { 0.0 } + grass;
                v.clamp(0.0, 255.0) as u8
            })
            .collect()
    }

    fn distance(a: &[u8], b: &[u8]) -> f64 {
        let square: f64 = a
            .iter()
            .zip(b)
            .map(|(a, b)| (f64::from(*a) - f64::from(*b)).powi(2))
            .sum();
        (square / a.len() as f64).sqrt()
    }

    #[test]
    fn every_corruption_grows_with_its_severity_and_is_reproducible() {
        let image = picture();
        for corruption in Corruption::ALL {
            let far: Vec<f64> = (1..=SEVERITIES)
                .map(|severity| {
                    let spoil = corruption.prepare(severity);
                    // Several seeds, so that chance does not decide.
                    (0..20)
                        .map(|seed| distance(&image, &spoil.apply(&image, seed)))
                        .sum::<f64>()
                        / 20.0
                })
                .collect();
            assert!(far[0] > 0.2 && far[4] > far[0], "{}: {far:?}", corruption.name());
            let rising = far.windows(2).filter(|w| w[1] >= w[0] - 0.35).count();
            assert_eq!(rising, 4, "{}: {far:?}", corruption.name());
            let again = |seed| corruption.prepare(3).apply(&image, seed);
            assert_eq!(again(5), again(5));
        }
    }

    #[test]
    fn noise_has_the_moments_it_should() {
        let gray = vec![128u8; PIXELS];
        let spread = |spoilt: &[u8]| {
            let mean = spoilt.iter().map(|v| f64::from(*v)).sum::<f64>() / spoilt.len() as f64;
            let square = spoilt.iter().map(|v| (f64::from(*v) - mean).powi(2)).sum::<f64>();
            (mean, (square / spoilt.len() as f64).sqrt())
        };
        let many = |corruption: Corruption| -> Vec<u8> {
            let spoil = corruption.prepare(1);
            (0..10).flat_map(|seed| spoil.apply(&gray, seed)).collect()
        };
        let (mean, deviation) = spread(&many(Corruption::GaussianNoise));
        assert!(
            (mean - 127.5).abs() < 0.5 && (deviation - 0.04 * 255.0).abs() < 0.3,
            "{mean} {deviation}"
        );
        // Of p·c photons: deviation √(p/c).
        let (mean, deviation) = spread(&many(Corruption::ShotNoise));
        let expected = 255.0 * (128.0f64 / 255.0 / 500.0).sqrt();
        assert!(
            (mean - 127.5).abs() < 0.5 && (deviation - expected).abs() < 0.3,
            "{mean} {deviation}"
        );
        let flipped = many(Corruption::ImpulseNoise)
            .iter()
            .filter(|v| **v == 0 || **v == 255)
            .count();
        assert!((flipped as f64 / (10 * PIXELS) as f64 - 0.01).abs() < 0.002);
    }

    #[test]
    fn filters_keep_a_gray_picture_and_the_mean() {
        let gray = vec![0.5; PIXELS];
        for y in [
            blurred(&gray, 1.0),
            filtered(&gray, &disk(1.5, 0.1)),
            resized(&resized(&gray, 32, 20), 20, 32),
        ] {
            assert!(y.iter().all(|v| (v - 0.5).abs() < 1e-9));
        }
        let x: Vec<f64> = picture().iter().map(|v| f64::from(*v) / 255.0).collect();
        let mean = |v: &[f64]| v.iter().sum::<f64>() / v.len() as f64;
        assert!((mean(&resized(&x, 32, 20)) - mean(&x)).abs() < 1e-12);
        let cloud = plasma(2.0, &mut Rng::new(3));
        assert!(cloud.iter().all(|v| (0.0..=1.0).contains(v)) && mean(&cloud) > 0.1 && mean(&cloud) < 0.9);
    }

    #[test]
    fn whole_sets_keep_their_labels() {
        let images = Images {
            pixels: [picture(), picture()].concat(),
            labels: vec![3, 7],
            classes: 10,
        };
        let spoilt = images.corrupted(Corruption::GaussianNoise, 2, 1);
        assert_eq!(spoilt.labels, images.labels);
        assert_ne!(spoilt.pixels[..PIXELS], spoilt.pixels[PIXELS..]);
        assert_eq!(images.first(1).count(), 1);
    }
}
