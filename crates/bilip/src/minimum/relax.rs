//! Straight lines below and above an activation over an interval of its argument.
//!
//! Each activation here is convex (ReLU, leaky ReLU, softplus, ELU), or convex below zero and
//! concave above (tanh, sigmoid, arctan). So a tangent is a line below it on the convex part, a
//! chord one above, and the reverse on the concave part; offsets are moved outwards by a bound on
//! their own rounding error.

use crate::base::real::UNIT_ROUNDOFF;
use crate::layers::activation::Activation;

/// How an activation bends.
#[derive(Clone, Copy, PartialEq)]
enum Shape {
    /// Two straight parts, with this slope below zero and slope 1 above.
    Kink(f64),
    Convex,
    /// Convex below zero, concave above.
    Sigmoidal,
}

/// `σ̂(v) = ψσ(v/ψ)` of one hidden unit.
#[derive(Clone, Copy)]
pub(super) struct Unit {
    activation: Activation,
    psi: f64,
    shape: Shape,
}

/// `slope·v + below ≤ σ̂(v) ≤ slope·v + above` for all v between `low` and `high`.
#[derive(Clone, Copy, Default)]
pub(super) struct Segment {
    pub(super) low: f64,
    pub(super) high: f64,
    pub(super) slope: f64,
    pub(super) below: f64,
    pub(super) above: f64,
    /// `σ̂(low)` and `σ̂(high)`, of sigmoidal units.
    at_ends: (f64, f64),
}

/// A line `slope·v + offset`.
#[derive(Clone, Copy)]
pub(super) struct Line {
    pub(super) slope: f64,
    pub(super) offset: f64,
}

impl Segment {
    /// Nothing is known between limits that are not both finite.
    pub(super) fn unknown(low: f64, high: f64) -> Self {
        Segment {
            low,
            high,
            below: f64::NEG_INFINITY,
            above: f64::INFINITY,
            ..Segment::default()
        }
    }
}

impl Unit {
    pub(super) fn new(activation: Activation, psi: f64) -> Self {
        let shape = match activation {
            Activation::Relu => Shape::Kink(0.0),
            Activation::LeakyRelu(slope) => Shape::Kink(slope.get()),
            Activation::Identity => Shape::Kink(1.0),
            Activation::Softplus | Activation::Elu => Shape::Convex,
            Activation::Tanh | Activation::Sigmoid | Activation::Arctan => Shape::Sigmoidal,
        };
        Unit {
            activation,
            psi,
            shape,
        }
    }

    pub(super) fn value(&self, v: f64) -> f64 {
        self.psi * self.activation.value(v / self.psi)
    }

    pub(super) fn slope(&self, v: f64) -> f64 {
        self.activation.derivative(v / self.psi)
    }

    /// A bound on the rounding errors of an offset: of σ̂ (two calls of libm with 4 units in the
    /// last place each, ψ, the argument), of its slope times the width of an interval, of the
    /// line.
    fn slack(&self, largest: f64) -> f64 {
        // |σ̂(v)| ≤ |v| + ψ for every activation: σ(0) ≤ 1 and slopes are at most 1.
        128.0 * UNIT_ROUNDOFF * (largest + self.psi) + 1e-290
    }

    /// Where σ̂' has this value, on the side of zero that is asked for; any number if nowhere.
    fn point_of_slope(&self, slope: f64, positive: bool) -> f64 {
        let sign = if positive { 1.0 } else { -1.0 };
        let at = match self.activation {
            Activation::Tanh => sign * (1.0 - slope).max(0.0).sqrt().atanh(),
            Activation::Sigmoid => sign * 2.0 * (1.0 - 4.0 * slope).max(0.0).sqrt().atanh(),
            Activation::Arctan => sign * (1.0 / slope - 1.0).max(0.0).sqrt(),
            Activation::Softplus => (slope / (1.0 - slope)).ln(),
            Activation::Elu => slope.ln(),
            _ => 0.0,
        };
        self.psi * at
    }

    /// The smallest and largest `σ̂(v) − slope·v` on a part on which σ̂ is convex (`sign` 1) or
    /// concave (`sign` −1), up to rounding: at its ends, and by a tangent in between.
    fn range(&self, slope: f64, low: f64, high: f64, sign: f64) -> (f64, f64) {
        let rest = |v: f64| sign * (self.value(v) - slope * v);
        let ends = (rest(low), rest(high));
        let touch = self.point_of_slope(slope, sign < 0.0);
        let touch = if touch.is_nan() { 0.5 * (low + high) } else { touch };
        let touch = touch.clamp(low, high);
        let tilt = sign * (self.slope(touch) - slope);
        let smallest = rest(touch) + (tilt * (low - touch)).min(tilt * (high - touch));
        let largest = ends.0.max(ends.1);
        match sign > 0.0 {
            true => (smallest, largest),
            false => (-largest, -smallest),
        }
    }

    /// Parallel lines around σ̂ between `low` and `high`, both finite.
    pub(super) fn over(&self, low: f64, high: f64) -> Segment {
        let mut segment = Segment {
            low,
            high,
            ..Segment::default()
        };
        let largest = low.abs().max(high.abs());
        if let Shape::Kink(left) = self.shape {
            if low >= 0.0 {
                segment.slope = 1.0;
            } else if high <= 0.0 || left == 1.0 {
                segment.slope = left;
            } else {
                // The chord; what is below it is largest at the kink.
                let slope = ((high - left * low) / (high - low)).clamp(left, 1.0);
                segment.slope = slope;
                segment.above =
                    ((left - slope) * low).max((1.0 - slope) * high).max(0.0) + 8.0 * UNIT_ROUNDOFF * largest;
            }
            return segment;
        }
        let ends = (self.value(low), self.value(high));
        segment.at_ends = ends;
        let width = high - low;
        segment.slope = match width > 1e-7 * (largest + self.psi) {
            true => ((ends.1 - ends.0) / width).clamp(0.0, 1.0),
            false => self.slope(0.5 * (low + high)),
        };
        let (mut below, mut above) = (f64::INFINITY, f64::NEG_INFINITY);
        let mut include = |low: f64, high: f64, sign: f64| {
            let (smallest, largest) = self.range(segment.slope, low, high, sign);
            below = below.min(smallest);
            above = above.max(largest);
        };
        match self.shape {
            Shape::Sigmoidal => {
                if low < 0.0 {
                    include(low, high.min(0.0), 1.0);
                }
                if high > 0.0 || low >= 0.0 {
                    include(low.max(0.0), high, -1.0);
                }
            }
            _ => include(low, high, 1.0),
        }
        let slack = self.slack(largest);
        segment.below = below - slack;
        segment.above = above + slack;
        segment
    }

    /// A line on the segment, below σ̂ or above, close to it at `v`.
    pub(super) fn line(&self, segment: &Segment, v: f64, below: bool) -> Line {
        let chord = Line {
            slope: segment.slope,
            offset: if below { segment.below } else { segment.above },
        };
        match self.shape {
            Shape::Kink(_) if segment.low >= 0.0 || segment.high <= 0.0 || !below => chord,
            Shape::Kink(left) => Line {
                slope: if v > 0.0 { 1.0 } else { left },
                offset: 0.0,
            },
            Shape::Convex if !below => chord,
            Shape::Sigmoidal if below != (v < 0.0) => chord,
            _ => self.tangent(segment, v, chord, below),
        }
    }

    /// The tangent at `v`, moved until it is on its side of the whole segment; the chord where that
    /// is nearer.
    fn tangent(&self, segment: &Segment, v: f64, chord: Line, below: bool) -> Line {
        let slope = self.slope(v);
        let rest = |at: f64, value: f64| value - slope * at;
        let mut offset = rest(v, self.value(v));
        let largest = segment.low.abs().max(segment.high.abs()).max(v.abs());
        let slack = self.slack(largest);
        // On the part that bends the other way, the extremes are at the ends.
        let sigmoidal = self.shape == Shape::Sigmoidal;
        if below {
            if sigmoidal && segment.high > 0.0 {
                offset = (offset.min(self.value(0.0))).min(rest(segment.high, segment.at_ends.1));
            }
            offset -= slack;
        } else {
            if sigmoidal && segment.low < 0.0 {
                offset = (offset.max(self.value(0.0))).max(rest(segment.low, segment.at_ends.0));
            }
            offset += slack;
        }
        let tangent = Line { slope, offset };
        match (tangent.at(v) >= chord.at(v)) == below || self.shape == Shape::Convex {
            true => tangent,
            false => chord,
        }
    }
}

impl Line {
    fn at(&self, v: f64) -> f64 {
        self.slope * v + self.offset
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::random::Rng;

    #[test]
    fn lines_stay_on_their_side_of_every_activation() {
        let mut rng = Rng::new(5);
        for activation in Activation::ALL {
            for case in 0..400 {
                let psi = match activation.is_homogeneous() {
                    true => 1.0,
                    false => (2.0 * rng.normal()).exp(),
                };
                let unit = Unit::new(activation, psi);
                let center = 3.0 * psi * rng.normal();
                let width = psi * 10f64.powf(-9.0 + 10.0 * rng.uniform()) * f64::from(case % 8 != 0);
                let (low, high) = (center - width, center + width);
                let segment = unit.over(low, high);
                let v = low + rng.uniform() * (high - low);
                let (below, above) = (unit.line(&segment, v, true), unit.line(&segment, v, false));
                for k in 0..=50 {
                    let at = low + f64::from(k) / 50.0 * (high - low);
                    let exact = unit.value(at);
                    let slack = 16.0 * f64::EPSILON * (at.abs() + psi);
                    let line = segment.slope * at;
                    assert!(
                        line + segment.below <= exact + slack && exact <= line + segment.above + slack,
                        "{activation} psi {psi} on {low}..{high} at {at}"
                    );
                    assert!(below.at(at) <= exact + slack, "{activation} below {low}..{high}");
                    assert!(above.at(at) >= exact - slack, "{activation} above {low}..{high}");
                }
                // Nothing is given away: no more than the height of the segment and rounding.
                let height = segment.above - segment.below;
                assert!(
                    height <= high - low + 1e-12 * (largest(low, high) + psi),
                    "{activation}: {height}"
                );
            }
        }
    }

    fn largest(a: f64, b: f64) -> f64 {
        a.abs().max(b.abs())
    }
}
