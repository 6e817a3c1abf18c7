//! Running the program on files in a folder of its own.
#![allow(dead_code)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Mutex;

pub struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    pub fn new() -> Self {
        Place {
            folder: tempfile::tempdir().unwrap(),
        }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, bytes).unwrap();
        path
    }

    pub fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap()
    }

    pub fn exists(&self, name: &str) -> bool {
        self.path(name).exists()
    }

    /// Names of everything in the folder, sorted.
    pub fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = std::fs::read_dir(self.folder.path())
            .unwrap()
            .map(|e| e.unwrap().file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }

    pub fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_bilip"));
        command.current_dir(self.folder.path());
        command
    }

    pub fn run(&self, arguments: &str) -> Run {
        self.run_with(arguments, "")
    }

    pub fn run_with(&self, arguments: &str, input: &str) -> Run {
        use std::io::Write;
        let mut child = self
            .command()
            .args(arguments.split_whitespace())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // A program that does not read its input may have gone already.
        let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
        Run::from(child.wait_with_output().unwrap())
    }

    /// Runs, and expects success.
    pub fn ok(&self, arguments: &str) -> String {
        let run = self.run(arguments);
        assert_eq!(run.code, 0, "bilip {arguments}\n{}", run.stderr);
        run.stdout
    }

    pub fn json(&self, arguments: &str) -> serde_json::Value {
        serde_json::from_str(&self.ok(arguments)).unwrap()
    }

    /// The columns of a CSV file with a header.
    pub fn csv(&self, name: &str) -> (Vec<String>, Vec<Vec<f64>>) {
        parse_csv(&self.read(name))
    }
}

pub fn parse_csv(text: &str) -> (Vec<String>, Vec<Vec<f64>>) {
    let mut lines = text.lines();
    let header = lines.next().unwrap().split(',').map(str::to_string).collect();
    let rows = lines
        .map(|l| l.split(',').map(|c| c.parse().unwrap()).collect())
        .collect();
    (header, rows)
}

pub struct Run {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl From<Output> for Run {
    fn from(output: Output) -> Self {
        Run {
            code: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

/// A file of the repository.
pub fn repository(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(name)
}

/// Options of a fit that takes no time.
pub const QUICK: &str = "--hidden 8,8 --epochs 3 --batch 50";

/// A Python with the packages that tests compare with, made once beside the build.
pub fn python() -> PathBuf {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _guard = ONE_AT_A_TIME.lock();
    let folder = repository("target/python-env");
    let python = folder.join("bin/python");
    let works = Command::new(&python)
        .args(["-c", "import onnxruntime, numpy, sklearn, calibration"])
        .output()
        .is_ok_and(|o| o.status.success());
    if works {
        return python;
    }
    let run = |program: &str, arguments: &[&str]| {
        let output = Command::new(program).args(arguments).output();
        let output = output.unwrap_or_else(|e| panic!("{program}: {e}; this test needs Python 3 with venv"));
        assert!(
            output.status.success(),
            "{program} {arguments:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    };
    run(
        "python3",
        &["-m", "venv", "--clear", &folder.display().to_string()],
    );
    let packages = repository("crates/bilip-cli/tests/requirements.txt");
    run(
        &python.display().to_string(),
        &[
            "-m",
            "pip",
            "install",
            "--quiet",
            "-r",
            &packages.display().to_string(),
        ],
    );
    python
}

/// What a Python script prints, given files.
pub fn run_python(script: &Path, arguments: &[PathBuf]) -> String {
    let output = Command::new(python())
        .arg(script)
        .args(arguments)
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}: {}",
        script.display(),
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}
