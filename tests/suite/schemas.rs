//! The messages that formats are written with are those of the schemas in `proto/`.

use std::path::Path;

/// Each schema, the file that prost-build makes of it, and the file that is compiled.
const SCHEMAS: [(&str, &str, &str); 3] = [
    ("profile.proto", "perftools.profiles.rs", "pprof.rs"),
    ("perfetto_trace.proto", "perfetto.protos.rs", "perfetto.rs"),
    ("otlp_profiles.proto", "opentelemetry.proto.profiles.v1development.rs", "otlp.rs"),
];

/// Whoever has changed a schema runs this test with HEAPTRACE_WRITE_MESSAGES set: it writes the messages then.
#[test]
fn messages_are_those_of_the_schemas() {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let made = std::env::temp_dir().join(format!("heaptrace-schemas-{}", std::process::id()));
    std::fs::create_dir_all(&made).unwrap();
    let mut differing = Vec::new();
    for (schema, theirs, ours) in SCHEMAS {
        let parsed = protox::compile([schema], [package.join("proto")]).unwrap();
        prost_build::Config::new().out_dir(&made).compile_fds(parsed).unwrap();
        let theirs = std::fs::read_to_string(made.join(theirs)).unwrap();
        let ours = package.join("src/export/proto").join(ours);
        if std::env::var_os("HEAPTRACE_WRITE_MESSAGES").is_some() {
            std::fs::write(&ours, &theirs).unwrap();
        }
        // rustfmt has been over ours
        let code = |text: &str| text.split_whitespace().collect::<String>().replace(",)", ")").replace(",}", "}");
        if code(&theirs) != code(&std::fs::read_to_string(&ours).unwrap()) {
            differing.push(format!("{} is not what proto/{schema} gives", ours.display()));
        }
    }
    std::fs::remove_dir_all(&made).unwrap();
    assert!(differing.is_empty(), "{}", differing.join("\n"));
}
