//! The one error type: a code of the C ABI and a text for people.
#![forbid(unsafe_code)]

/// Result code of the C ABI. 0..=9 have FlagCX's values; the library's own start at 100.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(i32)]
pub enum Code {
    /// A call to the accelerator's driver or runtime failed.
    UnhandledDeviceError = 1,
    /// The operating system refused something: memory, sockets, files.
    SystemError = 2,
    /// A fault of this library (please report it), or of the vendor's where the text names one of its functions.
    InternalError = 3,
    /// An argument is outside what the function accepts.
    InvalidArgument = 4,
    /// The call is not allowed in this state, or the ranks disagree.
    InvalidUsage = 5,
    /// Another rank failed, died or left.
    RemoteError = 6,
    /// Not an error: the work goes on, ask again.
    InProgress = 7,
    /// The vendor's collective library failed with a code that has no better name here.
    UnhandledCclError = 8,
    /// The tier in use can't do this.
    NotSupported = 9,
    /// A deadline passed; the text names the phase and the missing ranks.
    Timeout = 100,
    /// The communicator was aborted.
    Aborted = 101,
    /// The calling thread has no current device and the driver says so.
    UnboundDevice = 102,
}

impl Code {
    /// Every code but success.
    pub const ALL: [Code; 12] = [
        Code::UnhandledDeviceError,
        Code::SystemError,
        Code::InternalError,
        Code::InvalidArgument,
        Code::InvalidUsage,
        Code::RemoteError,
        Code::InProgress,
        Code::UnhandledCclError,
        Code::NotSupported,
        Code::Timeout,
        Code::Aborted,
        Code::UnboundDevice,
    ];

    /// The code with this ABI number; `None` for success and for numbers that are not codes.
    pub fn from_raw(raw: i32) -> Option<Code> {
        Self::ALL.into_iter().find(|c| *c as i32 == raw)
    }

    /// A sentence that says what the code means.
    pub const fn describe(self) -> &'static str {
        match self {
            Code::UnhandledDeviceError => "a call to the accelerator's driver failed",
            Code::SystemError => "the operating system refused a request",
            Code::InternalError => "internal error of flagos-comm",
            Code::InvalidArgument => "invalid argument",
            Code::InvalidUsage => "invalid usage",
            Code::RemoteError => "another rank failed or left",
            Code::InProgress => "in progress",
            Code::UnhandledCclError => "the vendor's collective library failed",
            Code::NotSupported => "not supported",
            Code::Timeout => "timed out",
            Code::Aborted => "the communicator was aborted",
            Code::UnboundDevice => "the calling thread has no current device",
        }
    }
}

/// What went wrong: a [`Code`] and a text that says what happened, what was tried and what to do.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{text}")]
pub struct Error {
    code: Code,
    text: String,
    announced: bool,
}

/// Shorthand for results of this library.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// An error with a code and a text.
    pub fn new(code: Code, text: impl Into<String>) -> Error {
        Error {
            code,
            text: text.into(),
            announced: false,
        }
    }

    /// The code.
    pub fn code(&self) -> Code {
        self.code
    }

    /// The text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The same error with `context: ` before its text.
    #[must_use]
    pub fn context(self, context: impl std::fmt::Display) -> Error {
        Error {
            text: format!("{context}: {}", self.text),
            ..self
        }
    }

    /// The same error, of which the rank that it is about tells all others itself.
    #[must_use]
    pub(crate) fn announced(self) -> Error {
        Error {
            announced: true,
            ..self
        }
    }

    /// Whether all ranks hear of it without being told by this one.
    pub(crate) fn is_announced(&self) -> bool {
        self.announced
    }

    /// [`Code::InvalidArgument`] with a text.
    pub fn invalid_argument(text: impl Into<String>) -> Error {
        Error::new(Code::InvalidArgument, text)
    }

    /// [`Code::InvalidUsage`] with a text.
    pub fn invalid_usage(text: impl Into<String>) -> Error {
        Error::new(Code::InvalidUsage, text)
    }

    /// [`Code::NotSupported`] with a text.
    pub fn not_supported(text: impl Into<String>) -> Error {
        Error::new(Code::NotSupported, text)
    }

    /// [`Code::InternalError`] with a text.
    pub fn internal(text: impl Into<String>) -> Error {
        Error::new(Code::InternalError, text)
    }

    /// [`Code::SystemError`] from what the operating system said.
    pub fn system(what: impl std::fmt::Display, error: std::io::Error) -> Error {
        let text = match crate::sys::net::out_of_descriptors(&error) {
            Some(limit) => format!("{what}: {error}: {limit}"),
            None => format!("{what}: {error}"),
        };
        Error::new(Code::SystemError, text)
    }
}

/// Where the text of the last error waits for the C caller who asks for it.
pub(crate) mod last {
    use super::Error;
    use std::cell::RefCell;
    use std::ffi::c_char;

    /// Longer texts are cut.
    const CAPACITY: usize = 4096;

    struct Text {
        bytes: [u8; CAPACITY],
    }

    impl Text {
        const EMPTY: Text = Text {
            bytes: [0; CAPACITY],
        };

        fn set(&mut self, text: &str) {
            let mut end = text.len().min(CAPACITY - 1);
            while !text.is_char_boundary(end) {
                end -= 1;
            }
            self.bytes[..end].copy_from_slice(&text.as_bytes()[..end]);
            // A NUL inside would hide the rest from a C reader.
            self.bytes[..end]
                .iter_mut()
                .filter(|b| **b == 0)
                .for_each(|b| *b = b'?');
            self.bytes[end] = 0;
        }
    }

    // Constant and without a destructor: no allocation, and nothing runs at thread exit.
    thread_local! {
        static OF_THREAD: RefCell<Text> = const { RefCell::new(Text::EMPTY) };
        static SHOWN: RefCell<Text> = const { RefCell::new(Text::EMPTY) };
    }

    /// Records the error as this thread's last.
    #[cold]
    pub(crate) fn record(error: &Error) {
        OF_THREAD.with_borrow_mut(|text| text.set(error.text()));
    }

    /// This thread's last error, valid until it records another.
    pub(crate) fn of_thread() -> *const c_char {
        OF_THREAD.with_borrow(|text| text.bytes.as_ptr().cast())
    }

    /// A text for this thread to read, valid until it asks for another.
    pub(crate) fn show(shown: &str) -> *const c_char {
        SHOWN.with_borrow_mut(|text| {
            text.set(shown);
            text.bytes.as_ptr().cast()
        })
    }
}
