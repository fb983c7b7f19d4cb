//! SARIF 2.1.0 (OASIS), for code scanning: one result for each error and each leak. Ids are the fingerprints, so that a
//! result is the same one in the next run.

use super::escape::Json;
use super::problems::{Problem, ProblemKind, problems, source_line, stack_text, told_frame};
use super::text::shell_words;
use super::view::{NamedFrame, View};
use crate::profile::leaks::{BaselineStatus, LeakClass, VerdictKind};
use crate::profile::{Exit, FindingKind};
use serde_json::{Value, json};
use std::io::{self, Write};
use std::path::Path;

/// Where the standard's schema is.
const SCHEMA: &str = "https://json.schemastore.org/sarif-2.1.0.json";

/// What relative paths are relative to.
const BASE: &str = "SRCROOT";

/// All kinds of problems, in the order of the rules.
const RULES: [ProblemKind; 9] = [
    ProblemKind::Error(FindingKind::DoubleFree),
    ProblemKind::Error(FindingKind::InvalidFree),
    ProblemKind::Error(FindingKind::MismatchedFree),
    ProblemKind::Error(FindingKind::SizedDelete),
    ProblemKind::Error(FindingKind::AlignedDelete),
    ProblemKind::Leak(LeakClass::Definite),
    ProblemKind::Leak(LeakClass::Indirect),
    ProblemKind::Leak(LeakClass::Possible),
    ProblemKind::Leak(LeakClass::Reachable),
];

/// Writes the file.
pub(crate) fn write(view: &View<'_>, out: &mut dyn Write) -> io::Result<()> {
    let meta = &view.profile.meta;
    let rules: Vec<Value> = RULES
        .into_iter()
        .map(|rule| {
            json!({
                "id": rule.name(),
                "shortDescription": { "text": rule.title() },
                "fullDescription": { "text": rule.meaning() },
                "help": { "text": rule.meaning() },
                "defaultConfiguration": { "level": level(matches!(rule, ProblemKind::Error(_) | ProblemKind::Leak(LeakClass::Definite))) },
                "properties": { "tags": ["memory"], "precision": "very-high" },
            })
        })
        .collect();
    let results: Vec<Value> = problems(view).iter().map(|problem| result(view, problem)).collect();
    let log = json!({
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [{
            "tool": { "driver": { "name": "heaptrace", "semanticVersion": env!("CARGO_PKG_VERSION"), "rules": rules } },
            "originalUriBaseIds": { BASE: { "uri": format!("{}/", file_uri(&meta.process.cwd.to_string_lossy())) } },
            "columnKind": "unicodeCodePoints",
            "invocations": [invocation(view)],
            "results": results,
        }],
    });
    serde_json::to_writer_pretty(Json(&mut *out), &log)?;
    out.write_all(b"\n")
}

const fn level(is_error: bool) -> &'static str {
    if is_error { "error" } else { "warning" }
}

/// The run of the program, and what the check could not see.
fn invocation(view: &View<'_>) -> Value {
    let meta = &view.profile.meta;
    let verdict = view.profile.verdict.as_ref();
    let judged = verdict.is_some_and(|verdict| verdict.kind != VerdictKind::Inconclusive);
    let notes: Vec<Value> = verdict
        .iter()
        .flat_map(|verdict| &verdict.reasons)
        .map(|reason| json!({ "level": level(!judged), "message": { "text": reason } }))
        .collect();
    let mut invocation = json!({
        "executionSuccessful": judged,
        "commandLine": shell_words(&meta.process.command),
        "startTimeUtc": humantime::format_rfc3339_millis(meta.process.started_at).to_string(),
        "workingDirectory": { "uri": file_uri(&meta.process.cwd.to_string_lossy()) },
        "toolExecutionNotifications": notes,
    });
    let exit = match meta.process.exit {
        Some(Exit::Code(code)) => Some(("exitCode", code)),
        Some(Exit::Signal(signal)) => Some(("exitSignalNumber", signal)),
        None => None,
    };
    if let (Some(resident), Some(fields)) = (meta.process.resident, invocation.as_object_mut()) {
        fields.insert("properties".to_owned(), json!({ "residentPeakBytes": resident.peak_bytes }));
    }
    if let (Some((name, number)), Some(fields)) = (exit, invocation.as_object_mut()) {
        fields.insert(name.to_owned(), json!(number));
    }
    invocation
}

fn result(view: &View<'_>, problem: &Problem) -> Value {
    let (title, stack) = problem.stacks.first().copied().unwrap_or(("at", usize::MAX));
    let message = format!("{} ({})\n{}", problem.sentence, problem.name(), stack_text(view, title, stack));
    let mut result = json!({
        "ruleId": problem.rule.name(),
        "ruleIndex": RULES.iter().position(|rule| *rule == problem.rule),
        "kind": "fail",
        "level": level(problem.fails),
        "message": { "text": message },
        "locations": [location(view, stack)],
        "stacks": problem.stacks.iter().map(|(title, stack)| sarif_stack(view, title, *stack)).collect::<Vec<_>>(),
        "codeFlows": [code_flow(view, problem)],
        "partialFingerprints": { "heaptraceId/v1": format!("{:016x}", problem.id) },
        "properties": {
            "directBytes": problem.direct.bytes,
            "directBlocks": problem.direct.objects,
            "indirectBytes": problem.indirect.bytes,
            "indirectBlocks": problem.indirect.objects,
        },
    });
    let Some(fields) = result.as_object_mut() else { return result };
    if let Some(status) = problem.baseline {
        let state = match status {
            BaselineStatus::New => "new",
            BaselineStatus::Grown => "updated",
            BaselineStatus::Known => "unchanged",
        };
        fields.insert("baselineState".to_owned(), json!(state));
    }
    if let Some(rule) = &problem.suppressed_by {
        fields.insert("suppressions".to_owned(), json!([{ "kind": "external", "justification": rule }]));
    }
    result
}

/// The best place of a stack: the source line if there is one, the function in any case.
fn location(view: &View<'_>, stack: usize) -> Value {
    let told = told_frame(view, stack);
    let function = told.as_ref().map_or("", |frame| frame.name);
    let mut location = json!({ "logicalLocations": [{ "fullyQualifiedName": function, "kind": "function" }] });
    if let (Some(line), Some(fields)) = (told.and_then(|frame| source_line(view, &frame)), location.as_object_mut()) {
        fields.insert("physicalLocation".to_owned(), physical(&line.path, line.line));
    }
    location
}

fn frame_location(view: &View<'_>, frame: &NamedFrame<'_>) -> Value {
    let mut location = json!({
        "logicalLocations": [{ "fullyQualifiedName": frame.name, "kind": "function" }],
        "message": { "text": frame.name },
    });
    if let (Some(line), Some(fields)) = (source_line(view, frame), location.as_object_mut()) {
        fields.insert("physicalLocation".to_owned(), physical(&line.path, line.line));
    }
    location
}

fn physical(path: &str, line: u32) -> Value {
    let artifact = if Path::new(path).is_absolute() {
        json!({ "uri": file_uri(path) })
    } else {
        json!({ "uri": encode(path), "uriBaseId": BASE })
    };
    json!({ "artifactLocation": artifact, "region": { "startLine": line } })
}

fn sarif_stack(view: &View<'_>, title: &str, stack: usize) -> Value {
    let frames: Vec<Value> =
        view.frames(stack).map(|frame| json!({ "location": frame_location(view, &frame) })).collect();
    json!({ "message": { "text": title }, "frames": frames })
}

/// The way from the outermost function to where it happened, for each stack in the order of time.
fn code_flow(view: &View<'_>, problem: &Problem) -> Value {
    let flows: Vec<Value> = problem
        .stacks
        .iter()
        .rev()
        .map(|(title, stack)| {
            let mut locations: Vec<Value> =
                view.frames(*stack).map(|frame| json!({ "location": frame_location(view, &frame) })).collect();
            locations.reverse();
            json!({ "message": { "text": title }, "locations": locations })
        })
        .collect();
    json!({ "threadFlows": flows })
}

/// `file:///…`
fn file_uri(path: &str) -> String {
    format!("file://{}", encode(path))
}

/// Percent-encodes what a URI's path can't hold (RFC 3986, section 3.3).
fn encode(path: &str) -> String {
    let mut encoded = String::with_capacity(path.len());
    for byte in path.bytes() {
        if byte.is_ascii_alphanumeric() || b"/-._~!$&'()*+,;=@".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}
