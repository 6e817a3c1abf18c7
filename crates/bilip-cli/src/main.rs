//! The `bilip` program: from a table to a certified minimum, in one command each.

mod answer;
mod apply;
mod args;
mod bench;
#[cfg(feature = "repro")]
mod data;
mod describe;
mod export;
mod fit;
mod fit_report;
mod fit_table;
mod import;
mod limits;
mod memory;
mod model;
mod plot;
#[cfg(feature = "repro")]
mod repro;
mod table;
mod text;

use std::process::ExitCode;

use clap::{CommandFactory, Parser};

use args::{Cli, Command};

/// How a command that ran to its end came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// As asked.
    Done,
    /// The guarantee or the tolerance asked for is not met.
    NotMet,
}

fn main() -> ExitCode {
    memory::keep();
    let command = Cli::parse().command;
    // Made here, so that a pool that cannot be made is a message and not a panic somewhere.
    if let Err(error) = rayon::ThreadPoolBuilder::new().build_global() {
        eprintln!("error: threads: {error}; set RAYON_NUM_THREADS to fewer");
        return ExitCode::from(2);
    }
    let result = match command {
        Command::Fit(args) => fit::run(&args),
        Command::Eval(args) => apply::eval(&args),
        Command::Invert(args) => apply::invert(&args),
        Command::Minimize(args) => apply::minimize(&args),
        Command::Certify(args) => describe::certify(&args),
        Command::Inspect(args) => describe::inspect(&args),
        Command::Plot(args) => plot::run(&args),
        Command::Import(args) => import::run(&args),
        Command::Export(args) => export::run(&args),
        Command::Bench(args) => bench::run(&args),
        #[cfg(feature = "repro")]
        Command::Repro(args) => repro::run(&args),
        #[cfg(feature = "repro")]
        Command::Data(args) => data::run(&args),
        Command::Completions { shell } => completions(shell),
        Command::Man { command } => man(command.as_deref()),
    };
    match result {
        Ok(Outcome::Done) => ExitCode::SUCCESS,
        Ok(Outcome::NotMet) => ExitCode::from(1),
        Err(error) => {
            // The causes on one line, each once.
            let mut text = String::new();
            for cause in error.chain() {
                let cause = cause.to_string();
                if !text.ends_with(&cause) {
                    if !text.is_empty() {
                        text += ": ";
                    }
                    text += &cause;
                }
            }
            eprintln!("error: {}", text::shown(&text));
            ExitCode::from(2)
        }
    }
}

fn completions(shell: clap_complete::Shell) -> anyhow::Result<Outcome> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "bilip", &mut text);
    text::print(&String::from_utf8_lossy(&text))?;
    Ok(Outcome::Done)
}

fn man(command: Option<&str>) -> anyhow::Result<Outcome> {
    let mut program = Cli::command();
    program.build();
    let page = match command {
        None => program,
        Some(name) => program
            .find_subcommand(name)
            .cloned()
            .ok_or_else(|| anyhow::anyhow!("there is no command {name:?}; see bilip --help"))?,
    };
    let mut text = Vec::new();
    clap_mangen::Man::new(page).render(&mut text)?;
    text::print(&String::from_utf8_lossy(&text))?;
    Ok(Outcome::Done)
}
