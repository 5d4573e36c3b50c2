//! `/healthz`, `/livez`, `/readyz` and `/version`, which never queue, and the single checks below the probes.

use std::collections::BTreeSet;

use axum::body::Body;
use http::{Method, Response};
use mullion_kube_text::{golang::quote, status::Status};
use serde_json::json;

use super::{reply, routing::method_not_allowed};
use crate::{request::query::Query, state::ApiServer};

/// The checks of `/healthz` and `/livez`; `/readyz` has more. Only [`STORAGE`] can fail while this server answers.
const CHECKS: &[&str] = &["ping", "log", STORAGE];
const READY_CHECKS: &[&str] = &[
    "ping",
    "log",
    STORAGE,
    "etcd-readiness",
    "informer-sync",
    "shutdown",
];
/// The check that fails once the store accepts no more writes and the server must be restarted. Clients know it by this name.
const STORAGE: &str = "etcd";

/// Returns whether a request is answered at once, without a seat.
pub(crate) fn takes_no_turn(method: &Method, path: &str) -> bool {
    *method == Method::GET && matches!(path, "/healthz" | "/livez" | "/readyz" | "/version")
}

/// Answers the probes for any method and `/version` for GET; `None` for other paths.
pub(crate) fn serve(
    server: &ApiServer,
    method: &Method,
    path: &str,
    query: Option<&str>,
) -> Option<Result<Response<Body>, Status>> {
    let mut segments = path.strip_prefix('/')?.splitn(2, '/');
    let probe = segments.next()?;
    let checks = match probe {
        "version" if path == "/version" => {
            return Some(match *method {
                Method::GET => Ok(version()),
                _ => Err(method_not_allowed()),
            });
        }
        "healthz" | "livez" => CHECKS,
        "readyz" => READY_CHECKS,
        _ => return None,
    };
    let failure = server.store().failure();
    let answer = match segments.next() {
        None => {
            let query = Query::parse(query);
            let excluded: BTreeSet<&str> = query.all("exclude").collect();
            let failed = failure.is_some() && !excluded.contains(STORAGE);
            match (failed, query.get("verbose")) {
                (false, None) => reply::text(200, "ok"),
                (true, _) => reply::text(500, verbose_text(probe, checks, true, excluded)),
                (false, Some(_)) => reply::text(200, verbose_text(probe, checks, false, excluded)),
            }
        }
        Some(check) if checks.contains(&check) => match failure.filter(|_| check == STORAGE) {
            Some(why) => reply::text(500, format!("internal server error: {why}\n")),
            None => reply::respond(200, "text/plain; charset=utf-8", Body::from("ok")),
        },
        Some(_) => return None,
    };
    Some(Ok(answer))
}

/// Returns the outcome of each check as kube-apiserver prints it; reasons appear only in the log.
fn verbose_text(
    probe: &str,
    checks: &[&str],
    failed: bool,
    mut excluded: BTreeSet<&str>,
) -> String {
    let line = |check: &&str| match failed && **check == *STORAGE {
        _ if excluded.remove(*check) => format!("[+]{check} excluded: ok\n"),
        true => format!("[-]{check} failed: reason withheld\n"),
        false => format!("[+]{check} ok\n"),
    };
    let mut text: String = checks.iter().map(line).collect();
    if !excluded.is_empty() {
        let unknown: Vec<_> = excluded.into_iter().map(quote).collect();
        text.push_str("warn: some health checks cannot be excluded: no matches for ");
        text.push_str(&unknown.join(","));
        text.push('\n');
    }
    text.push_str(probe);
    text.push_str(if failed {
        " check failed\n"
    } else {
        " check passed\n"
    });
    text
}

/// Returns the version of the served API; clients parse `major` and `minor` as integers.
fn version() -> Response<Body> {
    reply::indented(
        200,
        &json!({
            "major": "1", "minor": "36", "emulationMajor": "1", "emulationMinor": "36",
            "minCompatibilityMajor": "1", "minCompatibilityMinor": "35", "gitVersion": "v1.36.2", "gitCommit": "",
            "gitTreeState": "clean", "buildDate": "1970-01-01T00:00:00Z", "goVersion": "", "compiler": "rustc",
            "platform": format!("{}/{}", std::env::consts::OS, match std::env::consts::ARCH { "x86_64" => "amd64", "aarch64" => "arm64", other => other }),
        }),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checks_can_be_left_out_and_unknown_ones_are_warned_of() {
        let excluded = BTreeSet::from(["ping", "foo", "a\"b"]);
        assert_eq!(
            verbose_text("readyz", READY_CHECKS, false, excluded),
            "[+]ping excluded: ok\n[+]log ok\n[+]etcd ok\n[+]etcd-readiness ok\n[+]informer-sync ok\n[+]shutdown ok\n\
             warn: some health checks cannot be excluded: no matches for \"a\\\"b\",\"foo\"\nreadyz check passed\n"
        );
        let failed = verbose_text("livez", CHECKS, true, BTreeSet::new());
        assert!(
            failed.contains("[-]etcd failed: reason withheld\n"),
            "{failed}"
        );
    }
}
