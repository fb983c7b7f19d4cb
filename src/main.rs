//! Arguments in, exit status out.

use heaptrace::internal::cli::{self, EXIT_OWN_FAILURE, Refusal, When};
use heaptrace::internal::{commands, limits};
use std::io;
use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: limits::Allocator = limits::Allocator;

fn main() -> ExitCode {
    limits::reserve_stack();
    limits::reserve_memory();
    limits::raise_open_files();
    limits::keep_a_second();
    let color = commands::use_color(When::Auto, &io::stdout());
    let done = match cli::parse(std::env::args_os(), color, |name| std::env::var_os(name)) {
        Ok(command) => commands::execute(&command),
        Err(Refusal::Answer(text)) => commands::print(&text).map(|()| 0),
        Err(Refusal::Usage(text)) => {
            commands::tell(&text);
            Ok(EXIT_OWN_FAILURE)
        }
    };
    ExitCode::from(done.unwrap_or_else(|error| {
        commands::tell(&commands::message(&error));
        commands::exit_status(&error)
    }))
}
