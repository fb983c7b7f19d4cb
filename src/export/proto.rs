//! The messages of formats that are made of protocol buffers: pprof's here, others in modules of their own. They are
//! kept beside the schemas in `proto/`, so that a build of heaptrace needs no compiler of schemas;
//! `tests/suite/schemas.rs` makes them anew and compares.

#![allow(missing_docs, unused_qualifications, clippy::all, clippy::pedantic, reason = "generated code")]

/// OpenTelemetry's format of profiles, from `proto/otlp_profiles.proto`.
pub mod otlp;
/// Perfetto's trace format, from `proto/perfetto_trace.proto`.
#[allow(dead_code, reason = "the message of a whole file is for readers: it is written packet by packet")]
pub mod perfetto;
/// pprof's format, from `proto/profile.proto`.
mod pprof;

pub use pprof::{Function, Label, Line, Location, Mapping, Profile, Sample, ValueType};
