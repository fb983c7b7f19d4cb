//! What packages install beside the program: completions for shells, pages for man(1).

use super::{Refusal, command};
use clap::Args;
use clap_complete::Shell;
use clap_mangen::Man;

/// Print completions of command lines for a shell
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  source <(heaptrace completions bash)
      For this shell only.
  heaptrace completions bash > ~/.local/share/bash-completion/completions/heaptrace
      For all from now on.")]
pub(super) struct CompletionsArguments {
    /// Which shell
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

/// Print a page for man
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  heaptrace man run > run.1; man ./run.1
      Reads the page of a command.
  heaptrace man > heaptrace.1; heaptrace man run > heaptrace-run.1
      For a package: one of all, and one of each command.")]
pub(super) struct ManArguments {
    /// The command whose page is wanted; without it heaptrace's own
    #[arg(value_name = "COMMAND")]
    command: Option<String>,
}

/// What completes command lines.
pub(super) fn completions(arguments: &CompletionsArguments) -> Refusal {
    let mut text = Vec::new();
    clap_complete::generate(arguments.shell, &mut command(), "heaptrace", &mut text);
    Refusal::Answer(String::from_utf8_lossy(&text).into_owned())
}

/// A page for man(1), in roff.
pub(super) fn man(arguments: &ManArguments) -> Refusal {
    let mut all = command();
    // so each command gets its name in full: heaptrace-run
    all.build();
    let wanted = match &arguments.command {
        None => Some(all),
        Some(name) => all.find_subcommand(name).cloned(),
    };
    let Some(wanted) = wanted else {
        return Refusal::Usage("there is no such command: heaptrace --help lists them\n".to_owned());
    };
    let mut text = Vec::new();
    match Man::new(wanted.disable_help_subcommand(true)).section("1").render(&mut text) {
        Ok(()) => Refusal::Answer(String::from_utf8_lossy(&text).into_owned()),
        Err(error) => Refusal::Usage(format!("the page can't be written: {error}\n")),
    }
}
