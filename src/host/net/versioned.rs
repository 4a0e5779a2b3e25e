//! What UCX and UCC have in common as libraries: functions that are found by their names, words for a status, and a version
//! of three numbers.

use std::ffi::{CStr, c_char};

/// Declares `Api`: the functions, of which `get_version` and `status_string` are two, the version and the file; and
/// `declarations`, for the check against the library's header.
macro_rules! versioned_library {
    ($key:literal, $title:literal; $($field:ident $name:literal ($($arg:ty),* $(,)?) -> $ret:ty;)*) => {
        /// The functions of the library.
        #[derive(Clone, Debug)]
        pub(crate) struct Api {
            $(pub(super) $field: unsafe extern "C" fn($($arg),*) -> $ret,)*
            /// As `1.13.1`.
            pub(crate) version: String,
            /// The first two numbers of it.
            pub(super) series: (c_uint, c_uint),
            pub(crate) path: std::path::PathBuf,
        }

        impl Api {
            fn resolve(resolver: &mut $crate::load::symbols::Resolver<'_>, path: &std::path::Path) -> Option<Api> {
                $(let $field = resolver.find($name);)*
                Some(Api {
                    $($field: {
                        let address = $field?;
                        // SAFETY: the address is that of the library's function with this name, whose C signature
                        // is the one given; a test compares it with the library's header.
                        unsafe {
                            std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($arg),*) -> $ret>(
                                std::ptr::NonNull::as_ptr(address),
                            )
                        }
                    },)*
                    version: String::new(),
                    series: (0, 0),
                    path: path.to_path_buf(),
                })
            }

            /// Takes an opened library if it has all that is needed and serves this version of the interface. Functions may
            /// lie in the companions, too.
            fn accept_since(
                lib: &$crate::load::open::Lib,
                companions: &[&str],
                since: (c_uint, c_uint),
            ) -> std::result::Result<$crate::load::open::Accepted<Api>, $crate::load::open::Refusal> {
                let mut resolver = $crate::load::symbols::Resolver::new(lib, companions);
                let api = Api::resolve(&mut resolver, lib.path());
                let Some(mut api) = api else {
                    return Err($crate::load::open::Refusal::lacking(&resolver));
                };
                let coverage = Some(resolver.coverage());
                let mut version = [0; 3];
                let [major, minor, release] = &mut version;
                // SAFETY: the function writes three numbers.
                unsafe { (api.get_version)(major, minor, release) };
                api.version = version.map(|n| n.to_string()).join(".");
                api.series = (version[0], version[1]);
                if api.series < since || version[0] != since.0 {
                    return Err($crate::load::open::Refusal {
                        reason: format!(
                            "it is {} {}, and {}.{} or later is needed",
                            $title, api.version, since.0, since.1
                        ),
                        version: Some(api.version),
                        coverage,
                    });
                }
                Ok($crate::load::open::Accepted {
                    version: Some(api.version.clone()),
                    value: api,
                    coverage,
                })
            }

            /// What it is, for people.
            pub(super) fn about(&self) -> String {
                format!("{} {} ({})", $title, self.version, self.path.display())
            }
        }

        /// Every function that is called, for the check against the library's header.
        pub(crate) fn declarations() -> Vec<$crate::load::symbols::Declaration> {
            vec![$($crate::load::symbols::Declaration {
                library: $key,
                name: $name.to_string(),
                arguments: vec![$(stringify!($arg)),*],
                result: stringify!($ret),
            }),*]
        }
    };
}
pub(super) use versioned_library;

/// What a library says of a status.
///
/// # Safety
/// The text is NULL or a string that stays.
pub(super) unsafe fn words(text: *const c_char, status: impl std::fmt::Display) -> String {
    if text.is_null() {
        return format!("status {status}");
    }
    // SAFETY: not NULL, so a string by this function's contract.
    unsafe { CStr::from_ptr(text) }
        .to_string_lossy()
        .into_owned()
}
