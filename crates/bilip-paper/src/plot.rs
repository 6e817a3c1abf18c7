//! Figures as SVG: curves, points and contours in panels.
//!
//! ```
//! use bilip_paper::plot::{Figure, Mark, Panel};
//! let mut panel = Panel::new("a parabola", "x", "f");
//! panel.push(Mark::line((0..=20).map(|k| (k as f64, (k * k) as f64)).collect(), 0).labelled("x²"));
//! let svg = Figure::new(vec![panel]).svg();
//! assert!(svg.starts_with("<svg") && svg.contains("x²"));
//! ```

use std::fmt::Write;

use contour::ContourBuilder;

/// Colours of curves, distinguishable for colour-blind readers (Okabe and Ito).
pub const COLORS: [&str; 8] = [
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f", "#000000",
];

/// Stops of the scale of contours, dark for low values (viridis).
const SCALE: [(f64, f64, f64); 6] = [
    (68.0, 1.0, 84.0),
    (65.0, 68.0, 135.0),
    (42.0, 120.0, 142.0),
    (34.0, 168.0, 132.0),
    (122.0, 209.0, 81.0),
    (253.0, 231.0, 37.0),
];

/// Something drawn in a panel.
#[derive(Clone, Debug)]
pub struct Mark {
    kind: Kind,
    color: String,
    label: Option<String>,
}

#[derive(Clone, Debug)]
enum Kind {
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
    fn new(kind: Kind, color: usize) -> Self {
        Mark {
            kind,
            color: COLORS[color % COLORS.len()].into(),
            label: None,
        }
    }

    /// A curve through points, in the colour of that number. Points that are not finite interrupt it.
    pub fn line(points: Vec<(f64, f64)>, color: usize) -> Self {
        Self::new(
            Kind::Line {
                points,
                width: 1.8,
                dashed: false,
            },
            color,
        )
    }

    /// The same curve, dashed and thin.
    pub fn dashed(mut self) -> Self {
        if let Kind::Line { width, dashed, .. } = &mut self.kind {
            (*width, *dashed) = (1.3, true);
        }
        self
    }

    /// The same curve, as thin as a grid line.
    pub fn thin(mut self) -> Self {
        if let Kind::Line { width, .. } = &mut self.kind {
            *width = 0.8;
        }
        self
    }

    /// Points.
    pub fn points(points: Vec<(f64, f64)>, color: usize) -> Self {
        // Many points are drawn small and light, so that they do not hide what is below.
        let many = points.len() as f64;
        Self::new(
            Kind::Points {
                points,
                radius: (60.0 / many.sqrt()).clamp(0.8, 3.0),
                opacity: (300.0 / many).clamp(0.2, 0.9),
            },
            color,
        )
    }

    /// A cross at one point.
    pub fn cross(x: f64, y: f64, color: usize) -> Self {
        Self::new(Kind::Cross(x, y), color)
    }

    /// Filled contours of values on a regular grid over the whole panel, row by row from the lower edge.
    pub fn contours(values: Vec<f64>, columns: usize, levels: Vec<f64>) -> Self {
        Self::new(
            Kind::Contours {
                values,
                columns,
                levels,
            },
            0,
        )
    }

    /// The mark with an entry in the legend.
    pub fn labelled(mut self, label: impl Into<String>) -> Self {
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
    title: String,
    labels: [String; 2],
    ranges: [Option<(f64, f64)>; 2],
    log: [bool; 2],
    marks: Vec<Mark>,
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
    fn range(&self, axis: usize) -> (f64, f64) {
        let log = self.log[axis];
        let given = self.ranges[axis].filter(|(a, b)| a < b && (!log || *a > 0.0));
        if let Some((a, b)) = given {
            return if log { (a.log10(), b.log10()) } else { (a, b) };
        }
        let pick = |p: &(f64, f64)| if axis == 0 { p.0 } else { p.1 };
        let coordinates = self.marks.iter().flat_map(|mark| match &mark.kind {
            Kind::Line { points, .. } | Kind::Points { points, .. } => points.iter().map(pick).collect(),
            Kind::Cross(x, y) => vec![if axis == 0 { *x } else { *y }],
            Kind::Contours { .. } => Vec::new(),
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
        let (w, h) = self.size;
        let rows = self.panels.len().div_ceil(self.columns);
        let (width, height) = (w * self.columns as f64, h * rows as f64);
        let mut out = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\" font-family=\"DejaVu Sans, Helvetica, Arial, sans-serif\" font-size=\"11\" fill=\"#222\">\n<rect width=\"{width}\" height=\"{height}\" fill=\"#fff\"/>\n"
        );
        for (k, panel) in self.panels.iter().enumerate() {
            let (x, y) = ((k % self.columns) as f64 * w, (k / self.columns) as f64 * h);
            let _ = writeln!(out, "<g transform=\"translate({x},{y})\">");
            draw(&mut out, panel, k, w, h);
            out += "</g>\n";
        }
        out += "</svg>\n";
        out
    }
}

/// Where a panel's coordinates lie on paper.
struct Frame {
    left: f64,
    top: f64,
    width: f64,
    height: f64,
    x: (f64, f64),
    y: (f64, f64),
    log: [bool; 2],
}

impl Frame {
    fn x(&self, v: f64) -> f64 {
        let v = if self.log[0] { v.log10() } else { v };
        self.left + (v - self.x.0) / (self.x.1 - self.x.0) * self.width
    }

    fn y(&self, v: f64) -> f64 {
        let v = if self.log[1] { v.log10() } else { v };
        self.top + self.height - (v - self.y.0) / (self.y.1 - self.y.0) * self.height
    }
}

fn draw(out: &mut String, panel: &Panel, number: usize, w: f64, h: f64) {
    let frame = Frame {
        left: 62.0,
        top: 30.0,
        width: w - 62.0 - 16.0,
        height: h - 30.0 - 46.0,
        x: panel.range(0),
        y: panel.range(1),
        log: panel.log,
    };
    let Frame {
        left,
        top,
        width,
        height,
        ..
    } = frame;
    let _ = writeln!(
        out,
        "<text x=\"{}\" y=\"19\" text-anchor=\"middle\" font-size=\"13\">{}</text>",
        left + width / 2.0,
        escape(&panel.title)
    );
    let _ = writeln!(
        out,
        "<clipPath id=\"panel{number}\"><rect x=\"{left}\" y=\"{top}\" width=\"{width}\" height=\"{height}\"/></clipPath>"
    );
    let filled = panel
        .marks
        .iter()
        .any(|m| matches!(m.kind, Kind::Contours { .. }));
    grid(out, panel, &frame, !filled);
    let _ = writeln!(out, "<g clip-path=\"url(#panel{number})\">");
    for mark in &panel.marks {
        draw_mark(out, mark, &frame);
    }
    out.push_str("</g>\n");
    let _ = writeln!(
        out,
        "<rect x=\"{left}\" y=\"{top}\" width=\"{width}\" height=\"{height}\" fill=\"none\" stroke=\"#444\"/>"
    );
    legend(out, panel, &frame);
}

fn grid(out: &mut String, panel: &Panel, frame: &Frame, lines: bool) {
    let Frame {
        left,
        top,
        width,
        height,
        ..
    } = *frame;
    let bottom = top + height;
    for (tick, text) in ticks(frame.x, panel.log[0], 6) {
        let x = left + (tick - frame.x.0) / (frame.x.1 - frame.x.0) * width;
        if lines {
            let _ = writeln!(
                out,
                "<line x1=\"{x:.2}\" y1=\"{top}\" x2=\"{x:.2}\" y2=\"{bottom}\" stroke=\"#e6e6e6\"/>"
            );
        }
        let _ = writeln!(
            out,
            "<line x1=\"{x:.2}\" y1=\"{bottom}\" x2=\"{x:.2}\" y2=\"{}\" stroke=\"#444\"/><text x=\"{x:.2}\" y=\"{}\" text-anchor=\"middle\">{text}</text>",
            bottom + 4.0,
            bottom + 16.0
        );
    }
    for (tick, text) in ticks(frame.y, panel.log[1], 6) {
        let y = bottom - (tick - frame.y.0) / (frame.y.1 - frame.y.0) * height;
        if lines {
            let _ = writeln!(
                out,
                "<line x1=\"{left}\" y1=\"{y:.2}\" x2=\"{}\" y2=\"{y:.2}\" stroke=\"#e6e6e6\"/>",
                left + width
            );
        }
        let _ = writeln!(
            out,
            "<line x1=\"{}\" y1=\"{y:.2}\" x2=\"{left}\" y2=\"{y:.2}\" stroke=\"#444\"/><text x=\"{}\" y=\"{:.2}\" text-anchor=\"end\">{text}</text>",
            left - 4.0,
            left - 7.0,
            y + 4.0
        );
    }
    let _ = writeln!(
        out,
        "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
        left + width / 2.0,
        bottom + 34.0,
        escape(&panel.labels[0])
    );
    let (x, y) = (14.0, top + height / 2.0);
    let _ = writeln!(
        out,
        "<text x=\"{x}\" y=\"{y}\" text-anchor=\"middle\" transform=\"rotate(-90 {x} {y})\">{}</text>",
        escape(&panel.labels[1])
    );
}

/// Positions (logarithms on a logarithmic axis) and texts of about `count` ticks.
fn ticks((low, high): (f64, f64), log: bool, count: usize) -> Vec<(f64, String)> {
    let span = high - low;
    if !(span > 0.0 && span.is_finite()) {
        return Vec::new();
    }
    let rough = span / count as f64;
    let unit = 10f64.powf(rough.log10().floor());
    let mut step = [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .map(|m| m * unit)
        .find(|s| *s >= rough)
        .unwrap_or(rough);
    if log && span <= 2.5 {
        // Within a decade or two its powers are too few: the 2 and the 5 between them as well.
        let decades = low.floor() as i64..=high.floor() as i64;
        return decades
            .flat_map(|k| [1, 2, 5].map(|m| (k as f64 + f64::from(m).log10(), format!("{m}e{k}"))))
            .filter(|(v, _)| (low..=high).contains(v))
            .collect();
    }
    if log {
        step = step.max(1.0).round();
    }
    let first = (low / step).ceil() as i64;
    let last = (high / step).floor() as i64;
    // Digits that tell neighbouring ticks apart.
    let digits = (-step.log10().floor()).max(0.0) as usize;
    (first..=last)
        .take(50)
        .map(|k| {
            let v = k as f64 * step;
            let text = if log {
                format!("1e{}", v.round() as i64)
            } else if low.abs().max(high.abs()) >= 1e5 || (step < 1e-4) {
                format!("{v:.1e}")
            } else {
                format!("{v:.digits$}")
            };
            (v, text)
        })
        .collect()
}

fn draw_mark(out: &mut String, mark: &Mark, frame: &Frame) {
    let color = &mark.color;
    match &mark.kind {
        Kind::Line {
            points,
            width,
            dashed,
        } => {
            let mut path = String::new();
            let mut open = false;
            for (x, y) in points {
                let (x, y) = (frame.x(*x), frame.y(*y));
                if !x.is_finite() || !y.is_finite() {
                    open = false;
                    continue;
                }
                let _ = write!(path, "{}{x:.2} {y:.2}", if open { "L" } else { "M" });
                open = true;
            }
            let dash = if *dashed { " stroke-dasharray=\"5 4\"" } else { "" };
            let _ = writeln!(
                out,
                "<path d=\"{path}\" fill=\"none\" stroke=\"{color}\" stroke-width=\"{width}\" stroke-linejoin=\"round\"{dash}/>"
            );
        }
        Kind::Points {
            points,
            radius,
            opacity,
        } => {
            let _ = writeln!(out, "<g fill=\"{color}\" fill-opacity=\"{opacity:.2}\">");
            for (x, y) in points {
                let (x, y) = (frame.x(*x), frame.y(*y));
                if x.is_finite() && y.is_finite() {
                    let _ = writeln!(out, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{radius:.1}\"/>");
                }
            }
            out.push_str("</g>\n");
        }
        Kind::Cross(x, y) => {
            let (x, y) = (frame.x(*x), frame.y(*y));
            let shape = format!("M{:.1} {:.1}l10 10m0 -10l-10 10", x - 5.0, y - 5.0);
            let _ = writeln!(
                out,
                "<path d=\"{shape}\" stroke=\"#fff\" stroke-width=\"4.5\" stroke-linecap=\"round\"/><path d=\"{shape}\" stroke=\"{color}\" stroke-width=\"2.2\" stroke-linecap=\"round\"/>"
            );
        }
        Kind::Contours {
            values,
            columns,
            levels,
        } => contours(out, values, *columns, levels, frame),
    }
}

/// Filled bands between levels, with a thin line along each.
fn contours(out: &mut String, values: &[f64], columns: usize, levels: &[f64], frame: &Frame) {
    let rows = values.len() / columns.max(1);
    if rows < 2 || columns < 2 || levels.is_empty() || values.len() != rows * columns {
        return;
    }
    let (bottom, top) = extent(values.iter().copied()).unwrap_or((0.0, 1.0));
    let mut thresholds = levels.to_vec();
    // The first band reaches below everything.
    if bottom <= thresholds[0] {
        thresholds[0] = bottom - (top - bottom).abs().max(1e-12);
    }
    // The last band reaches above everything.
    thresholds.push(top + (top - levels[0]).abs().max(1e-12));
    let Ok(bands) = ContourBuilder::new(columns, rows, true).isobands(values, &thresholds) else {
        return;
    };
    for (k, band) in bands.iter().enumerate() {
        let mut path = String::new();
        for polygon in band.geometry().iter() {
            for ring in std::iter::once(polygon.exterior()).chain(polygon.interiors()) {
                for (i, c) in ring.coords().enumerate() {
                    // Samples lie at half-integers.
                    let x = frame.left + (c.x - 0.5) / (columns - 1) as f64 * frame.width;
                    let y = frame.top + frame.height - (c.y - 0.5) / (rows - 1) as f64 * frame.height;
                    let _ = write!(path, "{}{x:.1} {y:.1}", if i == 0 { "M" } else { "L" });
                }
                path.push('Z');
            }
        }
        let color = scale_color(k as f64 / (levels.len() - 1).max(1) as f64);
        let _ = writeln!(
            out,
            "<path d=\"{path}\" fill=\"{color}\" fill-rule=\"evenodd\" stroke=\"#fff\" stroke-opacity=\"0.35\" stroke-width=\"0.6\"/>"
        );
    }
}

/// A colour of the scale, from 0 to 1.
fn scale_color(t: f64) -> String {
    let at = t.clamp(0.0, 1.0) * (SCALE.len() - 1) as f64;
    let k = (at as usize).min(SCALE.len() - 2);
    let f = at - k as f64;
    let (a, b) = (SCALE[k], SCALE[k + 1]);
    let mix = |a: f64, b: f64| (a + f * (b - a)).round() as u8;
    format!("#{:02x}{:02x}{:02x}", mix(a.0, b.0), mix(a.1, b.1), mix(a.2, b.2))
}

fn legend(out: &mut String, panel: &Panel, frame: &Frame) {
    let entries: Vec<(&Mark, &String)> = panel
        .marks
        .iter()
        .filter_map(|m| m.label.as_ref().map(|l| (m, l)))
        .collect();
    if entries.is_empty() {
        return;
    }
    let longest = entries.iter().map(|(_, l)| l.chars().count()).max().unwrap_or(0);
    let (w, h) = (longest as f64 * 6.9 + 36.0, entries.len() as f64 * 15.0 + 6.0);
    let (x, y) = corner(panel, frame, w, h);
    let _ = writeln!(
        out,
        "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{w:.1}\" height=\"{h:.1}\" fill=\"#fff\" fill-opacity=\"0.85\" stroke=\"#bbb\" rx=\"3\"/>"
    );
    for (k, (mark, label)) in entries.iter().enumerate() {
        let cy = y + 11.0 + 15.0 * k as f64;
        let color = &mark.color;
        let sample = match &mark.kind {
            Kind::Line { dashed, .. } => {
                let dash = if *dashed { " stroke-dasharray=\"5 4\"" } else { "" };
                format!(
                    "<line x1=\"{:.1}\" y1=\"{cy:.1}\" x2=\"{:.1}\" y2=\"{cy:.1}\" stroke=\"{color}\" stroke-width=\"2\"{dash}/>",
                    x + 6.0,
                    x + 24.0
                )
            }
            Kind::Cross(..) => format!(
                "<path d=\"M{:.1} {:.1}l7 7m0 -7l-7 7\" stroke=\"{color}\" stroke-width=\"2\"/>",
                x + 11.5,
                cy - 3.5
            ),
            _ => format!(
                "<circle cx=\"{:.1}\" cy=\"{cy:.1}\" r=\"3\" fill=\"{color}\"/>",
                x + 15.0
            ),
        };
        let _ = writeln!(
            out,
            "{sample}<text x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            x + 29.0,
            cy + 4.0,
            escape(label)
        );
    }
}

/// The corner, or the middle of the right or left side, where a box of that size hides the least; the upper right corner if none is better.
fn corner(panel: &Panel, frame: &Frame, w: f64, h: f64) -> (f64, f64) {
    let (right, left) = (frame.left + frame.width - w - 6.0, frame.left + 6.0);
    let (top, bottom) = (frame.top + 6.0, frame.top + frame.height - h - 6.0);
    let hidden = |(x, y): (f64, f64)| -> f64 {
        panel
            .marks
            .iter()
            .map(|mark| match &mark.kind {
                Kind::Line { points, .. } | Kind::Points { points, .. } => {
                    let inside = points.iter().filter(|(px, py)| {
                        let (px, py) = (frame.x(*px), frame.y(*py));
                        (x..=x + w).contains(&px) && (y..=y + h).contains(&py)
                    });
                    inside.count() as f64 / points.len().max(1) as f64
                }
                _ => 0.0,
            })
            .sum()
    };
    let middle = frame.top + 0.5 * (frame.height - h);
    let corners = [
        (right, top),
        (right, bottom),
        (left, top),
        (left, bottom),
        (right, middle),
        (left, middle),
    ];
    corners
        .into_iter()
        .min_by(|a, b| hidden(*a).total_cmp(&hidden(*b)))
        .unwrap_or(corners[0])
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_inside() {
        for (low, high) in [(-2.0, 2.0), (0.13, 0.19), (1e6, 3e6), (-1e-6, 1e-6)] {
            let t = ticks((low, high), false, 6);
            assert!((3..=8).contains(&t.len()), "{low} {high}: {t:?}");
            assert!(t.iter().all(|(v, _)| *v >= low - 1e-12 && *v <= high + 1e-12));
            let mut texts: Vec<_> = t.iter().map(|(_, s)| s).collect();
            texts.dedup();
            assert_eq!(texts.len(), t.len(), "texts repeat: {t:?}");
        }
        assert!(ticks((0.0, 0.0), false, 6).is_empty());
        assert!(ticks((-8.0, 1.0), true, 6).iter().all(|(v, _)| v.fract() == 0.0));
    }

    #[test]
    fn a_figure_is_well_formed_whatever_it_shows() {
        let mut odd = Panel::new("a < b & \"c\"", "x", "y").y_log();
        odd.push(Mark::line(vec![(0.0, 1.0), (1.0, f64::NAN), (2.0, 1e-9), (3.0, 0.0)], 3).labelled("<p>"));
        odd.push(Mark::points(vec![], 1));
        let mut bowl = Panel::new("bowl", "x", "y").x_range(-1.0, 1.0).y_range(-1.0, 1.0);
        let values: Vec<f64> = (0..2_500)
            .map(|k| ((k % 50) as f64 / 24.5 - 1.0).powi(2) + ((k / 50) as f64 / 24.5 - 1.0).powi(2))
            .collect();
        let all = levels(&values, 9);
        assert!(all.windows(2).all(|w| w[0] < w[1]));
        bowl.push(Mark::contours(values, 50, all));
        bowl.push(Mark::cross(0.0, 0.0, 1).labelled("minimum"));
        let svg = Figure::new(vec![odd, bowl, Panel::new("empty", "", "")])
            .columns(2)
            .panel_size(300.0, 250.0)
            .svg();
        assert!(!svg.contains("NaN") && !svg.contains("inf"));
        assert!(svg.contains("a &lt; b &amp; &quot;c&quot;") && svg.contains("&lt;p&gt;"));
        assert_eq!(svg.matches("<g ").count(), svg.matches("</g>").count());
        assert!(svg.contains("width=\"600\"") && svg.contains("height=\"500\""));
        // The lowest level set of the bowl is around its middle.
        assert!(svg.matches("evenodd").count() == 9);
    }

    #[test]
    fn a_short_logarithmic_axis_has_ticks_between_the_decades() {
        let texts = |range| -> Vec<String> { ticks(range, true, 6).into_iter().map(|t| t.1).collect() };
        assert_eq!(texts((-2.8, -1.6)), ["2e-3", "5e-3", "1e-2", "2e-2"]);
        assert_eq!(texts((0.0, 3.0)), ["1e0", "1e1", "1e2", "1e3"]);
    }
}
