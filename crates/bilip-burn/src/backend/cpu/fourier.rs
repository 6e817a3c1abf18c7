//! Fourier transforms of images, and the adjoint: lines, then columns, many images side by side.
//!
//! With `c` and `s` the cosines and sines of `2πjk/n`, a real line `x` becomes `Σ c e − i Σ s d` of
//! its even and odd parts `e_k = x_k + x_{n−k}`, `d_k = x_k − x_{n−k}`, both for `0 ≤ k ≤ n/2`
//! alone; a complex column needs four such sums for two frequencies, `i` and `n − i`. That is a
//! thirtieth of the work of a product with the whole table when n is 32.

use bilip::Real;
use bilip::faer::MatMut;
use rayon::prelude::*;

use crate::spec::{frequencies, weight};

/// Images that are transformed side by side.
const LANES: usize = 16;

type Lanes<T> = [T; LANES];

/// The transform of images of one size. Frequencies are those of [`frequencies`], each a real row
/// and an imaginary one.
pub(crate) struct ImageFft<T> {
    size: usize,
    /// `size/2 + 1` by as many.
    cosines: Vec<T>,
    sines: Vec<T>,
    /// With their weights.
    frequencies: Vec<((usize, usize), T)>,
}

/// Room for a group of images.
struct Room<T> {
    /// `[size, size]`.
    pixels: Vec<Lanes<T>>,
    /// Lines at their frequencies, `[size/2 + 1, size]`, real and imaginary.
    lines: [Vec<Lanes<T>>; 2],
    /// The whole, `[size/2 + 1, size]`, real and imaginary.
    spectrum: [Vec<Lanes<T>>; 2],
    /// Even and odd parts, and their transforms.
    parts: [Vec<Lanes<T>>; 8],
}

impl<T: Real> ImageFft<T> {
    /// Of images of the given side; with `inverse`, every frequency has the weight that it has in
    /// the inverse transform.
    pub fn new(size: usize, inverse: bool) -> Self {
        let half = size / 2 + 1;
        let table = |wave: fn(f64) -> f64| {
            (0..half * half)
                .map(|k| {
                    let turn = (k / half) * (k % half) % size;
                    T::round_from(wave(std::f64::consts::TAU * turn as f64 / size as f64))
                })
                .collect()
        };
        let weigh = |f| (f, T::round_from(if inverse { weight(size, f) } else { 1.0 }));
        ImageFft {
            size,
            cosines: table(f64::cos),
            sines: table(f64::sin),
            frequencies: frequencies(size).into_iter().map(weigh).collect(),
        }
    }

    fn half(&self) -> usize {
        self.size / 2 + 1
    }

    fn room(&self) -> Room<T> {
        let lanes = |count: usize| vec![[T::zero(); LANES]; count];
        let (n, half) = (self.size, self.half());
        Room {
            pixels: lanes(n * n),
            lines: std::array::from_fn(|_| lanes(half * n)),
            spectrum: std::array::from_fn(|_| lanes(half * n)),
            parts: std::array::from_fn(|_| lanes(half)),
        }
    }

    /// Images, one per row, at all frequencies: `[count, size²] → [2·frequencies, count]`.
    pub fn spectra(&self, x: &[T]) -> Vec<T> {
        let count = x.len() / (self.size * self.size).max(1);
        let mut z = vec![T::zero(); 2 * self.frequencies.len() * count];
        let all = MatMut::from_row_major_slice_mut(&mut z, 2 * self.frequencies.len(), count);
        self.spectra_into(x, all);
        z
    }

    /// Halves until there is a group of images left for a thread.
    fn spectra_into(&self, x: &[T], z: MatMut<'_, T>) {
        const GROUPS: usize = 8;
        let (pixels, count) = (self.size * self.size, z.ncols());
        if count > GROUPS * LANES {
            let middle = (count / 2).next_multiple_of(LANES);
            let (left, right) = z.split_at_col_mut(middle);
            let (first, second) = x.split_at(middle * pixels);
            rayon::join(
                || self.spectra_into(first, left),
                || self.spectra_into(second, right),
            );
            return;
        }
        let mut room = self.room();
        let mut z = z;
        for (k, images) in x.chunks(LANES * pixels).enumerate() {
            let lanes = images.len() / pixels;
            for (lane, image) in images.chunks_exact(pixels).enumerate() {
                for (to, from) in room.pixels.iter_mut().zip(image) {
                    to[lane] = *from;
                }
            }
            pulp::Arch::new().dispatch(
                #[inline(always)]
                || self.there(&mut room),
            );
            let mut z = z.as_mut().subcols_mut(k * LANES, lanes);
            for (f, ((i, j), weight)) in self.frequencies.iter().enumerate() {
                for part in 0..2 {
                    let from = &room.spectrum[part][j * self.size + i];
                    for (to, from) in z.as_mut().row_mut(2 * f + part).iter_mut().zip(from) {
                        *to = *weight * *from;
                    }
                }
            }
        }
    }

    /// The adjoint: `[2·frequencies, count] → [count, size²]`.
    pub fn images(&self, z: &[T]) -> Vec<T> {
        let (pixels, rows) = (self.size * self.size, 2 * self.frequencies.len());
        let count = z.len() / rows.max(1);
        let mut x = vec![T::zero(); count * pixels];
        let groups = x.par_chunks_mut(LANES * pixels).enumerate();
        groups.for_each_init(
            || self.room(),
            |room, (k, images)| {
                let (first, lanes) = (k * LANES, images.len() / pixels);
                for spectrum in &mut room.spectrum {
                    spectrum.fill([T::zero(); LANES]);
                }
                for (f, ((i, j), weight)) in self.frequencies.iter().enumerate() {
                    for part in 0..2 {
                        let to = &mut room.spectrum[part][j * self.size + i];
                        let at = (2 * f + part) * count + first;
                        for (to, from) in to.iter_mut().zip(&z[at..at + lanes]) {
                            *to = *weight * *from;
                        }
                    }
                }
                pulp::Arch::new().dispatch(
                    #[inline(always)]
                    || self.back(room),
                );
                for (lane, image) in images.chunks_exact_mut(pixels).enumerate() {
                    for (to, from) in image.iter_mut().zip(&room.pixels) {
                        *to = from[lane];
                    }
                }
            },
        );
        x
    }

    #[inline(always)]
    fn there(&self, room: &mut Room<T>) {
        let (n, half) = (self.size, self.half());
        let [e, d, f, g, p, q, r, s] = &mut room.parts;
        for line in 0..n {
            apart(&room.pixels[line * n..][..n], e, d);
            mix(&self.cosines, e, p);
            mix(&self.sines, d, q);
            for j in 0..half {
                room.lines[0][j * n + line] = p[j];
                room.lines[1][j * n + line] = negative(&q[j]);
            }
        }
        for j in 0..half {
            apart(&room.lines[0][j * n..][..n], e, d);
            apart(&room.lines[1][j * n..][..n], f, g);
            mix(&self.cosines, e, p);
            mix(&self.sines, g, q);
            mix(&self.cosines, f, r);
            mix(&self.sines, d, s);
            together(p, q, &mut room.spectrum[0][j * n..][..n]);
            for s in s.iter_mut() {
                *s = negative(s);
            }
            together(r, s, &mut room.spectrum[1][j * n..][..n]);
        }
    }

    /// The same steps, transposed, in the opposite order.
    #[inline(always)]
    fn back(&self, room: &mut Room<T>) {
        let (n, half) = (self.size, self.half());
        let [e, d, f, g, p, q, r, s] = &mut room.parts;
        for j in 0..half {
            apart(&room.spectrum[0][j * n..][..n], p, q);
            apart(&room.spectrum[1][j * n..][..n], r, s);
            for s in s.iter_mut() {
                *s = negative(s);
            }
            mix(&self.cosines, p, e);
            mix(&self.sines, s, d);
            mix(&self.cosines, r, f);
            mix(&self.sines, q, g);
            together(e, d, &mut room.lines[0][j * n..][..n]);
            together(f, g, &mut room.lines[1][j * n..][..n]);
        }
        for line in 0..n {
            for j in 0..half {
                p[j] = room.lines[0][j * n + line];
                q[j] = negative(&room.lines[1][j * n + line]);
            }
            mix(&self.cosines, p, e);
            mix(&self.sines, q, d);
            together(e, d, &mut room.pixels[line * n..][..n]);
        }
    }
}

#[inline(always)]
fn negative<T: Real>(x: &Lanes<T>) -> Lanes<T> {
    std::array::from_fn(|l| -x[l])
}

/// `e_k = x_k + x_{n−k}` and `d_k = x_k − x_{n−k}`; where both are the same place, `x_k` and 0.
#[inline(always)]
fn apart<T: Real>(x: &[Lanes<T>], e: &mut [Lanes<T>], d: &mut [Lanes<T>]) {
    let n = x.len();
    for (k, (e, d)) in e.iter_mut().zip(d).enumerate() {
        let (one, other) = (&x[k], &x[(n - k) % n]);
        if 2 * k % n == 0 {
            (*e, *d) = (*one, [T::zero(); LANES]);
        } else {
            *e = std::array::from_fn(|l| one[l] + other[l]);
            *d = std::array::from_fn(|l| one[l] - other[l]);
        }
    }
}

/// `x_k = e_k + d_k` and `x_{n−k} = e_k − d_k`; where both are the same place, `e_k`: the transpose
/// of [`apart`].
#[inline(always)]
fn together<T: Real>(e: &[Lanes<T>], d: &[Lanes<T>], x: &mut [Lanes<T>]) {
    let n = x.len();
    for (k, (e, d)) in e.iter().zip(d).enumerate() {
        if 2 * k % n == 0 {
            x[k] = *e;
        } else {
            x[k] = std::array::from_fn(|l| e[l] + d[l]);
            x[n - k] = std::array::from_fn(|l| e[l] - d[l]);
        }
    }
}

/// A symmetric matrix times a column of lanes.
#[inline(always)]
fn mix<T: Real>(table: &[T], x: &[Lanes<T>], y: &mut [Lanes<T>]) {
    for (y, row) in y.iter_mut().zip(table.chunks_exact(x.len())) {
        let mut sum = [T::zero(); LANES];
        for (c, x) in row.iter().zip(x) {
            for l in 0..LANES {
                sum[l] += *c * x[l];
            }
        }
        *y = sum;
    }
}

#[cfg(test)]
mod tests {
    use bilip::Rng;

    use super::*;

    #[test]
    fn transforms_are_sums_over_pixels_and_the_adjoint_is_one() {
        for (size, count) in [(1, 3), (2, 17), (3, 5), (4, 300), (5, 16), (8, 33), (32, 2)] {
            let mut rng = Rng::new(size as u64);
            let pixels = size * size;
            let all = frequencies(size);
            let x = rng.normals(count * pixels);
            let z = rng.normals(2 * all.len() * count);
            for inverse in [false, true] {
                let fourier = ImageFft::<f64>::new(size, inverse);
                let (found, images) = (fourier.spectra(&x), fourier.images(&z));
                for (k, f) in all.iter().enumerate() {
                    let weight = if inverse { weight(size, *f) } else { 1.0 };
                    for row in 0..count {
                        let (mut re, mut im) = (0.0, 0.0);
                        for (at, value) in x[row * pixels..][..pixels].iter().enumerate() {
                            let turn = (f.0 * (at / size) + f.1 * (at % size)) as f64 / size as f64;
                            let angle = std::f64::consts::TAU * turn;
                            re += weight * angle.cos() * value;
                            im -= weight * angle.sin() * value;
                        }
                        assert!((found[2 * k * count + row] - re).abs() < 1e-11, "{size} {f:?}");
                        assert!(
                            (found[(2 * k + 1) * count + row] - im).abs() < 1e-11,
                            "{size} {f:?}"
                        );
                    }
                }
                let there: f64 = found.iter().zip(&z).map(|(a, b)| a * b).sum();
                let back: f64 = images.iter().zip(&x).map(|(a, b)| a * b).sum();
                assert!(
                    (there - back).abs() < 1e-10 * (1.0 + there.abs()),
                    "{size}: {there} {back}"
                );
            }
        }
    }

    #[test]
    fn the_inverse_undoes_the_transform() {
        let x = Rng::new(1).normals(40 * 36);
        let z = ImageFft::<f64>::new(6, false).spectra(&x);
        let again = ImageFft::<f64>::new(6, true).images(&z);
        assert!(x.iter().zip(&again).all(|(a, b)| (a - b).abs() < 1e-12));
    }
}
