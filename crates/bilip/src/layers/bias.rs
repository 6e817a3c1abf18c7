//! Biases, shared by all rows of a batch or one per row.

use std::ops::Range;

/// A bias for the columns of a column-major block: the same for all, or one each.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Bias<'a, T> {
    Shared(&'a [T]),
    /// `dim` numbers a column.
    PerRow(&'a [T], usize),
}

impl<'a, T> Bias<'a, T> {
    #[inline]
    pub(crate) fn column(&self, j: usize) -> &'a [T] {
        match *self {
            Bias::Shared(data) => data,
            Bias::PerRow(data, dim) => &data[j * dim..(j + 1) * dim],
        }
    }
}

/// One bias a row for every layer of a network, as a partial network computes them from its
/// parameters.
#[derive(Clone, Debug)]
pub(crate) struct RowBiases<T> {
    /// Per layer: size of the bias, and `rows · size` numbers.
    pub(crate) layers: Vec<(usize, Vec<T>)>,
    /// Per layer and row: bound on the Euclidean error of the bias as stored here. Empty when not
    /// needed.
    pub(crate) errors: Vec<Vec<f64>>,
}

impl<T: Copy> RowBiases<T> {
    pub(crate) fn slice(&self, rows: Range<usize>) -> RowBiases<T> {
        RowBiases {
            layers: self
                .layers
                .iter()
                .map(|(dim, data)| (*dim, data[rows.start * dim..rows.end * dim].to_vec()))
                .collect(),
            errors: self.errors.iter().map(|e| e[rows.clone()].to_vec()).collect(),
        }
    }

    /// Exchanges two rows.
    pub(crate) fn swap(&mut self, a: usize, b: usize) {
        for (dim, data) in &mut self.layers {
            for i in 0..*dim {
                data.swap(a * *dim + i, b * *dim + i);
            }
        }
        for errors in &mut self.errors {
            errors.swap(a, b);
        }
    }

    pub(crate) fn layer(&self, k: usize) -> Bias<'_, T> {
        let (dim, data) = &self.layers[k];
        Bias::PerRow(data, *dim)
    }
}
