//! What a figure is made of.

use crate::svg;

/// Colors of curves, distinguishable for color-blind readers (Okabe and Ito).
pub const COLORS: [&str; 8] = [
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f", "#000000",
];

/// Something drawn in a panel.
#[derive(Clone, Debug)]
pub struct Mark {
    pub(crate) shape: Shape,
    pub(crate) color: String,
    pub(crate) label: Option<String>,
}

#[derive(Clone, Debug)]
pub(crate) enum Shape {
    Line {
        points: Vec<(f64, f64)>,
        width: f64,
        dashed: bool,
    },
    Points {
        points: Vec<(f64, f64)>,
        radius: f64,
        opacity: f64,
    },
    Cross(f64, f64),
    Contours {
        values: Vec<f64>,
        columns: usize,
        levels: Vec<f64>,
    },
}

impl Mark {
    fn new(shape: Shape, color: usize) -> Self {
        Mark {
            shape,
            color: COLORS[color % COLORS.len()].into(),
            label: None,
        }
    }

    /// A curve through points, in the color of that number. Points that are not finite interrupt
    /// it.
    pub fn line(points: Vec<(f64, f64)>, color: usize) -> Self {
        Self::new(
            Shape::Line {
                points,
                width: 1.8,
                dashed: false,
            },
            color,
        )
    }

    /// The same curve, dashed and thin.
    pub fn dashed(mut self) -> Self {
        if let Shape::Line { width, dashed, .. } = &mut self.shape {
            (*width, *dashed) = (1.3, true);
        }
        self
    }

    /// The same curve, as thin as a grid line.
    pub fn thin(mut self) -> Self {
        if let Shape::Line { width, .. } = &mut self.shape {
            *width = 0.8;
        }
        self
    }

    /// Points.
    pub fn points(points: Vec<(f64, f64)>, color: usize) -> Self {
        // Many points are drawn small and light, so that they do not hide what is below.
        let many = points.len() as f64;
        Self::new(
            Shape::Points {
                points,
                radius: (60.0 / many.sqrt()).clamp(0.8, 3.0),
                opacity: (300.0 / many).clamp(0.2, 0.9),
            },
            color,
        )
    }

    /// A cross at one point.
    pub fn cross(x: f64, y: f64, color: usize) -> Self {
        Self::new(Shape::Cross(x, y), color)
    }

    /// Filled contours of values on a regular grid over the whole panel, row by row from the lower
    /// edge.
    pub fn contours(values: Vec<f64>, columns: usize, levels: Vec<f64>) -> Self {
        Self::new(
            Shape::Contours {
                values,
                columns,
                levels,
            },
            0,
        )
    }

    /// The mark with an entry in the legend.
    pub fn labeled(mut self, label: impl Into<String>) -> Self {
        self.label = Some(label.into());
        self
    }
}

/// Levels of contours for values that rise steeply from a flat bottom: dense below, sparse above.
pub fn levels(values: &[f64], count: usize) -> Vec<f64> {
    let (low, high) = extent(values.iter().copied()).unwrap_or((0.0, 1.0));
    (0..count)
        .map(|k| low + (high - low) * (k as f64 / count as f64).powi(3))
        .collect()
}

/// One coordinate system with what is drawn in it.
#[derive(Clone, Debug)]
pub struct Panel {
    pub(crate) title: String,
    pub(crate) labels: [String; 2],
    pub(crate) ranges: [Option<(f64, f64)>; 2],
    pub(crate) log: [bool; 2],
    pub(crate) marks: Vec<Mark>,
}

impl Panel {
    /// An empty panel with its title and the names of its axes.
    pub fn new(title: impl Into<String>, x: impl Into<String>, y: impl Into<String>) -> Self {
        Panel {
            title: title.into(),
            labels: [x.into(), y.into()],
            ranges: [None, None],
            log: [false, false],
            marks: Vec::new(),
        }
    }

    /// Fixes the range of x, which is otherwise that of the marks.
    pub fn x_range(mut self, low: f64, high: f64) -> Self {
        self.ranges[0] = Some((low, high));
        self
    }

    /// Fixes the range of y.
    pub fn y_range(mut self, low: f64, high: f64) -> Self {
        self.ranges[1] = Some((low, high));
        self
    }

    /// Makes the axis of x logarithmic.
    pub fn x_log(mut self) -> Self {
        self.log[0] = true;
        self
    }

    /// Makes the axis of y logarithmic.
    pub fn y_log(mut self) -> Self {
        self.log[1] = true;
        self
    }

    /// Draws something on top of what is there.
    pub fn push(&mut self, mark: Mark) -> &mut Self {
        self.marks.push(mark);
        self
    }

    /// The range of an axis: as given, or around all marks with a little room.
    pub(crate) fn range(&self, axis: usize) -> (f64, f64) {
        let log = self.log[axis];
        let given = self.ranges[axis].filter(|(a, b)| a < b && (!log || *a > 0.0));
        if let Some((a, b)) = given {
            return if log { (a.log10(), b.log10()) } else { (a, b) };
        }
        let pick = |p: &(f64, f64)| if axis == 0 { p.0 } else { p.1 };
        let coordinates = self.marks.iter().flat_map(|mark| match &mark.shape {
            Shape::Line { points, .. } | Shape::Points { points, .. } => points.iter().map(pick).collect(),
            Shape::Cross(x, y) => vec![if axis == 0 { *x } else { *y }],
            Shape::Contours { .. } => Vec::new(),
        });
        let (low, high) = extent(coordinates.map(|v| if log { v.log10() } else { v })).unwrap_or((0.0, 1.0));
        let room = 0.04 * (high - low).max(1e-9 * high.abs().max(1.0));
        (low - room, high + room)
    }
}

/// The smallest and the largest of the finite numbers.
fn extent(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    values
        .filter(|v| v.is_finite())
        .fold(None, |range, v| match range {
            None => Some((v, v)),
            Some((a, b)) => Some((a.min(v), b.max(v))),
        })
}

/// Panels beside and below each other.
#[derive(Clone, Debug)]
pub struct Figure {
    panels: Vec<Panel>,
    columns: usize,
    size: (f64, f64),
}

impl Figure {
    /// A figure of panels, up to three in a row.
    pub fn new(panels: Vec<Panel>) -> Self {
        let columns = panels.len().clamp(1, 3);
        Figure {
            panels,
            columns,
            size: (400.0, 330.0),
        }
    }

    /// Sets the number of panels in a row.
    pub fn columns(mut self, columns: usize) -> Self {
        self.columns = columns.max(1);
        self
    }

    /// Sets the size of a panel in pixels.
    pub fn panel_size(mut self, width: f64, height: f64) -> Self {
        self.size = (width, height);
        self
    }

    /// The figure as a self-contained SVG document.
    pub fn svg(&self) -> String {
        svg::document(&self.panels, self.columns, self.size)
    }
}
