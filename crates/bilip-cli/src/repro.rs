//! `repro`: the paper's experiments.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use bilip_burn::Device;
use bilip_paper::{EXPERIMENTS, Experiment, Job, JobResult, Settings};

use crate::Outcome;
use crate::args;
use crate::text::print;

pub fn run(args: &args::Repro) -> Result<Outcome> {
    ensure!(args.jobs > 0, "--jobs 0: must be at least 1");
    if args.name == "report" {
        let folder = args.out.clone().unwrap_or_else(|| PathBuf::from("results"));
        let count = bilip_paper::report(&folder)?;
        print(&format!(
            "{count} experiments in {}\n",
            folder.join("report.html").display()
        ))?;
        return Ok(Outcome::Done);
    }
    let names: Vec<&str> = match args.name.as_str() {
        // Images need files that are not everybody's.
        "all" if args.data.is_none() && !args.quick => {
            eprintln!("without cifar10, which needs --data; see bilip data --help");
            EXPERIMENTS.into_iter().filter(|n| *n != "cifar10").collect()
        }
        "all" => EXPERIMENTS.to_vec(),
        name => vec![name],
    };
    ensure!(
        args.config.is_none() || names.len() == 1,
        "--config: belongs to one experiment, not to all"
    );
    for name in names {
        let out = match (&args.out, args.name.as_str()) {
            (None, _) if args.quick => Path::new("results-quick").join(name),
            (None, _) => Path::new("results").join(name),
            (Some(folder), "all") => folder.join(name),
            (Some(folder), _) => folder.clone(),
        };
        let experiment = bilip_paper::experiment(
            name,
            Settings {
                seeds: args.seeds,
                out: out.clone(),
                quick: args.quick,
                config: args.config.clone(),
                filter: args.only.clone(),
                c: args.c,
                epochs: args.epochs,
                width: args.width,
                progress: args.jobs == 1 && args.job.is_none(),
                command: command_line(args, name, &out),
                device: args.device,
                data: args.data.clone(),
            },
        )?;
        if let Some(id) = &args.job {
            let job = experiment
                .jobs()
                .into_iter()
                .find(|j| j.id() == *id)
                .with_context(|| format!("--job {id}: there is none of that name"))?;
            args.device.check()?;
            experiment.run(&job)?;
            continue;
        }
        run_jobs(args, name, &out, &experiment)?;
        let result = experiment.collect()?;
        print(&format!(
            "{name}: {} runs, {:.0} s, written to {}\n",
            result.runs.len(),
            result.seconds,
            out.display()
        ))?;
    }
    Ok(Outcome::Done)
}

/// The command for the record, without what does not matter: results hold all runs on file,
/// whichever were made last.
fn command_line(args: &args::Repro, name: &str, out: &Path) -> String {
    let mut text = format!("bilip repro {name} --seeds {}", args.seeds);
    if args.quick {
        text += " --quick";
    }
    if let Some(epochs) = args.epochs {
        text += &format!(" --epochs {epochs}");
    }
    if let Some(width) = args.width {
        text += &format!(" --width {width}");
    }
    if args.device != Device::Cpu {
        text += &format!(" --device {}", args.device);
    }
    if let Some(config) = &args.config {
        text += &format!(" --config {}", config.display());
    }
    if args.out.is_some() && out != Path::new("results").join(name) {
        text += &format!(" --out {}", out.display());
    }
    text
}

fn describe(job: &Job, result: &JobResult, done: usize, count: usize) -> String {
    let loss = ["loss", "grid_loss", "test_loss"]
        .iter()
        .find_map(|m| result.metrics.get(*m).map(|v| format!(", {m} {v:.3e}")));
    let accuracy = (result.metrics.get("accuracy")).map(|v| format!(", accuracy {v:.4}"));
    let shown = loss.or(accuracy).unwrap_or_default();
    format!(
        "[{done}/{count}] {} seed {}: {:.0} s{shown}",
        job.model.name, job.seed, result.seconds
    )
}

/// Runs what has not been run yet, here or in as many processes as asked for.
fn run_jobs(args: &args::Repro, name: &str, out: &Path, experiment: &Experiment) -> Result<()> {
    let jobs = experiment.jobs();
    let count = jobs.len();
    let (finished, mut waiting): (Vec<Job>, Vec<Job>) =
        jobs.into_iter().partition(|j| experiment.finished(j).is_some());
    let mut done = finished.len();
    if done > 0 {
        eprintln!(
            "{name}: {done} of {count} runs are there already, in {}",
            out.display()
        );
    }
    if !waiting.is_empty() {
        // What is there can be gathered without the device it came from.
        args.device.check()?;
    }
    if args.jobs == 1 {
        for job in waiting {
            let result = experiment.run(&job)?;
            done += 1;
            eprintln!("{}", describe(&job, &result, done, count));
        }
        return Ok(());
    }
    let program = std::env::current_exe().context("the program itself")?;
    let mut running: Vec<(Job, Child)> = Vec::new();
    let clock = Instant::now();
    // Longest first would be best; the configuration's order is the best guess at hand.
    waiting.reverse();
    while !waiting.is_empty() || !running.is_empty() {
        while running.len() < args.jobs
            && let Some(job) = waiting.pop()
        {
            let mut command = Command::new(&program);
            command.args([
                "repro",
                name,
                "--job",
                &job.id(),
                "--seeds",
                &args.seeds.to_string(),
            ]);
            command.arg("--out").arg(out);
            command.args(["--device", &args.device.to_string()]);
            if args.quick {
                command.arg("--quick");
            }
            if let Some(epochs) = args.epochs {
                command.args(["--epochs", &epochs.to_string()]);
            }
            if let Some(width) = args.width {
                command.args(["--width", &width.to_string()]);
            }
            if let Some(config) = &args.config {
                command.arg("--config").arg(config);
            }
            if let Some(data) = &args.data {
                command.arg("--data").arg(data);
            }
            let child = command
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::piped())
                .spawn()
                .context("a run in a process of its own")?;
            running.push((job, child));
        }
        let mut still = Vec::new();
        for (job, mut child) in running {
            match child.try_wait().context("a run in a process of its own")? {
                None => still.push((job, child)),
                Some(status) if status.success() => {
                    done += 1;
                    if let Some(result) = experiment.finished(&job) {
                        eprintln!(
                            "{} ({:.0} s in all)",
                            describe(&job, &result, done, count),
                            clock.elapsed().as_secs_f64()
                        );
                    }
                }
                Some(status) => {
                    let output = child
                        .wait_with_output()
                        .context("a run in a process of its own")?;
                    for (_, other) in &mut still {
                        // The others are lost with us; what they have checkpointed is not.
                        let _ = other.kill();
                    }
                    bail!(
                        "{}: {status}: {}",
                        job.id(),
                        String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; ")
                    );
                }
            }
        }
        running = still;
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}
