//! How far a run is: a bar on a terminal, a line now and then in a log.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{HumanDuration, ProgressBar, ProgressStyle};

/// Time between two lines of a log.
const BETWEEN_LINES: Duration = Duration::from_secs(30);

/// Time between two looks at the steps of an epoch.
const BETWEEN_STEPS: Duration = Duration::from_secs(1);

/// Shows the epochs of a run on standard error.
pub(crate) struct Progress {
    bar: ProgressBar,
    /// When the bar was last changed.
    changed: Instant,
    /// Where standard error is no terminal.
    log: Option<Log>,
}

struct Log {
    started: Instant,
    /// The last line, and the last one about an epoch.
    last: Instant,
    last_epoch: Instant,
    first_epoch: u64,
}

impl Progress {
    /// Of a run of so many epochs, some of which are done already.
    pub(crate) fn new(shown: bool, done: usize, epochs: usize) -> Self {
        let bar = if shown {
            let style = ProgressStyle::with_template("{bar:30} {pos}/{len} epochs{prefix}{msg}, {eta} left")
                .unwrap_or_else(|_| ProgressStyle::default_bar());
            ProgressBar::new(epochs as u64).with_style(style)
        } else {
            ProgressBar::hidden()
        };
        bar.set_position(done as u64);
        let now = Instant::now();
        let log = (shown && !std::io::stderr().is_terminal()).then_some(Log {
            started: now,
            last: now,
            last_epoch: now,
            first_epoch: done as u64,
        });
        Progress {
            bar,
            changed: now,
            log,
        }
    }

    /// So many steps of the current epoch have been taken or are on their way.
    pub(crate) fn step(&mut self, step: usize, steps: usize) {
        if self.changed.elapsed() < BETWEEN_STEPS {
            return;
        }
        self.changed = Instant::now();
        let here = format!(" (step {step} of {steps})");
        if let Some(log) = &mut self.log
            && log.last.elapsed() >= BETWEEN_LINES
        {
            log.last = Instant::now();
            let (done, epochs) = (self.bar.position(), self.bar.length().unwrap_or(0));
            eprintln!("{done}/{epochs} epochs{here}");
        }
        self.bar.set_prefix(here);
    }

    /// One more epoch is done.
    pub(crate) fn epoch(&mut self, message: String) {
        self.bar.inc(1);
        self.bar.set_prefix("");
        self.changed = Instant::now();
        if let Some(log) = &mut self.log
            && log.last_epoch.elapsed() >= BETWEEN_LINES
        {
            log.last = Instant::now();
            log.last_epoch = log.last;
            let (done, epochs) = (self.bar.position(), self.bar.length().unwrap_or(0));
            let each = log.started.elapsed().as_secs_f64() / (done - log.first_epoch) as f64;
            let left = Duration::from_secs_f64(each * epochs.saturating_sub(done) as f64);
            eprintln!("{done}/{epochs} epochs, {message}, {} left", HumanDuration(left));
        }
        self.bar.set_message(format!(", {message}"));
    }

    /// The run is over.
    pub(crate) fn finish(self) {
        self.bar.finish_and_clear();
    }
}
