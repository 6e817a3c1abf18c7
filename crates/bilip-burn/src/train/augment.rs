//! Random changes of images.

use bilip::Rng;
use burn::tensor::backend::Backend;
use burn::tensor::{Int, Tensor, TensorData};
use serde::{Deserialize, Serialize};

use crate::ops::framed;

/// Images moved and mirrored at random while training: zeros around them, a window of the old size,
/// and left for right in half of the cases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Augment {
    /// Channels of an image.
    pub channels: usize,
    /// Its side.
    pub size: usize,
    /// Zeros on each side.
    pub pad: usize,
}

impl Augment {
    /// The rows of a batch, `[batch, channels·size²]`, changed; the changes are drawn from `rng`.
    pub(crate) fn apply<B: Backend>(&self, x: Tensor<B, 2>, rng: &mut Rng) -> Tensor<B, 2> {
        let [batch, numbers] = x.dims();
        let Augment { channels, size, pad } = *self;
        let wide = size + 2 * pad;
        let device = x.device();
        let mut draw = |count: usize| -> Vec<i32> {
            (0..batch)
                .map(|_| (rng.uniform() * count as f64) as i32)
                .collect()
        };
        let (down, right, mirror) = (draw(2 * pad + 1), draw(2 * pad + 1), draw(2));
        let column = |v: Vec<i32>| Tensor::<B, 2, Int>::from_data(TensorData::new(v, [batch, 1]), &device);
        let steps: Vec<i32> = (0..size as i32).collect();
        let steps = Tensor::<B, 2, Int>::from_data(TensorData::new(steps, [1, size]), &device);
        let rows = steps.clone() + column(down);
        // q, or size − 1 − q.
        let sign = column(mirror.iter().map(|m| 1 - 2 * m).collect());
        let start = column(mirror.iter().map(|m| m * (size as i32 - 1)).collect());
        let columns = steps * sign + start + column(right);
        let places =
            rows.mul_scalar(wide as i32).reshape([batch, size, 1]) + columns.reshape([batch, 1, size]);
        let places = places.reshape([batch, 1, size * size]).repeat_dim(1, channels);
        framed(x.reshape([batch, channels, size, size]), [pad; 2], [pad; 2])
            .reshape([batch, channels, wide * wide])
            .gather(2, places)
            .reshape([batch, numbers])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::numbers;
    use burn::backend::Flex;
    use burn::tensor::DType;

    #[test]
    fn images_are_moved_and_mirrored_and_nothing_else() {
        let augment = Augment {
            channels: 2,
            size: 4,
            pad: 1,
        };
        let device = Default::default();
        let values: Vec<f64> = (1..=2 * 16).map(f64::from).collect();
        let x = Tensor::<Flex, 2>::from_data(
            TensorData::new(values.repeat(50), [50, 32]),
            (&device, DType::F64),
        );
        let y = numbers(augment.apply(x, &mut Rng::new(2)));
        let mut seen = std::collections::BTreeSet::new();
        for row in y.chunks(32) {
            // One of the 3 × 3 × 2 ways, the same for both channels.
            let ways: Vec<(isize, isize, bool)> = (-1..=1)
                .flat_map(|a| (-1..=1).flat_map(move |b| [(a, b, false), (a, b, true)]))
                .filter(|(a, b, mirror)| {
                    (0..32).all(|k| {
                        let (c, p, q) = (k / 16, (k / 4 % 4) as isize, (k % 4) as isize);
                        let q = if *mirror { 3 - q } else { q };
                        let (p, q) = (p + a, q + b);
                        let inside = (0..4).contains(&p) && (0..4).contains(&q);
                        let expected = if inside {
                            values[(c * 16) as usize + (4 * p + q) as usize]
                        } else {
                            0.0
                        };
                        row[k as usize] == expected
                    })
                })
                .collect();
            assert_eq!(ways.len(), 1, "{row:?}");
            seen.insert(ways[0]);
        }
        assert!(seen.len() > 10);
    }
}
