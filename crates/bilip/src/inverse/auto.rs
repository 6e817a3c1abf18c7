//! One monotone layer by the method asked for, or by whichever arrives.

use super::newton::{self, Newton};
use super::options::{InverseOptions, Method};
use super::report::Status;
use super::resolvent::DouglasRachford;
use super::state::{Goal, RowState};
use super::{drive, path};
use crate::layers::monotone::Monotone;
use crate::layers::stack::{Stack, Workspace};

/// Solves one monotone layer for every row of the stack's batch.
pub(super) fn solve_layer(
    layer: &dyn Monotone,
    single: &Stack<'_, f64>,
    y: &[f64],
    start: Option<&[f64]>,
    goal: Goal,
    options: &InverseOptions,
) -> Vec<RowState> {
    let guess = match start {
        Some(start) => start.to_vec(),
        None => first_guess(layer, single, y),
    };
    match &options.method {
        Method::Newton(newton) => newton::solve(single, y, &guess, goal, newton),
        Method::Auto => auto(layer, single, y, &guess, goal, &Newton::default()),
        method => match method.first_order() {
            Some(method) => drive::solve(method, layer, single, y, &guess, goal),
            None => Vec::new(),
        },
    }
}

/// Newton, and for the rows it gave up on a spell of another method from where it stopped, in
/// turns, within the limit on iterations of all of them together: the path through the linear
/// pieces where the activation has a kink, else, and where that gained nothing, Douglas–Rachford.
///
/// Every turn has to gain something: [`FRUITLESS`] turns without end it. Numbers out of range end
/// it at once.
fn auto(
    layer: &dyn Monotone,
    single: &Stack<'_, f64>,
    y: &[f64],
    guess: &[f64],
    goal: Goal,
    newton: &Newton,
) -> Vec<RowState> {
    let n = single.n;
    let newton_goal = |left: usize| Goal {
        limit: NEWTON_LIMIT.min(left),
        ..goal
    };
    let mut solved = newton::solve(single, y, guess, newton_goal(goal.limit), newton);
    for (j, state) in solved.iter_mut().enumerate() {
        let row = single.rows(j..j + 1);
        let target = &y[j * n..(j + 1) * n];
        let (mut spell, mut fruitless) = (500, 0);
        while matches!(state.report.status, Status::Stalled | Status::MaxIterations) {
            let (before, bound) = (state.report.iterations, state.report.error_bound);
            if bound.is_infinite() {
                // Out of range, which no other method changes.
                break;
            }
            let left = goal.limit.saturating_sub(before);
            if left == 0 {
                state.report.status = Status::MaxIterations;
                break;
            }
            // A piece costs as much as n steps of a splitting method.
            let kinked = layer.sigma().is_homogeneous() && fruitless == 0 && n <= newton.krylov_above;
            let next = if kinked {
                let spelled = Goal {
                    limit: left.min(spell / 5),
                    ..goal
                };
                path::follow(layer, &row, target, &state.x, spelled)
            } else {
                let spelled = Goal {
                    limit: left.min(spell),
                    ..goal
                };
                let method = DouglasRachford {
                    alpha: layer.splitting_step(),
                };
                drive::solve(&method, layer, &row, target, &state.x, spelled).remove(0)
            };
            state.go_on(next);
            let left = goal.limit.saturating_sub(state.report.iterations);
            if state.report.status != Status::Converged && left > 0 {
                let next = newton::solve(&row, target, &state.x, newton_goal(left), newton).remove(0);
                state.go_on(next);
            }
            let gained = state.report.error_bound < 0.9 * bound;
            fruitless = if gained { 0 } else { fruitless + 1 };
            if state.report.iterations == before || fruitless == FRUITLESS {
                break;
            }
            spell *= 4;
        }
    }
    solved
}

/// Turns of `Auto` that may go by without a tenth of the error gained.
const FRUITLESS: usize = 3;

/// Newton steps before `Auto` tries something else.
pub(super) const NEWTON_LIMIT: usize = 100;

/// `x = (y − F(0))·2/(μ+ν)`: exact for the middle slope.
fn first_guess(layer: &dyn Monotone, single: &Stack<'_, f64>, y: &[f64]) -> Vec<f64> {
    let mut at = vec![0.0; y.len()];
    single.forward_block(&mut at, &mut Workspace::default());
    let slope = 0.5 * (layer.formula().mu() + layer.formula().nu());
    y.iter().zip(&at).map(|(y, f)| (y - f) / slope).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::bounds::Bounds;
    use crate::base::random::Rng;
    use crate::layers::layer::Layer;
    use crate::layers::monlip::{MonLip, MonLipFree, RandomLayer};
    use crate::layers::stack::LayerRef;

    #[test]
    fn auto_still_arrives_when_newton_gives_up_at_once() {
        for distortion in [5.0, 1e3, 1e6] {
            let bounds = Bounds::from_parts(None, None, Some(distortion)).unwrap();
            let mut rng = Rng::new(21);
            let free = MonLipFree::random(&RandomLayer::new(5, &[16, 12, 16], bounds), &mut rng).unwrap();
            let layer = MonLip::<f64>::from_free(&free).unwrap();
            let single = Stack::new(vec![LayerRef::MonLip(&layer)], None);
            let x = rng.normals(5 * 4);
            let y = single.forward(&x).unwrap();
            // A line search that may not halve, from far away: most is left to the method behind
            // it.
            let goal = Goal {
                mu: layer.proof().proved().mu(),
                tolerance: 1e-8,
                limit: 100_000,
                trace: false,
                layer: 0,
            };
            let guess = vec![1e3; y.len()];
            let newton = Newton {
                halvings: 0,
                ..Default::default()
            };
            for row in auto(&layer, &single, &y, &guess, goal, &newton) {
                assert_eq!(
                    row.report.status,
                    Status::Converged,
                    "distortion {distortion}: {:?}",
                    row.report
                );
                assert!(row.report.iterations > 0);
            }
        }
    }
}
