//! The C libraries as their users see them: header, exports, ELF, consumers in C, C++ and Python.

mod consumers;
mod elf;
mod faults;
mod flagcx;
mod foreign;
mod header;
mod life;
mod programs;
mod secure;
