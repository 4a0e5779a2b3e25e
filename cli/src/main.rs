//! The flagos-comm tool.
fn main() {}
