//! What a process is made of: its mappings, the object files in them, or a core file in place of the process. Pure: it
//! reads bytes and the text of /proc/PID/maps.

pub mod corefile;
pub mod elf;
pub mod maps;
