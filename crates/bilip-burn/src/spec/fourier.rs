//! The frequencies of the Fourier transform of real images, of which one of each conjugate pair is
//! kept.

/// One of each pair of conjugate frequencies of images of the given side.
pub(crate) fn frequencies(size: usize) -> Vec<(usize, usize)> {
    (0..size)
        .flat_map(|i| (0..=size / 2).map(move |j| (i, j)))
        .filter(|&(i, j)| {
            let own_column = j == 0 || 2 * j == size;
            !own_column || 2 * i <= size
        })
        .collect()
}

/// The weight of a frequency in the inverse transform.
pub(crate) fn weight(size: usize, (i, j): (usize, usize)) -> f64 {
    let alone = 2 * i % size == 0 && 2 * j % size == 0;
    (if alone { 1.0 } else { 2.0 }) / (size * size) as f64
}
