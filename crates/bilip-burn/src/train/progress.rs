//! How far a run is: a bar on a terminal, a line now and then in a log.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{HumanDuration, ProgressBar, ProgressStyle};

/// Time between two lines of a log.
const BETWEEN_LINES: Duration = Duration::from_secs(30);

/// Time between two looks at the steps of an epoch.
const BETWEEN_STEPS: Duration = Duration::from_secs(1);

/// Shows on standard error how far long work is.
pub struct Progress {
    bar: ProgressBar,
    /// What is counted.
    what: &'static str,
    /// When the bar was last changed.
    changed: Instant,
    /// Where standard error is no terminal.
    log: Option<Log>,
}

struct Log {
    started: Instant,
    /// The last line, and the last one about a whole part.
    last: Instant,
    last_part: Instant,
    first_part: u64,
}

impl Progress {
    /// Of a number of epochs, or what else is counted, some of which are done already.
    pub fn new(shown: bool, done: usize, count: usize, what: &'static str) -> Self {
        let bar = if shown {
            let template = format!("{{bar:30}} {{pos}}/{{len}} {what}{{prefix}}{{msg}}, {{eta}} left");
            let style =
                ProgressStyle::with_template(&template).unwrap_or_else(|_| ProgressStyle::default_bar());
            ProgressBar::new(count as u64).with_style(style)
        } else {
            ProgressBar::hidden()
        };
        bar.set_position(done as u64);
        let now = Instant::now();
        let log = (shown && !std::io::stderr().is_terminal()).then_some(Log {
            started: now,
            last: now,
            last_part: now,
            first_part: done as u64,
        });
        Progress {
            bar,
            what,
            changed: now,
            log,
        }
    }

    /// N steps of the current one have been taken or are on their way.
    pub fn step(&mut self, step: usize, steps: usize) {
        if self.changed.elapsed() < BETWEEN_STEPS {
            return;
        }
        self.changed = Instant::now();
        let here = format!(" (step {step} of {steps})");
        if let Some(log) = &mut self.log
            && log.last.elapsed() >= BETWEEN_LINES
        {
            log.last = Instant::now();
            let (done, count) = (self.bar.position(), self.bar.length().unwrap_or(0));
            eprintln!("{done}/{count} {}{here}", self.what);
        }
        self.bar.set_prefix(here);
    }

    /// One more is done; the message says what came of it.
    pub fn advance(&mut self, message: &str) {
        self.advance_by(1, message);
    }

    /// Several more are done; the message, which may be empty, says what came of them.
    pub fn advance_by(&mut self, count: usize, message: &str) {
        self.bar.inc(count as u64);
        let message = match message {
            "" => String::new(),
            text => format!(", {text}"),
        };
        self.bar.set_prefix("");
        self.changed = Instant::now();
        if let Some(log) = &mut self.log
            && log.last_part.elapsed() >= BETWEEN_LINES
        {
            log.last = Instant::now();
            log.last_part = log.last;
            let (done, count) = (self.bar.position(), self.bar.length().unwrap_or(0));
            let each = log.started.elapsed().as_secs_f64() / (done - log.first_part).max(1) as f64;
            let left = Duration::from_secs_f64(each * count.saturating_sub(done) as f64);
            eprintln!(
                "{done}/{count} {}{message}, {} left",
                self.what,
                HumanDuration(left)
            );
        }
        self.bar.set_message(message);
    }

    /// All is done: nothing is shown any more.
    pub fn finish(self) {
        self.bar.finish_and_clear();
    }
}
