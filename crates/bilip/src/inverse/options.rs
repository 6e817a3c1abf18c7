//! Which method, how exactly, for how long.

use super::davis_yin::DavisYin;
use super::first_order::InverseMethod;
use super::forward::{ForwardBackward, ForwardBackwardForward, ForwardStep};
use super::newton::Newton;
use super::resolvent::{DouglasRachford, PeacemanRachford};
use crate::base::error::{Error, Result, check_rows};

/// Which algorithm inverts the monotone layers.
///
/// Convergence is that of layers whose condition is proved, see
/// [`LayerCertificate`](crate::LayerCertificate).
///
/// | method | works on | converges | cost of a step |
/// |---|---|---|---|
/// | `Auto` | | always: behind Newton stands a method that does | |
/// | `Newton` | `F(x) = y` | in every case met so far; no global proof | `n` forward passes |
/// | `DavisYin` | hidden state | for `α < 2μ/(γ‖S‖²)` | 1 forward pass |
/// | `ForwardStep` | `F(x) = y` | always, rate `1 − (μ/ν)²` | 1 forward pass |
/// | `ForwardBackward` | hidden state | when `I − (V+Vᵀ)/2` is positive definite | 1 forward pass |
/// | `ForwardBackwardForward` | hidden state | always | 2 forward passes |
/// | `PeacemanRachford` | hidden state | often; no proof without strong monotonicity | 1 forward pass |
/// | `DouglasRachford` | hidden state | always | 1 forward pass |
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Method {
    /// Semismooth Newton. Rows on which its line search fails go on with a method that is proved to
    /// converge: for a piecewise linear activation the path through the pieces, which ends after
    /// finitely many of them; else Douglas–Rachford.
    Auto,
    /// Semismooth Newton.
    Newton(Newton),
    /// Davis–Yin three-operator splitting.
    DavisYin(DavisYin),
    /// The forward step method `x ← x − s(F(x) − y)`.
    ForwardStep(ForwardStep),
    /// Forward–backward splitting.
    ForwardBackward(ForwardBackward),
    /// Tseng's forward–backward–forward splitting.
    ForwardBackwardForward(ForwardBackwardForward),
    /// Peaceman–Rachford splitting.
    PeacemanRachford(PeacemanRachford),
    /// Douglas–Rachford splitting.
    DouglasRachford(DouglasRachford),
}

impl Method {
    /// Every method with its default settings.
    pub fn all() -> [Method; 8] {
        [
            Method::Auto,
            Method::Newton(Default::default()),
            Method::DavisYin(Default::default()),
            Method::ForwardStep(Default::default()),
            Method::ForwardBackward(Default::default()),
            Method::ForwardBackwardForward(Default::default()),
            Method::PeacemanRachford(Default::default()),
            Method::DouglasRachford(Default::default()),
        ]
    }

    /// The method's short name: `auto`, `newton`, `dys`, `fsm`, `fbs`, `fbfs`, `prs` or `drs`.
    pub fn name(&self) -> &'static str {
        match self {
            Method::Auto => "auto",
            Method::Newton(_) => "newton",
            Method::DavisYin(_) => "dys",
            Method::ForwardStep(_) => "fsm",
            Method::ForwardBackward(_) => "fbs",
            Method::ForwardBackwardForward(_) => "fbfs",
            Method::PeacemanRachford(_) => "prs",
            Method::DouglasRachford(_) => "drs",
        }
    }

    /// The settings as the one trait all first-order methods share; Newton and Auto work
    /// differently.
    pub(super) fn first_order(&self) -> Option<&dyn InverseMethod> {
        Some(match self {
            Method::Auto | Method::Newton(_) => return None,
            Method::DavisYin(m) => m,
            Method::ForwardStep(m) => m,
            Method::ForwardBackward(m) => m,
            Method::ForwardBackwardForward(m) => m,
            Method::PeacemanRachford(m) => m,
            Method::DouglasRachford(m) => m,
        })
    }
}

impl std::str::FromStr for Method {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let lower = text.trim().to_ascii_lowercase();
        Method::all()
            .into_iter()
            .find(|m| m.name() == lower)
            .ok_or_else(|| {
                Error::setting(
                    "method",
                    text.chars().take(40).collect::<String>(),
                    "choose one of auto, newton, dys, fsm, fbs, fbfs, prs, drs",
                )
            })
    }
}

impl std::fmt::Display for Method {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// Settings of an inverse.
///
/// | setting | default | range | effect |
/// |---|---|---|---|
/// | `method` | `Auto` | | see [`Method`] |
/// | `tolerance` | 1e-8 | ≥ 0 | certified error at which a row is done |
/// | `max_iterations` | 100 for Newton, 100,000 else | ≥ 1 | per layer and row, whatever the method tries |
/// | `start` | none | `[batch, n]` | first guess of x |
/// | `trace` | false | | records the error at every iteration (slower) |
#[derive(Clone, Debug)]
pub struct InverseOptions {
    /// The algorithm.
    pub method: Method,
    /// Certified error `‖x̂ − x*‖` at which a row is done.
    pub tolerance: f64,
    /// Limit on iterations per layer and row; `None` takes the method's own.
    pub max_iterations: Option<usize>,
    /// First guess of x, `[batch, n]`: a warm start.
    pub start: Option<Vec<f64>>,
    /// Whether to record the error at every iteration.
    pub trace: bool,
}

impl Default for InverseOptions {
    fn default() -> Self {
        InverseOptions {
            method: Method::Auto,
            tolerance: 1e-8,
            max_iterations: None,
            start: None,
            trace: false,
        }
    }
}

impl InverseOptions {
    /// Default settings with another method.
    pub fn with_method(method: Method) -> Self {
        InverseOptions {
            method,
            ..Default::default()
        }
    }

    pub(crate) fn check(&self, rows: usize, n: usize) -> Result<()> {
        if !(self.tolerance >= 0.0 && self.tolerance.is_finite()) {
            return Err(Error::setting(
                "tolerance",
                self.tolerance,
                "must be a finite number, at least 0",
            ));
        }
        if self.max_iterations == Some(0) {
            return Err(Error::setting("max_iterations", 0, "must be at least 1"));
        }
        if let Some(start) = &self.start {
            check_rows("start", start, rows, n)?;
        }
        match &self.method {
            Method::Newton(newton) => newton.check(),
            method => method.first_order().map_or(Ok(()), |m| m.check()),
        }
    }

    pub(super) fn limit(&self) -> usize {
        self.max_iterations.unwrap_or(match self.method {
            Method::Newton(_) => super::auto::NEWTON_LIMIT,
            _ => 100_000,
        })
    }
}
