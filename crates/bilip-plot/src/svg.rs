//! Figures as SVG documents.

use std::fmt::Write;

use crate::contours;
use crate::figure::{Mark, Panel, Shape};

/// Panels beside and below each other.
pub(crate) fn document(panels: &[Panel], columns: usize, (w, h): (f64, f64)) -> String {
    let rows = panels.len().div_ceil(columns);
    let (width, height) = (w * columns as f64, h * rows as f64);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\" font-family=\"DejaVu Sans, Helvetica, Arial, sans-serif\" font-size=\"11\" fill=\"#222\">\n<rect width=\"{width}\" height=\"{height}\" fill=\"#fff\"/>\n"
    );
    for (k, panel) in panels.iter().enumerate() {
        let (x, y) = ((k % columns) as f64 * w, (k / columns) as f64 * h);
        let _ = writeln!(out, "<g transform=\"translate({x},{y})\">");
        draw(&mut out, panel, k, w, h);
        out += "</g>\n";
    }
    out += "</svg>\n";
    out
}

/// Where a panel's coordinates are on paper.
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
        .any(|m| matches!(m.shape, Shape::Contours { .. }));
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
    // Digits that tell neighboring ticks apart.
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
    match &mark.shape {
        Shape::Line {
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
        Shape::Points {
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
        Shape::Cross(x, y) => {
            let (x, y) = (frame.x(*x), frame.y(*y));
            let shape = format!("M{:.1} {:.1}l10 10m0 -10l-10 10", x - 5.0, y - 5.0);
            let _ = writeln!(
                out,
                "<path d=\"{shape}\" stroke=\"#fff\" stroke-width=\"4.5\" stroke-linecap=\"round\"/><path d=\"{shape}\" stroke=\"{color}\" stroke-width=\"2.2\" stroke-linecap=\"round\"/>"
            );
        }
        Shape::Contours {
            values,
            columns,
            levels,
        } => contours(out, values, *columns, levels, frame),
    }
}

fn contours(out: &mut String, values: &[f64], columns: usize, levels: &[f64], frame: &Frame) {
    let Frame {
        left,
        top,
        width,
        height,
        ..
    } = *frame;
    if let Some(image) = contours::image(values, columns, levels, (width, height)) {
        let _ = writeln!(
            out,
            "<image x=\"{left}\" y=\"{top}\" width=\"{width}\" height=\"{height}\" preserveAspectRatio=\"none\" href=\"{image}\"/>"
        );
    }
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
        let sample = match &mark.shape {
            Shape::Line { dashed, .. } => {
                let dash = if *dashed { " stroke-dasharray=\"5 4\"" } else { "" };
                format!(
                    "<line x1=\"{:.1}\" y1=\"{cy:.1}\" x2=\"{:.1}\" y2=\"{cy:.1}\" stroke=\"{color}\" stroke-width=\"2\"{dash}/>",
                    x + 6.0,
                    x + 24.0
                )
            }
            Shape::Cross(..) => format!(
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

/// The corner, or the middle of the right or left side, where a box of that size hides the least;
/// the upper right corner if none is better.
fn corner(panel: &Panel, frame: &Frame, w: f64, h: f64) -> (f64, f64) {
    let (right, left) = (frame.left + frame.width - w - 6.0, frame.left + 6.0);
    let (top, bottom) = (frame.top + 6.0, frame.top + frame.height - h - 6.0);
    let hidden = |(x, y): (f64, f64)| -> f64 {
        panel
            .marks
            .iter()
            .map(|mark| match &mark.shape {
                Shape::Line { points, .. } | Shape::Points { points, .. } => {
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
    use crate::figure::{Figure, levels};

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
        odd.push(Mark::line(vec![(0.0, 1.0), (1.0, f64::NAN), (2.0, 1e-9), (3.0, 0.0)], 3).labeled("<p>"));
        odd.push(Mark::points(vec![], 1));
        let mut bowl = Panel::new("bowl", "x", "y").x_range(-1.0, 1.0).y_range(-1.0, 1.0);
        let values: Vec<f64> = (0..2_500)
            .map(|k| ((k % 50) as f64 / 24.5 - 1.0).powi(2) + ((k / 50) as f64 / 24.5 - 1.0).powi(2))
            .collect();
        let all = levels(&values, 9);
        assert!(all.windows(2).all(|w| w[0] < w[1]));
        bowl.push(Mark::contours(values, 50, all));
        bowl.push(Mark::cross(0.0, 0.0, 1).labeled("minimum"));
        let svg = Figure::new(vec![odd, bowl, Panel::new("empty", "", "")])
            .columns(2)
            .panel_size(300.0, 250.0)
            .svg();
        assert!(!svg.contains("NaN") && !svg.contains("inf"));
        assert!(svg.contains("a &lt; b &amp; &quot;c&quot;") && svg.contains("&lt;p&gt;"));
        assert_eq!(svg.matches("<g ").count(), svg.matches("</g>").count());
        assert!(svg.contains("width=\"600\"") && svg.contains("height=\"500\""));
        assert_eq!(svg.matches("<image").count(), 1);
    }

    #[test]
    fn a_short_logarithmic_axis_has_ticks_between_the_decades() {
        let texts = |range| -> Vec<String> { ticks(range, true, 6).into_iter().map(|t| t.1).collect() };
        assert_eq!(texts((-2.8, -1.6)), ["2e-3", "5e-3", "1e-2", "2e-2"]);
        assert_eq!(texts((0.0, 3.0)), ["1e0", "1e1", "1e2", "1e3"]);
    }
}
