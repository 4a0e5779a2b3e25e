//! How a type is passed to a function, and whether two signatures pass alike.

use crate::tables::NAMES;
use syn::{GenericArgument, PathArguments, Type};

/// How a type is passed. Signedness makes no difference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Class {
    Void,
    /// A whole number of so many bytes.
    Int(usize),
    Float(usize),
    /// A pointer, and what it points to if that is a number or a pointer.
    Pointer(Option<Box<Class>>),
    /// A number that holds an address.
    Address,
    /// By value.
    Struct(usize),
}

/// A function of a header.
#[derive(Clone, Debug)]
pub struct Function {
    pub arguments: Vec<Class>,
    pub result: Class,
}

/// Whether a declaration of the engine passes as a header says. `narrow` says of which arguments, from
/// 1 on, the header's number may be smaller.
pub fn compare(
    arguments: &[&'static str],
    result: &str,
    function: &Function,
    narrow: &dyn Fn(usize) -> bool,
) -> Result<(), String> {
    if arguments.len() != function.arguments.len() {
        return Err(format!(
            "{} arguments, and {} in C",
            arguments.len(),
            function.arguments.len()
        ));
    }
    for (at, (ours, theirs)) in arguments.iter().zip(&function.arguments).enumerate() {
        let class = here(ours)?;
        let fits = alike(&class, theirs)
            || (narrow(at + 1)
                && matches!((&class, theirs), (Class::Int(a), Class::Int(b)) if a > b));
        if !fits {
            return Err(format!(
                "argument {} is {ours}, and {theirs:?} in C",
                at + 1
            ));
        }
    }
    let class = here(result)?;
    if !alike(&class, &function.result) {
        return Err(format!(
            "the result is {result}, and {:?} in C",
            function.result
        ));
    }
    Ok(())
}

fn alike(ours: &Class, theirs: &Class) -> bool {
    match (ours, theirs) {
        (Class::Pointer(Some(ours)), Class::Pointer(Some(theirs))) => alike(ours, theirs),
        // A pointer to bytes or to nothing known is a pointer to anything.
        (Class::Pointer(_), Class::Pointer(_) | Class::Address) => true,
        (ours, theirs) => ours == theirs,
    }
}

/// The class of a type as the engine writes it.
pub fn here(text: &str) -> Result<Class, String> {
    let ty: Type = syn::parse_str(text).map_err(|error| format!("{text}: {error}"))?;
    class(&ty, &|name| {
        NAMES
            .iter()
            .find(|(known, _)| *known == name)
            .map(|(_, class)| class())
    })
}

/// The class of a type of Rust. `named` knows the names that are not Rust's own.
pub fn class(ty: &Type, named: &dyn Fn(&str) -> Option<Class>) -> Result<Class, String> {
    match ty {
        Type::Tuple(tuple) if tuple.elems.is_empty() => Ok(Class::Void),
        Type::Ptr(pointer) => Ok(Class::Pointer(pointee(&pointer.elem, named))),
        Type::Array(array) => {
            let syn::Expr::Lit(syn::ExprLit {
                lit: syn::Lit::Int(length),
                ..
            }) = &array.len
            else {
                return Err("an array of no plain length".to_string());
            };
            let length: usize = length.base10_parse().map_err(|e| format!("{e}"))?;
            match class(&array.elem, named)? {
                Class::Int(size) => Ok(Class::Struct(size * length)),
                other => Err(format!("an array of {other:?}")),
            }
        }
        Type::Path(path) => {
            let last = path.path.segments.last().ok_or("an empty path")?;
            let name = last.ident.to_string();
            Ok(match name.as_str() {
                "c_char" | "c_schar" | "c_uchar" | "u8" | "i8" | "bool" => Class::Int(1),
                "c_short" | "c_ushort" | "u16" | "i16" => Class::Int(2),
                "c_int" | "c_uint" | "u32" | "i32" => Class::Int(4),
                "c_long" | "c_ulong" | "c_longlong" | "c_ulonglong" | "u64" | "i64" | "usize"
                | "isize" => Class::Int(8),
                "f32" => Class::Float(4),
                "f64" => Class::Float(8),
                "c_void" => Class::Void,
                // Of a function.
                "Option" if is_function(&last.arguments) => Class::Pointer(None),
                name => named(name).ok_or_else(|| format!("what is the type {name}?"))?,
            })
        }
        _ => Err("a type of an unknown kind".to_string()),
    }
}

fn is_function(arguments: &PathArguments) -> bool {
    match arguments {
        PathArguments::AngleBracketed(list) => list
            .args
            .iter()
            .any(|a| matches!(a, GenericArgument::Type(Type::BareFn(_)))),
        _ => false,
    }
}

/// What is pointed to, if that says anything: numbers of more than a byte, and pointers.
fn pointee(ty: &Type, named: &dyn Fn(&str) -> Option<Class>) -> Option<Box<Class>> {
    match class(ty, named) {
        Ok(class @ (Class::Int(2..) | Class::Float(_) | Class::Pointer(_))) => {
            Some(Box::new(class))
        }
        _ => None,
    }
}
