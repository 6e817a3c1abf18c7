//! Learning-rate schedules.

use crate::base::{Error, Result};

/// How the learning rate changes over a run of known length.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Schedule {
    /// The same rate throughout.
    Constant {
        /// The rate.
        rate: f64,
    },
    /// Linear one-cycle: from `peak/start` up to `peak` at the share `rise` of the run, down to
    /// `peak/start` at the share `fall`, then to `peak/(start·end)` at its end.
    OneCycle {
        /// The largest rate.
        peak: f64,
        /// Share of the run at which the peak is reached.
        rise: f64,
        /// Share of the run at which the rate is back where it started.
        fall: f64,
        /// The peak over the first rate.
        start: f64,
        /// The first rate over the last.
        end: f64,
    },
    /// A rate, multiplied by a factor at each of some shares of the run; up to a first share it
    /// grows from zero.
    Steps {
        /// The rate.
        rate: f64,
        /// Share of the run in which the rate is reached; 0 for at once.
        warm: f64,
        /// Shares of the run at which the rate changes.
        at: Vec<f64>,
        /// What it is multiplied by.
        factor: f64,
    },
    /// Half a cosine from a first rate to a last one.
    Cosine {
        /// The first rate.
        rate: f64,
        /// The last rate.
        last: f64,
    },
}

impl Schedule {
    /// The published one-cycle of an experiment: `(rise, fall, start, end)`.
    pub fn one_cycle(peak: f64, (rise, fall, start, end): (f64, f64, f64, f64)) -> Self {
        Schedule::OneCycle {
            peak,
            rise,
            fall,
            start,
            end,
        }
    }

    /// Checks the numbers.
    ///
    /// # Errors
    /// On rates that are not positive and shares out of order.
    pub fn check(&self) -> Result<()> {
        let positive = |name: &'static str, v: f64| {
            if v > 0.0 && v.is_finite() {
                Ok(())
            } else {
                Err(Error::setting(name, v, "must be positive and finite"))
            }
        };
        match self {
            Schedule::Constant { rate } => positive("rate", *rate),
            Schedule::OneCycle {
                peak,
                rise,
                fall,
                start,
                end,
            } => {
                positive("peak", *peak)?;
                positive("start", *start)?;
                positive("end", *end)?;
                if !(0.0 < *rise && rise < fall && *fall < 1.0) {
                    return Err(Error::setting(
                        "rise, fall",
                        (rise, fall),
                        "must satisfy 0 < rise < fall < 1",
                    ));
                }
                Ok(())
            }
            Schedule::Steps {
                rate,
                warm,
                at,
                factor,
            } => {
                positive("rate", *rate)?;
                if !(0.0..1.0).contains(warm) {
                    return Err(Error::setting("warm", warm, "must be at least 0 and below 1"));
                }
                positive("factor", *factor)?;
                if at.iter().any(|s| !(0.0..=1.0).contains(s)) {
                    return Err(Error::setting("at", at, "shares must be in [0, 1]"));
                }
                Ok(())
            }
            Schedule::Cosine { rate, last } => {
                positive("rate", *rate)?;
                if !(*last >= 0.0 && last <= rate) {
                    return Err(Error::setting(
                        "last",
                        last,
                        "must be between 0 and the first rate",
                    ));
                }
                Ok(())
            }
        }
    }

    /// The rate of step `step` (from 0) of a run of `total` steps.
    pub fn rate(&self, step: usize, total: usize) -> f64 {
        let t = (step as f64 / total.max(1) as f64).min(1.0);
        let line = |from: f64, to: f64, a: f64, b: f64| from + (to - from) * ((t - a) / (b - a));
        match self {
            Schedule::Constant { rate } => *rate,
            Schedule::OneCycle {
                peak,
                rise,
                fall,
                start,
                end,
            } => {
                let low = peak / start;
                if t < *rise {
                    line(low, *peak, 0.0, *rise)
                } else if t < *fall {
                    line(*peak, low, *rise, *fall)
                } else {
                    line(low, low / end, *fall, 1.0)
                }
            }
            Schedule::Steps {
                rate,
                warm,
                at,
                factor,
            } => {
                // The first step is a step.
                let next = (step + 1) as f64 / total.max(1) as f64;
                let share = if next < *warm { next / warm } else { 1.0 };
                share * rate * factor.powi(at.iter().filter(|s| t >= **s).count() as i32)
            }
            Schedule::Cosine { rate, last } => {
                last + 0.5 * (rate - last) * (1.0 + (std::f64::consts::PI * t).cos())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_cycle_passes_through_its_corners() {
        let s = Schedule::one_cycle(1e-2, (0.25, 0.75, 10.0, 100.0));
        for (step, rate) in [
            (0, 1e-3),
            (125, 5.5e-3),
            (250, 1e-2),
            (500, 5.5e-3),
            (750, 1e-3),
            (1_000, 1e-5),
        ] {
            assert!(
                (s.rate(step, 1_000) - rate).abs() < 1e-12,
                "{step}: {}",
                s.rate(step, 1_000)
            );
        }
        assert!(s.check().is_ok());
        assert!(
            Schedule::one_cycle(1e-2, (0.8, 0.7, 10.0, 100.0))
                .check()
                .is_err()
        );
        assert!(
            Schedule::one_cycle(f64::NAN, (0.2, 0.7, 10.0, 100.0))
                .check()
                .is_err()
        );
    }

    #[test]
    fn other_schedules_do_what_they_say() {
        let s = Schedule::Steps {
            rate: 1.0,
            warm: 0.0,
            at: vec![0.3, 0.6],
            factor: 0.2,
        };
        assert_eq!((s.rate(0, 10), s.rate(3, 10)), (1.0, 0.2));
        assert!((s.rate(9, 10) - 0.04).abs() < 1e-15);
        let warm = |warm: f64| Schedule::Steps {
            rate: 1.0,
            warm,
            at: vec![0.5],
            factor: 0.2,
        };
        let s = warm(0.04);
        let rates: Vec<f64> = [0, 1, 2, 3, 50].map(|k| s.rate(k, 100)).to_vec();
        for (rate, expected) in rates.iter().zip([0.25, 0.5, 0.75, 1.0, 0.2]) {
            assert!((rate - expected).abs() < 1e-12, "{rates:?}");
        }
        assert!(s.check().is_ok() && warm(1.0).check().is_err() && warm(f64::NAN).check().is_err());
        let c = Schedule::Cosine { rate: 1.0, last: 0.1 };
        assert_eq!(c.rate(0, 8), 1.0);
        assert!((c.rate(4, 8) - 0.55).abs() < 1e-15 && (c.rate(8, 8) - 0.1).abs() < 1e-15);
        assert!(Schedule::Cosine { rate: 1.0, last: 2.0 }.check().is_err());
        assert!(Schedule::Constant { rate: -1.0 }.check().is_err());
    }
}
