//! A C header as bindgen understands it.

use crate::class::{Class, Function, class};
use crate::tables::ADDRESSES;
use std::collections::BTreeMap;
use std::path::Path;
use syn::{FnArg, ForeignItem, Item, ReturnType, Type};

/// Functions, and sizes and offsets of structs.
pub struct Header {
    functions: BTreeMap<String, Function>,
    sizes: BTreeMap<String, usize>,
    offsets: BTreeMap<(String, String), usize>,
}

impl Header {
    /// Whether a header can be read: one of the system may not be there.
    pub fn is_there(file: &str) -> bool {
        let Some(name) = file.strip_prefix('<').and_then(|f| f.strip_suffix('>')) else {
            return true;
        };
        // clang looks there, too.
        let more = std::env::var("CPATH").unwrap_or_default();
        let folders = ["/usr/include", "/usr/local/include"];
        let mut folders = folders.into_iter().chain(more.split(':'));
        folders.any(|folder| Path::new(folder).join(name).exists())
    }

    /// Reads a header of `tests/fakevendor/abi` or of the system.
    ///
    /// # Panics
    /// If it can't be read or has something that nobody has explained.
    pub fn read(file: &str) -> Header {
        let builder = if file.starts_with('<') {
            // Only what is looked up: the system's headers have more than anybody could explain.
            bindgen::builder()
                .header_contents("system.h", &format!("#include {file}\n"))
                .allowlist_function("ucp_.*|ucs_status_string|ucc_.*")
                .allowlist_recursively(true)
        } else {
            let path = Path::new(env!("CARGO_MANIFEST_DIR"))
                .join("../tests/fakevendor/abi")
                .join(file);
            bindgen::builder().header(path.to_str().expect("a path in UTF-8"))
        };
        let bindings = builder
            .layout_tests(true)
            .formatter(bindgen::Formatter::None)
            .generate()
            .unwrap_or_else(|error| panic!("{file}: {error}"));
        let code = syn::parse_file(&bindings.to_string()).expect("bindgen writes Rust");
        let mut header = Header {
            functions: BTreeMap::new(),
            sizes: BTreeMap::new(),
            offsets: BTreeMap::new(),
        };
        header.layouts(&bindings.to_string());
        let aliases: BTreeMap<String, &Type> = code
            .items
            .iter()
            .filter_map(|item| match item {
                Item::Type(alias) => Some((alias.ident.to_string(), &*alias.ty)),
                _ => None,
            })
            .collect();
        for item in &code.items {
            let Item::ForeignMod(block) = item else {
                continue;
            };
            for item in &block.items {
                if let ForeignItem::Fn(function) = item {
                    let name = function.sig.ident.to_string();
                    let class = |ty: &Type| {
                        header
                            .class(ty, &aliases)
                            .unwrap_or_else(|error| panic!("{file}: {name}: {error}"))
                    };
                    let arguments = function.sig.inputs.iter().map(|input| match input {
                        FnArg::Typed(input) => class(&input.ty),
                        FnArg::Receiver(_) => panic!("{file}: {name} is a method"),
                    });
                    let function = Function {
                        arguments: arguments.collect(),
                        result: match &function.sig.output {
                            ReturnType::Default => Class::Void,
                            ReturnType::Type(_, ty) => class(ty),
                        },
                    };
                    header.functions.insert(name, function);
                }
            }
        }
        header
    }

    fn class(&self, ty: &Type, aliases: &BTreeMap<String, &Type>) -> Result<Class, String> {
        class(ty, &|name| {
            if ADDRESSES.contains(&name) {
                return Some(Class::Address);
            }
            match aliases.get(name) {
                Some(ty) => self.class(ty, aliases).ok(),
                None => self.size(name).map(Class::Struct),
            }
        })
    }

    /// Takes sizes and offsets out of the assertions that bindgen writes:
    /// `["Size of NAME"] [:: std :: mem :: size_of :: < NAME > () - 128usize]`, and
    /// `["Offset of field: NAME::FIELD"] [:: std :: mem :: offset_of ! (NAME , FIELD) - 8usize]`.
    fn layouts(&mut self, code: &str) {
        for part in code.split('"').collect::<Vec<_>>().windows(2) {
            let [text, rest] = part else { continue };
            let value = || {
                let (_, number) = rest.split_once("- ")?;
                number.split_once("usize")?.0.trim().parse::<usize>().ok()
            };
            if let Some(name) = text.strip_prefix("Size of ") {
                let size = value().unwrap_or_else(|| panic!("no size of {name}"));
                self.sizes.insert(name.to_string(), size);
            }
            if let Some((name, field)) = text
                .strip_prefix("Offset of field: ")
                .and_then(|text| text.split_once("::"))
            {
                let offset = value().unwrap_or_else(|| panic!("no offset of {name}.{field}"));
                let field = field.trim_end_matches('_');
                self.offsets
                    .insert((name.to_string(), field.to_string()), offset);
            }
        }
    }

    /// A function.
    pub fn function(&self, name: &str) -> Option<&Function> {
        self.functions.get(name)
    }

    /// The size of a struct.
    pub fn size(&self, name: &str) -> Option<usize> {
        self.sizes.get(name).copied()
    }

    /// The offset of a field.
    pub fn offset(&self, name: &str, field: &str) -> Option<usize> {
        let key = (name.to_string(), field.to_string());
        self.offsets.get(&key).copied()
    }
}
