//! The reader of the call log.

use std::path::Path;

/// One line of the call log that the stand-ins write to `FAKE_LOG`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// The process.
    pub pid: u32,
    /// The thread.
    pub tid: u32,
    /// The thread's current device when the call returned; `None` if it had none.
    pub device: Option<u32>,
    /// The function.
    pub name: String,
    /// Its arguments as the stand-in prints them.
    pub args: String,
    /// What it returned; `None` if it was made to hang.
    pub result: Option<i32>,
}

impl Call {
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.splitn(4, ' ');
        let pid = words.next()?.parse().ok()?;
        let tid = words.next()?.parse().ok()?;
        let device: i32 = words.next()?.strip_prefix("device=")?.parse().ok()?;
        let (name, rest) = words.next()?.split_once('(')?;
        let (args, result) = rest.rsplit_once(") -> ")?;
        Some(Self {
            pid,
            tid,
            device: u32::try_from(device).ok(),
            name: name.to_owned(),
            args: args.to_owned(),
            result: result.parse().ok(),
        })
    }
}

/// The reader of the call log.
#[derive(Debug)]
pub struct CallLog;

impl CallLog {
    /// All calls in the order of their lines; none if the file does not exist.
    ///
    /// # Panics
    /// If a line can't be understood.
    pub fn read(path: &Path) -> Vec<Call> {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        text.lines()
            .map(|l| Call::parse(l).unwrap_or_else(|| panic!("no line of a call log: {l:?}")))
            .collect()
    }
}
