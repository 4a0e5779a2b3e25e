//! The C libraries as their users see them: header, exports, ELF, consumers in C and C++.

mod consumers;
mod elf;
mod header;
mod programs;
