//! `plot`: a picture of a model.

use anyhow::{Context, Result, ensure};
use bilip::{InverseOptions, write_file};
use bilip_fit::NamedModel;
use bilip_plot::{Figure, Mark, Panel, levels};

use crate::Outcome;
use crate::args;
use crate::model::{self, Asked};
use crate::table::{self, check_output, is_stream};
use crate::text::print;

/// Points along an axis of a contour plot.
const GRID: usize = 121;

pub fn run(args: &args::Plot) -> Result<Outcome> {
    let model = model::read(&args.model)?;
    let mut inputs = vec![args.model.as_path()];
    inputs.extend(args.data.as_deref());
    check_output(&args.output, &inputs)?;
    if !is_stream(&args.output) {
        let svg = args
            .output
            .extension()
            .is_some_and(|e| e.eq_ignore_ascii_case("svg"));
        ensure!(svg, "{}: pictures are written as .svg", args.output.display());
    }
    let p = model.parameters_at(args.at.at.as_deref(), None)?;
    ensure!(
        p.len() == model.parameters(),
        "--at: a picture shows one row of parameters, not {}",
        p.len() / model.parameters().max(1)
    );
    let names = model.inputs();
    let axes = axes(args, &model)?;
    let minimum = if model.is_potential() {
        // Its place is all that is drawn: whatever has been reached will do.
        model.minimize(&p, &InverseOptions::default())?.pop()
    } else {
        None
    };
    let ranges = ranges(args, &model, &axes, minimum.as_ref().map(|m| m.x.as_slice()))?;
    // The point that a slice goes through.
    let through: Vec<f64> = match (&minimum, model.ranges()) {
        (Some(m), _) => m.x.clone(),
        (None, Some(r)) => r.iter().map(|(a, b)| (a + b) / 2.0).collect(),
        (None, None) => vec![0.0; model.dim()],
    };
    let data = match &args.data {
        None => None,
        Some(path) => {
            let table = table::read(path)?;
            let x = table
                .matching(&model.input_variables())?
                .with_context(|| format!("{}: not the columns of the model", path.display()))?;
            let y = match model.class_column().and_then(|name| table.find(&name).ok()) {
                Some(column) => Some(table.classes(column)?.0),
                None => table
                    .matching(&model.target_variables())?
                    .filter(|_| table.columns() > names.len()),
            };
            Some((x, y))
        }
    };
    let picture = Picture {
        model: &model,
        p: &p,
        names: &names,
        axes: &axes,
        ranges: &ranges,
        through: &through,
        minimum: minimum.as_ref(),
        data: data.as_ref().map(|(x, y)| (x.as_slice(), y.as_deref())),
    };
    let figure = match (model.is_potential() || model.classes().is_some(), axes.len()) {
        (true, 2) => picture.contours()?,
        (false, 2) => picture.image_of_grid()?,
        _ => picture.curves()?,
    };
    let svg = figure.svg();
    if is_stream(&args.output) {
        print(&svg)?;
    } else {
        write_file(&args.output, svg.as_bytes())?;
    }
    Ok(Outcome::Done)
}

/// The inputs along the axes: one or two.
fn axes(args: &args::Plot, model: &NamedModel) -> Result<Vec<usize>> {
    let names = model.inputs();
    let Some(given) = &args.axes else {
        // A map of more than two inputs is drawn along the first; a scalar over the first two.
        let count = if model.is_potential() || model.classes().is_some() || model.dim() == 2 {
            model.dim().min(2)
        } else {
            1
        };
        return Ok((0..count).collect());
    };
    let axes = given
        .iter()
        .map(|name| {
            names
                .iter()
                .position(|n| n == name.trim())
                .or_else(|| name.trim().parse::<usize>().ok().and_then(|k| k.checked_sub(1)))
                .filter(|k| *k < names.len())
                .with_context(|| format!("--axes: no input {name:?}; there are {}", names.join(", ")))
        })
        .collect::<Result<Vec<_>>>()?;
    ensure!(
        axes.len() == 1 || (axes.len() == 2 && axes[0] != axes[1]),
        "--axes: one or two different inputs"
    );
    ensure!(
        axes.len() == 1 || model.is_potential() || model.classes().is_some() || model.dim() == 2,
        "--axes: a map of {} inputs is drawn along one",
        model.dim()
    );
    Ok(axes)
}

fn ranges(
    args: &args::Plot,
    model: &NamedModel,
    axes: &[usize],
    minimum: Option<&[f64]>,
) -> Result<Vec<(f64, f64)>> {
    if let Some(given) = &args.range {
        ensure!(
            given.len() == axes.len(),
            "--range: {} ranges for {} axes",
            given.len(),
            axes.len()
        );
        return given
            .iter()
            .map(|text| {
                let (low, high) = text
                    .split_once(':')
                    .with_context(|| format!("--range {text}: write it as low:high"))?;
                let number = |s: &str| {
                    s.trim()
                        .parse::<f64>()
                        .ok()
                        .filter(|v| v.is_finite())
                        .with_context(|| format!("--range {text}: {s:?} is not a number"))
                };
                let (low, high) = (number(low)?, number(high)?);
                ensure!(low < high, "--range {text}: the first number must be the smaller");
                Ok((low, high))
            })
            .collect();
    }
    let known = model.ranges();
    Ok(axes
        .iter()
        .map(|k| match (&known, minimum) {
            (Some(ranges), _) => ranges[*k],
            (None, Some(x)) => (x[*k] - 2.0, x[*k] + 2.0),
            (None, None) => (-2.0, 2.0),
        })
        .collect())
}

struct Picture<'a> {
    model: &'a NamedModel,
    p: &'a [f64],
    names: &'a [String],
    axes: &'a [usize],
    ranges: &'a [(f64, f64)],
    through: &'a [f64],
    minimum: Option<&'a bilip::Minimum>,
    data: Option<(&'a [f64], Option<&'a [f64]>)>,
}

fn along((low, high): (f64, f64), k: usize, count: usize) -> f64 {
    low + (high - low) * k as f64 / (count - 1) as f64
}

impl Picture<'_> {
    /// Values at points given by their coordinates along the axes.
    fn values(&self, points: &[Vec<f64>]) -> Result<Vec<f64>> {
        let n = self.names.len();
        let mut x = Vec::with_capacity(points.len() * n);
        for point in points {
            let mut row = self.through.to_vec();
            for (axis, value) in self.axes.iter().zip(point) {
                row[*axis] = *value;
            }
            x.extend(row);
        }
        Ok(self.model.evaluate(&x, &self.p.repeat(points.len()))?)
    }

    /// What a slice keeps fixed, for the title.
    fn fixed(&self) -> String {
        let shown = self.axes.len();
        let mut parts: Vec<String> = (0..self.names.len())
            .filter(|k| !self.axes.contains(k))
            .take(3)
            .map(|k| format!("{} = {:.4}", self.names[k], self.through[k]))
            .collect();
        if self.names.len() > shown + 3 {
            parts.push("…".into());
        }
        for (name, value) in self.model.parameter_names().iter().zip(self.p) {
            parts.push(format!("{name} = {value:.4}"));
        }
        match parts.is_empty() {
            true => String::new(),
            false => format!(" at {}", parts.join(", ")),
        }
    }

    /// The value of a scalar, or the uncertainty of a classifier, over two axes.
    fn contours(&self) -> Result<Figure> {
        let points: Vec<Vec<f64>> = (0..GRID * GRID)
            .map(|k| {
                vec![
                    along(self.ranges[0], k % GRID, GRID),
                    along(self.ranges[1], k / GRID, GRID),
                ]
            })
            .collect();
        let targets = self.model.targets();
        // The only one, or the last after the probabilities.
        let target = &targets[targets.len() - 1];
        let values: Vec<f64> = self
            .values(&points)?
            .into_iter()
            .skip(targets.len() - 1)
            .step_by(targets.len())
            .collect();
        let classes = self.model.class_names();
        let [a, b] = [self.axes[0], self.axes[1]];
        let title = format!("{target}{}", self.fixed());
        let mut panel = Panel::new(title, &self.names[a], &self.names[b])
            .x_range(self.ranges[0].0, self.ranges[0].1)
            .y_range(self.ranges[1].0, self.ranges[1].1);
        let all = match classes {
            Some(_) => (0..=10).map(|k| f64::from(k) / 10.0).collect(),
            None => levels(&values, 14),
        };
        panel.push(Mark::contours(values, GRID, all));
        if let (Some(classes), Some((x, Some(y)))) = (&classes, self.data) {
            for (k, class) in classes.iter().enumerate() {
                let rows = x.chunks_exact(self.names.len()).zip(y);
                let points = rows.filter(|(_, y)| **y == k as f64).map(|(r, _)| (r[a], r[b]));
                panel.push(Mark::points(points.collect(), k + 1).labeled(class.clone()));
            }
        } else if let Some((x, _)) = self.data {
            let points = x.chunks_exact(self.names.len()).map(|r| (r[a], r[b])).collect();
            panel.push(Mark::points(points, 7).labeled("data"));
        }
        if let Some(m) = self.minimum {
            let label = format!("minimum {}", (m.value * 1e6).round() / 1e6);
            panel.push(Mark::cross(m.x[a], m.x[b], 1).labeled(label));
        }
        Ok(Figure::new(vec![panel]).panel_size(560.0, 460.0))
    }

    /// Curves of all outputs along the first axis.
    fn curves(&self) -> Result<Figure> {
        let count = 401;
        let points: Vec<Vec<f64>> = (0..count)
            .map(|k| vec![along(self.ranges[0], k, count)])
            .collect();
        let values = self.values(&points)?;
        let targets = self.model.targets();
        let axis = self.axes[0];
        let title = format!("{}{}", targets.join(", "), self.fixed());
        let y_label = if targets.len() == 1 {
            targets[0].as_str()
        } else {
            ""
        };
        let mut panel =
            Panel::new(title, &self.names[axis], y_label).x_range(self.ranges[0].0, self.ranges[0].1);
        if let Some((x, Some(y))) = self.data
            && self.names.len() == 1
        {
            let points = x.iter().copied().zip(y.iter().copied()).collect();
            panel.push(Mark::points(points, 6).labeled("data"));
        }
        for (k, target) in targets.iter().enumerate().take(8) {
            let line = points
                .iter()
                .zip(values.chunks_exact(targets.len()))
                .map(|(x, y)| (x[0], y[k]))
                .collect();
            let mut mark = Mark::line(line, k);
            if targets.len() > 1 {
                mark = mark.labeled(target.clone());
            }
            panel.push(mark);
        }
        if let Some(m) = self.minimum {
            panel.push(Mark::cross(m.x[axis], m.value, 1).labeled("minimum"));
        }
        Ok(Figure::new(vec![panel]).panel_size(560.0, 420.0))
    }

    /// The image of a regular grid under a map of the plane.
    fn image_of_grid(&self) -> Result<Figure> {
        let (lines, fine) = (17, 161);
        let (a, b) = (self.axes[0], self.axes[1]);
        let targets = self.model.targets();
        let mut before = Panel::new("inputs", &self.names[a], &self.names[b]);
        let mut after = Panel::new("outputs", &targets[a], &targets[b]);
        for direction in 0..2 {
            for i in 0..lines {
                let points: Vec<Vec<f64>> = (0..fine)
                    .map(|j| {
                        let (u, v) = (
                            along(self.ranges[direction], i, lines),
                            along(self.ranges[1 - direction], j, fine),
                        );
                        if direction == 0 { vec![u, v] } else { vec![v, u] }
                    })
                    .collect();
                let values = self.values(&points)?;
                let image = values.chunks_exact(2).map(|y| (y[a], y[b])).collect();
                before.push(Mark::line(points.iter().map(|p| (p[0], p[1])).collect(), direction).thin());
                after.push(Mark::line(image, direction).thin());
            }
        }
        Ok(Figure::new(vec![before, after]).panel_size(430.0, 400.0))
    }
}
