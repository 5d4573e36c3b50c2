//! What is answered without asking who it is: `/healthz`, `/livez`, `/readyz` and `/version`.

use axum::body::Body;
use http::{Method, Response};
use serde_json::json;

use super::{query::Query, reply};
use crate::server::ApiServer;

/// What the probes look at. Only [`STORAGE`] can be down while this server answers.
const CHECKS: &[&str] = &["ping", "log", STORAGE, "informer-sync"];
/// Fails when no write is taken any more: the server is to be started again.
const STORAGE: &str = "storage";

pub(crate) fn serve(
    server: &ApiServer,
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
            let failure = server.store().failure();
            Some(match (failure.is_some(), verbose) {
                (true, _) => reply::text(500, verbose_text(probe, true)),
                (false, true) => reply::text(200, verbose_text(probe, false)),
                (false, false) => reply::text(200, "ok"),
            })
        }
        ("healthz" | "livez" | "readyz", Some(check)) if CHECKS.contains(&check) => {
            let failure = server.store().failure().filter(|_| check == STORAGE);
            Some(match failure {
                Some(why) => reply::text(500, format!("internal server error: {why}\n")),
                None => reply::text(200, "ok"),
            })
        }
        _ => None,
    }
}

/// What each check came to, in the words of kube-apiserver's probes, which keep reasons to the log.
fn verbose_text(probe: &str, failed: bool) -> String {
    let line = |check: &&str| match failed && **check == *STORAGE {
        true => format!("[-]{check} failed: reason withheld\n"),
        false => format!("[+]{check} ok\n"),
    };
    let mut text: String = CHECKS.iter().map(line).collect();
    text.push_str(probe);
    text.push_str(match failed {
        true => " check failed\n",
        false => " check passed\n",
    });
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
