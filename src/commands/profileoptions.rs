//! The options of a profile, as those who write files and find names take them.

use crate::cli::ProfileOptions;
use crate::export::ExportOptions;
use crate::naming::NamingOptions;

/// How files look.
pub(super) fn export_options(options: &ProfileOptions) -> ExportOptions {
    let defaults = ExportOptions::default();
    ExportOptions {
        pprof_columns: options.pprof_columns,
        source: options.source,
        value: options.value,
        top: options.top.unwrap_or(defaults.top),
        ..defaults
    }
}

/// Where names are looked for.
pub(super) fn wanted(options: &ProfileOptions) -> NamingOptions<'_> {
    NamingOptions {
        symbolize: options.symbolize,
        debug_dirs: &options.debug_dirs,
        sysroot: options.sysroot.as_deref(),
        source: options.source,
        ..NamingOptions::default()
    }
}
