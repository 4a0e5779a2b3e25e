//! The C libraries as their users see them: header, exports, ELF, consumers in C, C++ and Python.

mod abi;
mod consumers;
mod drop_in;
mod elf;
mod faults;
mod flagcx;
mod foreign;
mod header;
mod install;
mod life;
mod nccl;
mod plugin;
mod programs;
mod secure;
