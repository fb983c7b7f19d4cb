//! What shows more of a program whose runtime makes code of its own, or keeps its objects in memory of its own.

use super::sections::{Layout, heading, prose};
use super::text::basename;
use crate::profile::{ModuleInfo, Profile};

/// A runtime, and what to switch on.
struct Runtime {
    /// The language or platform.
    name: &'static str,
    /// How one knows it.
    sign: Sign,
    /// A sentence for people.
    advice: &'static str,
}

/// How one knows a runtime.
enum Sign {
    /// A module whose file's name begins so.
    Module(&'static str),
    /// The program's file has this name.
    Program(&'static str),
    /// A function of this name stands in the stacks.
    Function(&'static str),
}

const RUNTIMES: [Runtime; 5] = [
    Runtime {
        name: "Java",
        sign: Sign::Module("libjvm.so"),
        advice: "Java compiles at run time: -XX:+PreserveFramePointer lets stacks pass its compiled code, and -XX:+UnlockDiagnosticVMOptions \
                 -XX:+DumpPerfMapAtExit (from Java 17 on; of a process that runs `jcmd PID Compiler.perfmap`) names it. Its objects lie in memory that \
                 it maps, not in blocks of malloc: `jcmd PID GC.class_histogram` counts them.",
    },
    Runtime {
        name: "Node.js",
        sign: Sign::Program("node"),
        advice: "node compiles at run time: `node --perf-basic-prof --interpreted-frames-native-stack` names the functions of JavaScript. Its objects lie \
                 in memory that it maps, not in blocks of malloc: `node --heapsnapshot-signal=SIGUSR2` shows them.",
    },
    Runtime {
        name: ".NET",
        sign: Sign::Module("libcoreclr.so"),
        advice: ".NET compiles at run time: DOTNET_PerfMapEnabled=1 in the environment names its functions. Its objects lie in memory that it maps, not in \
                 blocks of malloc: `dotnet-gcdump collect -p PID` shows them.",
    },
    Runtime {
        name: "Haskell",
        sign: Sign::Function("StgRun"),
        advice: "Haskell's code has unwind tables only where ghc has built it with -g. Its objects lie in memory that the runtime maps, not in blocks of \
                 malloc: `+RTS -hT` counts them.",
    },
    Runtime {
        name: "PHP",
        sign: Sign::Function("php_module_startup"),
        advice: "PHP takes the memory of its scripts from pieces that it maps, not from malloc, unless USE_ZEND_ALLOC=0 \
                 is in its environment: then each of its blocks is seen.",
    },
];

/// Writes what to switch on. `made_code`: code that lies in no module stands in the stacks.
pub(super) fn told(out: &mut String, layout: Layout, profile: &Profile, made_code: bool) {
    let found = RUNTIMES.iter().find(|runtime| is_there(&runtime.sign, profile));
    match found {
        // that its code is in no module, or its stacks end there, is what the advice is about
        Some(Runtime { name, advice, sign }) if made_code || matches!(sign, Sign::Function(_)) => {
            heading(out, layout, name);
            prose(out, layout, advice);
        }
        None if made_code => {
            heading(out, layout, "Code made at run time");
            prose(
                out,
                layout,
                "It has names if what makes it writes them to /tmp/perf-PID.map, and callers below it if it keeps frame pointers: most \
                 compilers of that kind have options for both.",
            );
        }
        _ => {}
    }
}

fn is_there(sign: &Sign, profile: &Profile) -> bool {
    let file = |module: &ModuleInfo| basename(&module.path);
    match sign {
        Sign::Module(name) => profile.modules.iter().any(|module| file(module).starts_with(name)),
        Sign::Program(name) => profile.modules.first().is_some_and(|module| file(module) == *name),
        Sign::Function(name) => profile.functions.iter().any(|function| function.name == *name),
    }
}
