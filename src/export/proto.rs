//! The messages of the pprof format, generated from `proto/profile.proto`.

#![allow(missing_docs, unused_qualifications, clippy::all, clippy::pedantic, reason = "generated code")]

include!(concat!(env!("OUT_DIR"), "/perftools.profiles.rs"));
