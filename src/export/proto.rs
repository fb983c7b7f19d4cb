//! The messages of formats that are made of protocol buffers, generated from the schemas in `proto/`: pprof's here,
//! others in modules of their own.

#![allow(missing_docs, unused_qualifications, clippy::all, clippy::pedantic, reason = "generated code")]

include!(concat!(env!("OUT_DIR"), "/perftools.profiles.rs"));

/// Perfetto's trace format, from `proto/perfetto_trace.proto`.
pub mod perfetto {
    #![allow(dead_code, reason = "the message of a whole file is for readers: it is written packet by packet")]

    include!(concat!(env!("OUT_DIR"), "/perfetto.protos.rs"));
}

/// OpenTelemetry's format of profiles, from `proto/otlp_profiles.proto`.
pub mod otlp {
    include!(concat!(env!("OUT_DIR"), "/opentelemetry.proto.profiles.v1development.rs"));
}
