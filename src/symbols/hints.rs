//! What the user can do about a module without names.

use std::path::Path;

/// Debug packages whose names do not follow from the file's (Debian and Ubuntu).
const PACKAGES: [(&str, &str); 6] = [
    ("libc.so", "libc6-dbg"),
    ("ld-linux", "libc6-dbg"),
    ("libm.so", "libc6-dbg"),
    ("libpthread", "libc6-dbg"),
    ("libstdc++", "libstdc++6-dbgsym"),
    ("libgcc_s", "libgcc-s1-dbgsym"),
];

/// A sentence fragment: where the debug information of `module` may come from.
pub fn hint(module: &Path, build_id: Option<&str>) -> String {
    let name = module.file_name().map(|n| n.to_string_lossy()).unwrap_or_default();
    let package = PACKAGES.iter().find(|(prefix, _)| name.starts_with(prefix)).map(|(_, package)| package);
    let is_installed = ["/usr/", "/lib/", "/lib64/", "/bin/", "/sbin/"].iter().any(|dir| module.starts_with(dir))
        && !module.starts_with("/usr/local/");
    match (package, build_id) {
        (Some(package), _) => format!("apt install {package}"),
        (None, Some(_)) if is_installed => {
            "install its -dbgsym package, or give --debuginfod (with $DEBUGINFOD_URLS set)".to_owned()
        }
        (None, Some(id)) => match id.split_at_checked(2) {
            Some((first, rest)) => format!(
                "build it with -g, or put its symbols at DIR/.build-id/{first}/{rest}.debug and give --debug-dir DIR"
            ),
            None => "build it with -g".to_owned(),
        },
        (None, None) => "build it with -g and do not strip it".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hints_name_what_would_help() {
        assert_eq!(hint("/usr/lib/x86_64-linux-gnu/libc.so.6".as_ref(), Some("93ac")), "apt install libc6-dbg");
        assert!(hint("/usr/lib/libpython3.so".as_ref(), Some("93ac")).contains("--debuginfod"));
        assert!(hint("/home/me/app".as_ref(), Some("93ac")).contains(".build-id/93/ac.debug"));
        assert!(hint("/home/me/app".as_ref(), None).contains("-g"));
    }
}
