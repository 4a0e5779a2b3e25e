//! Where participant 0 writes: the table to stdout, the rest to stderr.
#![forbid(unsafe_code)]

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::{ErrorKind, IsTerminal, Write};

/// Descriptions of wrong values that are printed; the rest is only counted.
const DETAILS: usize = 40;

/// The outputs of one participant; silent on all but the first.
pub struct Output {
    speaks: bool,
    bar: Option<ProgressBar>,
    details: Vec<String>,
    /// The reader of stdout went away.
    closed: bool,
}

impl Output {
    /// Speaks on participant 0 only.
    pub fn new(speaks: bool) -> Output {
        Output {
            speaks,
            bar: None,
            details: Vec::new(),
            closed: false,
        }
    }

    /// Shows progress if stderr is a terminal.
    pub fn progress(&mut self, steps: u64) {
        if !self.speaks || !std::io::stderr().is_terminal() {
            return;
        }
        let bar = ProgressBar::with_draw_target(Some(steps), ProgressDrawTarget::stderr());
        if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len}, {eta} left") {
            bar.set_style(style);
        }
        self.bar = Some(bar);
    }

    /// One step is done.
    pub fn advance(&mut self) {
        if let Some(bar) = &self.bar {
            bar.inc(1);
        }
    }

    /// No more steps.
    pub fn finish(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }

    fn around_the_bar<R>(&self, write: impl FnOnce() -> R) -> R {
        match &self.bar {
            Some(bar) => bar.suspend(write),
            None => write(),
        }
    }

    /// A line of the table.
    ///
    /// # Errors
    /// If stdout can't take it. That its reader went away is no error: see [`Output::closed`].
    pub fn line(&mut self, text: &str) -> Result<(), String> {
        if !self.speaks || self.closed {
            return Ok(());
        }
        let written = self.around_the_bar(|| {
            let mut out = std::io::stdout().lock();
            writeln!(out, "{text}").and_then(|()| out.flush())
        });
        match written {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => {
                self.closed = true;
                Ok(())
            }
            other => other.map_err(|error| format!("can't write the table: {error}")),
        }
    }

    /// Whether nobody reads the table any more.
    pub fn closed(&self) -> bool {
        self.closed
    }

    /// A line about a wrong value.
    pub fn detail(&mut self, text: &str) {
        if !self.speaks {
            return;
        }
        self.around_the_bar(|| match self.details.len() {
            n if n < DETAILS => eprintln!("wrong: {text}"),
            DETAILS => eprintln!("wrong: … more are only counted"),
            _ => {}
        });
        self.details.push(text.to_owned());
    }

    /// The first descriptions.
    pub fn details(&self) -> Vec<String> {
        self.details.iter().take(DETAILS).cloned().collect()
    }
}
