//! Filled contours as a small image of few colors: a tenth to a hundredth of the size of paths.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

/// Stops of the color scale, dark for low values (viridis).
const SCALE: [(f64, f64, f64); 6] = [
    (68.0, 1.0, 84.0),
    (65.0, 68.0, 135.0),
    (42.0, 120.0, 142.0),
    (34.0, 168.0, 132.0),
    (122.0, 209.0, 81.0),
    (253.0, 231.0, 37.0),
];

/// Pixels per unit of the SVG.
const ZOOM: f64 = 1.5;

/// The bands between levels of values on a grid, row by row from the bottom, as a PNG that fills a
/// frame of a size in units of the SVG; as a `data:` address. `None` when there is nothing to draw.
///
/// Values are interpolated bilinearly; band k is that of values from level k on. Pixels without a
/// value are left out.
pub(crate) fn image(
    values: &[f64],
    columns: usize,
    levels: &[f64],
    (width, height): (f64, f64),
) -> Option<String> {
    let rows = values.len() / columns.max(1);
    if rows < 2 || columns < 2 || levels.is_empty() || levels.len() > 254 || values.len() != rows * columns {
        return None;
    }
    let (w, h) = ((width * ZOOM).round() as usize, (height * ZOOM).round() as usize);
    if w < 2 || h < 2 {
        return None;
    }
    let mut pixels = Vec::with_capacity(w * h);
    for i in 0..h {
        // The first row of an image is its top.
        let (low, share_y) = place((h - 1 - i) as f64 / (h - 1) as f64, rows);
        for j in 0..w {
            let (left, share_x) = place(j as f64 / (w - 1) as f64, columns);
            let at = |r: usize, c: usize| values[(low + r) * columns + left + c];
            let below = at(0, 0) * (1.0 - share_x) + at(0, 1) * share_x;
            let above = at(1, 0) * (1.0 - share_x) + at(1, 1) * share_x;
            let value = below * (1.0 - share_y) + above * share_y;
            pixels.push(match value.is_finite() {
                true => (levels.partition_point(|l| *l <= value).max(1)) as u8,
                false => 0,
            });
        }
    }
    let mut palette = vec![255u8; 3];
    for k in 0..levels.len() {
        palette.extend(color(k as f64 / (levels.len() - 1).max(1) as f64));
    }
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, w as u32, h as u32);
    encoder.set_color(png::ColorType::Indexed);
    encoder.set_depth(png::BitDepth::Eight);
    encoder.set_palette(palette);
    // Color 0 is no color.
    encoder.set_trns(vec![0u8]);
    encoder.set_compression(png::Compression::High);
    encoder.set_filter(png::Filter::NoFilter);
    encoder.write_header().ok()?.write_image_data(&pixels).ok()?;
    Some(format!("data:image/png;base64,{}", STANDARD.encode(bytes)))
}

/// The cell of `count` samples that a position from 0 to 1 is in, and how far along it.
fn place(position: f64, count: usize) -> (usize, f64) {
    let at = position * (count - 1) as f64;
    let cell = (at as usize).min(count - 2);
    (cell, at - cell as f64)
}

/// A color of the scale, from 0 to 1.
fn color(t: f64) -> [u8; 3] {
    let at = t.clamp(0.0, 1.0) * (SCALE.len() - 1) as f64;
    let k = (at as usize).min(SCALE.len() - 2);
    let (share, a, b) = (at - k as f64, SCALE[k], SCALE[k + 1]);
    let mix = |a: f64, b: f64| (a + share * (b - a)).round() as u8;
    [mix(a.0, b.0), mix(a.1, b.1), mix(a.2, b.2)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bands_are_where_their_values_are() {
        // A ramp from left to right, and a hole.
        let mut values: Vec<f64> = (0..30 * 20).map(|k| (k % 30) as f64).collect();
        values[10 * 30 + 25] = f64::NAN;
        let address = image(&values, 30, &[0.0, 10.0, 20.0], (60.0, 40.0)).unwrap();
        let bytes = STANDARD
            .decode(address.strip_prefix("data:image/png;base64,").unwrap())
            .unwrap();
        let mut reader = png::Decoder::new(std::io::Cursor::new(bytes))
            .read_info()
            .unwrap();
        let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
        let info = reader.next_frame(&mut pixels).unwrap();
        assert_eq!((info.width, info.height), (90, 60));
        let row = &pixels[..90];
        assert!(row.is_sorted() && row[0] == 1 && row[45] == 2 && row[89] == 3);
        assert!(pixels.contains(&0));
        assert_eq!((color(0.0), color(1.0)), ([68, 1, 84], [253, 231, 37]));
        assert!(image(&values, 30, &[], (60.0, 40.0)).is_none());
        assert!(image(&values[..7], 30, &[1.0], (60.0, 40.0)).is_none());
    }
}
