//! What is answered without asking who it is: `/healthz`, `/livez`, `/readyz` and `/version`.

use std::collections::BTreeSet;

use axum::body::Body;
use http::{Method, Response};
use serde_json::json;

use super::{query::Query, reply};
use crate::{field, server::ApiServer};

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
            let query = Query::parse(query);
            let excluded: BTreeSet<&str> = query.all("exclude").collect();
            let failed = server.store().failure().is_some() && !excluded.contains(STORAGE);
            Some(match (failed, query.get("verbose")) {
                (true, _) => reply::text(500, verbose_text(probe, true, excluded)),
                (false, Some(_)) => reply::text(200, verbose_text(probe, false, excluded)),
                (false, None) => reply::text(200, "ok"),
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
fn verbose_text(probe: &str, failed: bool, mut excluded: BTreeSet<&str>) -> String {
    let line = |check: &&str| match failed && **check == *STORAGE {
        _ if excluded.remove(*check) => format!("[+]{check} excluded: ok\n"),
        true => format!("[-]{check} failed: reason withheld\n"),
        false => format!("[+]{check} ok\n"),
    };
    let mut text: String = CHECKS.iter().map(line).collect();
    if !excluded.is_empty() {
        let unknown: Vec<_> = excluded.into_iter().map(field::quote).collect();
        text.push_str("warn: some health checks cannot be excluded: no matches for ");
        text.push_str(&unknown.join(","));
        text.push('\n');
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checks_can_be_left_out_and_unknown_ones_are_warned_of() {
        let excluded = BTreeSet::from(["ping", "foo", "a\"b"]);
        assert_eq!(
            verbose_text("readyz", false, excluded),
            "[+]ping excluded: ok\n[+]log ok\n[+]storage ok\n[+]informer-sync ok\n\
             warn: some health checks cannot be excluded: no matches for \"a\\\"b\",\"foo\"\nreadyz check passed\n"
        );
        let failed = verbose_text("livez", true, BTreeSet::new());
        assert!(
            failed.contains("[-]storage failed: reason withheld\n"),
            "{failed}"
        );
    }
}
