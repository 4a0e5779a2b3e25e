//! The sink of the `log` facade that the C libraries install.
//!
//! The engine speaks only through the facade. A Rust program has its own logger and hears it
//! there; the C libraries call [`install`]. Lines go to stderr or to a file, never to stdout, each
//! in one write.
#![forbid(unsafe_code)]

use crate::sys::per_process::PerProcess;
use crate::sys::process::write_to_stderr;
use std::ffi::{CString, c_int, c_void};
use std::fs::File;
use std::io::Write;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{PoisonError, RwLock};

/// Gets every line instead of the sink: level (1 error, 2 warn, 3 info, 4 debug, 5 trace), the
/// text without prefix and line end, and the pointer that was registered with it. It may be called
/// from any thread, also from several at once.
pub use crate::sys::callback::LogCallback;

struct Sink;

struct Callback {
    function: LogCallback,
    user: AtomicPtr<c_void>,
}

static SINK: Sink = Sink;
static CALLBACK: RwLock<Option<Callback>> = RwLock::new(None);

/// Makes this module the logger of the process' copy of the facade and sets the level from the
/// environment. A logger that is already installed stays. May be called any number of times.
pub fn install() {
    static DONE: PerProcess<()> = PerProcess::new();
    DONE.get_or_init(|| {
        if log::set_logger(&SINK).is_ok() {
            // So that warnings about the environment itself can be heard.
            log::set_max_level(log::LevelFilter::Warn);
            log::set_max_level(crate::config::get().log_level);
        }
    });
}

/// Sends every line to `function` instead of the sink, or back to the sink with `None`.
pub fn set_callback(function: Option<LogCallback>, user: *mut c_void) {
    install();
    let callback = function.map(|function| Callback {
        function,
        user: AtomicPtr::new(user),
    });
    *CALLBACK.write().unwrap_or_else(PoisonError::into_inner) = callback;
}

fn file() -> Option<&'static File> {
    static FILE: PerProcess<Option<File>> = PerProcess::new();
    FILE.get_or_init(|| {
        let path = crate::config::get().log_file.as_ref()?;
        match File::options().append(true).create(true).open(path) {
            Ok(file) => Some(file),
            Err(error) => {
                let line = format!(
                    "[flagos-comm {}] WARN FLAGOSCOMM_LOG_FILE={} can't be opened ({error}); \
                     the log goes to stderr\n",
                    std::process::id(),
                    path.display()
                );
                write_to_stderr(line.as_bytes());
                None
            }
        }
    })
    .as_ref()
}

impl log::Log for Sink {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        metadata.level() <= log::max_level()
    }

    fn log(&self, record: &log::Record<'_>) {
        if !self.enabled(record.metadata()) {
            return;
        }
        let callback = {
            let callback = CALLBACK.read().unwrap_or_else(PoisonError::into_inner);
            callback
                .as_ref()
                .map(|c| (c.function, c.user.load(Ordering::Relaxed)))
        };
        let text = record.args().to_string();
        if let Some((function, user)) = callback {
            let text = CString::new(text.replace('\0', "\u{fffd}")).unwrap_or_default();
            crate::sys::callback::log(function, record.level() as c_int, &text, user);
            return;
        }
        // Ranks that share a terminal or a file are told apart by their process.
        let line = format!(
            "[flagos-comm {}] {} {text}\n",
            std::process::id(),
            record.level()
        );
        match file() {
            // A full disk is nobody's error here.
            Some(mut file) => drop(file.write_all(line.as_bytes())),
            None => write_to_stderr(line.as_bytes()),
        }
    }

    fn flush(&self) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use log::Log;
    use std::ffi::c_char;
    use std::sync::Mutex;

    static SEEN: Mutex<Vec<(i32, bool, usize)>> = Mutex::new(Vec::new());

    extern "C" fn collect(level: c_int, message: *const c_char, user: *mut c_void) {
        SEEN.lock()
            .unwrap()
            .push((level, message.is_null(), user as usize));
    }

    #[test]
    fn callback_replaces_the_sink() {
        set_callback(Some(collect), 0x10 as *mut c_void);
        install();
        log::set_max_level(log::LevelFilter::Info);
        SINK.log(
            &log::Record::builder()
                .level(log::Level::Info)
                .args(format_args!("hello"))
                .build(),
        );
        SINK.log(
            &log::Record::builder()
                .level(log::Level::Debug)
                .args(format_args!("too much"))
                .build(),
        );
        set_callback(None, std::ptr::null_mut());
        let seen = SEEN.lock().unwrap();
        assert!(
            seen.iter()
                .any(|(level, _, user)| *level == 3 && *user == 0x10),
            "{seen:?}"
        );
        assert!(seen.iter().all(|(level, _, _)| *level <= 3), "{seen:?}");
    }
}
