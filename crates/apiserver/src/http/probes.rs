//! What is answered without asking who it is: `/healthz`, `/livez`, `/readyz` and `/version`.

use axum::body::Body;
use http::{Method, Response};
use serde_json::json;

use super::{query::Query, reply};
use crate::server::ApiServer;

/// What the probes look at; there is nothing behind this server that could be down while it answers.
const CHECKS: &[&str] = &["ping", "log", "storage", "informer-sync"];

pub(crate) fn serve(
    _server: &ApiServer,
    method: &Method,
    path: &str,
    query: Option<&str>,
) -> Option<Response<Body>> {
    if !matches!(*method, Method::GET | Method::HEAD) {
        return None;
    }
    let mut segments = path.trim_start_matches('/').splitn(2, '/');
    match (segments.next()?, segments.next()) {
        ("version", None) => Some(version()),
        (probe @ ("healthz" | "livez" | "readyz"), None) => {
            let verbose = Query::parse(query).flag("verbose").unwrap_or(false);
            Some(if verbose {
                reply::text(200, verbose_text(probe))
            } else {
                reply::text(200, "ok")
            })
        }
        ("healthz" | "livez" | "readyz", Some(check)) if CHECKS.contains(&check) => {
            Some(reply::text(200, "ok"))
        }
        _ => None,
    }
}

fn verbose_text(probe: &str) -> String {
    let mut text: String = CHECKS
        .iter()
        .map(|check| format!("[+]{check} ok\n"))
        .collect();
    text.push_str(probe);
    text.push_str(" check passed\n");
    text
}

/// The version of the API that is served; clients compare `major` and `minor` as integers.
fn version() -> Response<Body> {
    reply::json(
        200,
        &json!({
            "major": "1", "minor": "36", "emulationMajor": "1", "emulationMinor": "36",
            "minCompatibilityMajor": "1", "minCompatibilityMinor": "35", "gitVersion": "v1.36.2", "gitCommit": "",
            "gitTreeState": "clean", "buildDate": "1970-01-01T00:00:00Z", "goVersion": "", "compiler": "rustc",
            "platform": format!("{}/{}", std::env::consts::OS, match std::env::consts::ARCH { "x86_64" => "amd64", "aarch64" => "arm64", other => other }),
        }),
    )
}
