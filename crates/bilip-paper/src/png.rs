//! PNG from SVG, with a font that travels along: the same picture on every machine.

use resvg::{tiny_skia, usvg};

use crate::error::{Error, Result};

/// Pixels for every unit of the SVG: sharp on good screens.
const ZOOM: f32 = 2.0;

/// The picture of an SVG document.
///
/// # Errors
/// When the document is none.
pub fn render(svg: &str) -> Result<Vec<u8>> {
    let fail = |e: &dyn std::fmt::Display| Error::config("picture", e.to_string());
    let mut options = usvg::Options::default();
    let fonts = options.fontdb_mut();
    fonts.load_font_data(epaint_default_fonts::UBUNTU_LIGHT.to_vec());
    fonts.load_font_data(epaint_default_fonts::HACK_REGULAR.to_vec());
    // Whatever family the document asks for, this one is there.
    let family = fonts
        .faces()
        .next()
        .and_then(|f| f.families.first().map(|(name, _)| name.clone()))
        .unwrap_or_default();
    fonts.set_sans_serif_family(&family);
    options.font_family = family;
    let tree = usvg::Tree::from_str(svg, &options).map_err(|e| fail(&e))?;
    let size = tree.size();
    let mut pixels = tiny_skia::Pixmap::new((size.width() * ZOOM) as u32, (size.height() * ZOOM) as u32)
        .ok_or_else(|| fail(&"no size"))?;
    resvg::render(
        &tree,
        tiny_skia::Transform::from_scale(ZOOM, ZOOM),
        &mut pixels.as_mut(),
    );
    pixels.encode_png().map_err(|e| fail(&e))
}

#[cfg(test)]
mod tests {
    #[test]
    fn text_is_drawn_without_any_font_installed() {
        let with = r##"<svg xmlns="http://www.w3.org/2000/svg" width="60" height="20" font-family="Nowhere, sans-serif"><rect width="60" height="20" fill="#fff"/><text x="5" y="15">bilip τ</text></svg>"##;
        let without = with.replace("bilip τ", "");
        let (a, b) = (super::render(with).unwrap(), super::render(&without).unwrap());
        assert!(a.starts_with(b"\x89PNG") && a.len() > b.len() + 100);
        assert!(super::render("not a picture").is_err());
    }
}
