//! `pods/log`: the log of a container.
//!
//! The server itself has no logs; the embedding program provides a [`crate::logs::LogSource`]. The server checks the pod first and
//! refuses, with a kubelet's messages, containers that cannot have a log yet. It also applies the options of the request to what the
//! source returns, so that all sources behave alike.

use std::{collections::VecDeque, future::Future, pin::Pin};

use axum::body::Body;
use bytes::Bytes;
use futures::{StreamExt, future, stream};
use http::{Method, Response};
use jiff::{SignedDuration, Timestamp};
use mullion_kube_text::{
    field::{Errors, Path},
    status::Status,
};
use mullion_schema::{time, tree::Tree};
use serde_json::Value;

use crate::{
    http::{call::Call, reply},
    logs::{Container, Line, Log},
};

/// Handles `pods/log`.
pub(crate) fn serve<'a>(
    call: &'a Call,
    _: Method,
    _: Body,
) -> Pin<Box<dyn Future<Output = Result<Response<Body>, Status>> + Send + 'a>> {
    Box::pin(answer(call))
}

async fn answer(call: &Call) -> Result<Response<Body>, Status> {
    let options = Options::read(call)?;
    let stored = call.stored()?;
    let pod = call.row.served(&stored);
    let name = container_name(&pod, options.container.as_deref())?;
    // kube-apiserver (LogLocation) has no kubelet to ask before the pod is bound, and answers with an empty 204.
    let node = pod["spec"].text("nodeName");
    if node.is_empty() {
        return Ok(reply::respond(204, "text/plain", Body::empty()));
    }
    require_node(call, node)?;
    let previous = of_previous_run(&pod, name, options.previous)?;
    let container = Container {
        pod: &pod,
        name,
        previous,
        follow: options.follow,
    };
    let log = match call.server.logs() {
        Some(logs) => logs.read(container).await,
        None => None,
    };
    let Some(log) = log else {
        let why = format!(
            "no logs are kept for container {name:?} of pod {:?}",
            call.name
        );
        return Err(Status::internal(why));
    };
    Ok(reply::respond(
        200,
        "text/plain",
        options.cut(log, call.now),
    ))
}

/// The validated `v1.PodLogOptions`.
struct Options {
    container: Option<String>,
    follow: bool,
    previous: bool,
    timestamps: bool,
    since: Option<Since>,
    tail_lines: Option<usize>,
    limit_bytes: Option<usize>,
}

enum Since {
    Seconds(i64),
    Time(Timestamp),
}

impl Options {
    fn read(call: &Call) -> Result<Options, Status> {
        let (query, mut errors) = (&call.query, Errors::default());
        let tail = query.integer("tailLines")?;
        if let Some(lines) = tail.filter(|lines| *lines < 0) {
            errors.invalid(
                &Path::new("tailLines"),
                lines,
                "must be greater than or equal to 0",
            );
        }
        let limit = query.integer("limitBytes")?;
        if let Some(bytes) = limit.filter(|bytes| *bytes < 1) {
            errors.invalid(&Path::new("limitBytes"), bytes, "must be greater than 0");
        }
        let seconds = query.integer("sinceSeconds")?;
        // Old clients send `null` for an absent time.
        let since = match query.text("sinceTime").filter(|text| *text != "null") {
            Some(text) => {
                let read = time::read_seconds(text);
                Some(read.map_err(|error| Status::bad_request(error.to_string()))?)
            }
            None => None,
        };
        match (seconds, since) {
            (Some(_), Some(_)) => errors.forbidden(
                &Path::new(""),
                "at most one of `sinceTime` or `sinceSeconds` may be specified",
            ),
            (Some(seconds), None) if seconds < 1 => {
                errors.invalid(
                    &Path::new("sinceSeconds"),
                    seconds,
                    "must be greater than 0",
                );
            }
            _ => {}
        }
        if query.text("stream").is_some() {
            errors.forbidden(&Path::new("stream"), "may not be specified");
        }
        if !errors.is_empty() {
            return Err(Status::invalid_kind(
                "",
                "PodLogOptions",
                &call.name,
                &errors,
            ));
        }
        let count = |number: Option<i64>| number.and_then(|number| usize::try_from(number).ok());
        Ok(Options {
            container: query.text("container").map(str::to_owned),
            follow: query.flag("follow").unwrap_or(false),
            previous: query.flag("previous").unwrap_or(false),
            timestamps: query.flag("timestamps").unwrap_or(false),
            since: seconds.map(Since::Seconds).or(since.map(Since::Time)),
            tail_lines: count(tail),
            limit_bytes: count(limit),
        })
    }

    /// Returns the body with the requested lines.
    fn cut(&self, log: Log, now: Timestamp) -> Body {
        let since = match self.since {
            Some(Since::Seconds(seconds)) => {
                now.checked_sub(SignedDuration::from_secs(seconds)).ok()
            }
            Some(Since::Time(time)) => Some(time),
            None => None,
        };
        let mut written: VecDeque<Line> = log
            .written
            .into_iter()
            .filter(|line| since.is_none_or(|since| line.time >= since))
            .collect();
        if let Some(tail) = self.tail_lines {
            written.drain(..written.len().saturating_sub(tail));
        }
        let coming = log
            // A source may offer coming lines to everyone; without `follow` the response must end.
            .coming
            .filter(|_| self.follow)
            .unwrap_or_else(|| stream::empty().boxed());
        let timestamps = self.timestamps;
        let mut left = self.limit_bytes;
        let lines = stream::iter(written)
            .chain(coming)
            .map(move |line| print(&line, timestamps));
        let cut = lines.scan((), move |(), mut line| {
            future::ready(match &mut left {
                Some(0) => None,
                Some(left) => {
                    line.truncate(*left);
                    *left -= line.len();
                    Some(line)
                }
                None => Some(line),
            })
        });
        Body::from_stream(cut.map(Ok::<_, std::convert::Infallible>))
    }
}

fn print(line: &Line, timestamps: bool) -> Bytes {
    let stamp = if timestamps {
        format!("{} ", line.time.strftime("%Y-%m-%dT%H:%M:%S%.9fZ"))
    } else {
        String::new()
    };
    format!("{stamp}{}\n", line.text).into()
}

/// Returns 404 if the pod's Node does not exist: kube-apiserver looks up the kubelet's address there before it connects. The error names
/// the Node as if it were a pod.
pub(super) fn require_node(call: &Call, node: &str) -> Result<(), Status> {
    let ctx = call.ctx(false);
    match ctx.lookup.find("", "nodes", None, node) {
        Some(_) => Ok(()),
        None => Err(Status::core_not_found("pods", node)),
    }
}

/// Returns the requested container: the named one, or the only one.
pub(super) fn container_name<'a>(
    pod: &'a Value,
    named: Option<&'a str>,
) -> Result<&'a str, Status> {
    let pod_name = pod["metadata"].text("name");
    let all = || {
        ["initContainers", "containers", "ephemeralContainers"]
            .into_iter()
            .flat_map(|list| pod["spec"].items(list))
    };
    match (named, pod["spec"].items("containers")) {
        (Some(name), _) if all().any(|container| container.text("name") == name) => Ok(name),
        (Some(name), _) => Err(Status::bad_request(format!(
            "container {name} is not valid for pod {pod_name}"
        ))),
        (None, [container]) => Ok(container.text("name")),
        (None, []) => Err(Status::bad_request(format!(
            "a container name must be specified for pod {pod_name}"
        ))),
        (None, _) => {
            let names: Vec<&str> = all().map(|container| container.text("name")).collect();
            let names = names.join(" ");
            Err(Status::bad_request(format!(
                "a container name must be specified for pod {pod_name}, choose one of: [{names}]"
            )))
        }
    }
}

/// Returns 400 for a container without a log, with the kubelet's message. Otherwise returns whether the log is that of the previous run:
/// because it was requested, or because the container waits for a restart.
fn of_previous_run(pod: &Value, name: &str, previous: bool) -> Result<bool, Status> {
    let pod_name = pod["metadata"].text("name");
    let refuse = |why: String| Err(Status::bad_request(why));
    let lists = [
        "containerStatuses",
        "initContainerStatuses",
        "ephemeralContainerStatuses",
    ];
    let status = lists
        .into_iter()
        .flat_map(|list| pod["status"].items(list))
        .find(|status| status.text("name") == name);
    let Some(status) = status else {
        return refuse(format!(
            "container {name:?} in pod {pod_name:?} is not available"
        ));
    };
    let state = status.get("state").cloned().unwrap_or_default();
    let last = status.get("lastState").cloned().unwrap_or_default();
    // A container whose image was never pulled terminates without a container ID and without a log.
    let ran = |ended: &Value| !ended.text("containerID").is_empty();
    let (ended, ended_before) = (state.field("terminated"), last.field("terminated"));
    if previous {
        return match ended_before {
            Some(before) if ran(before) => Ok(true),
            _ => refuse(format!(
                "previous terminated container {name:?} in pod {pod_name:?} not found"
            )),
        };
    }
    if state.has("running") {
        return Ok(false);
    }
    match (ended, ended_before) {
        (Some(ended), _) if ran(ended) => return Ok(false),
        (_, Some(before)) if ran(before) => return Ok(true),
        (None, None) => {}
        _ => {
            return refuse(format!(
                "container {name:?} in pod {pod_name:?} is terminated"
            ));
        }
    }
    let Some(waiting) = state.field("waiting") else {
        return refuse(format!(
            "container {name:?} in pod {pod_name:?} is waiting to start - no logs yet"
        ));
    };
    let why = match waiting.text("reason") {
        "ErrImagePull" => "image can't be pulled",
        "ImagePullBackOff" => "trying and failing to pull image",
        reason => reason,
    };
    refuse(format!(
        "container {name:?} in pod {pod_name:?} is waiting to start: {why}"
    ))
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;
    use serde_json::json;

    use super::*;

    fn options() -> Options {
        Options {
            container: None,
            follow: false,
            previous: false,
            timestamps: false,
            since: None,
            tail_lines: None,
            limit_bytes: None,
        }
    }

    fn log() -> Log {
        let line = |second: i64, text: &str| Line {
            time: Timestamp::from_second(second).expect("in range"),
            text: text.to_owned(),
        };
        Log {
            written: vec![line(1, "one"), line(2, "two"), line(3, "three")],
            coming: Some(stream::iter([line(4, "four")]).boxed()),
        }
    }

    async fn text(options: Options) -> String {
        let body = options.cut(log(), Timestamp::from_second(4).expect("in range"));
        String::from_utf8(
            body.collect()
                .await
                .expect("the body ends")
                .to_bytes()
                .to_vec(),
        )
        .expect("text")
    }

    #[tokio::test]
    async fn options_cut_the_log() {
        assert_eq!(text(options()).await, "one\ntwo\nthree\n");
        assert_eq!(
            text(Options {
                tail_lines: Some(1),
                ..options()
            })
            .await,
            "three\n"
        );
        assert_eq!(
            text(Options {
                tail_lines: Some(1),
                follow: true,
                ..options()
            })
            .await,
            "three\nfour\n"
        );
        assert_eq!(
            text(Options {
                since: Some(Since::Seconds(2)),
                ..options()
            })
            .await,
            "two\nthree\n"
        );
        assert_eq!(
            text(Options {
                limit_bytes: Some(6),
                ..options()
            })
            .await,
            "one\ntw"
        );
        let stamped = text(Options {
            tail_lines: Some(1),
            timestamps: true,
            ..options()
        })
        .await;
        assert_eq!(stamped, "1970-01-01T00:00:03.000000000Z three\n");
    }

    #[test]
    fn one_of_several_containers_must_be_named() {
        let pod = json!({"metadata": {"name": "x"}, "spec": {"containers": [{"name": "a"}, {"name": "b"}], "initContainers": [{"name": "i"}]}});
        assert_eq!(container_name(&pod, Some("i")).as_deref(), Ok("i"));
        let message = |named| {
            container_name(&pod, named)
                .expect_err("no such container")
                .message
        };
        assert_eq!(
            message(None),
            "a container name must be specified for pod x, choose one of: [i a b]"
        );
        assert_eq!(message(Some("c")), "container c is not valid for pod x");
    }

    #[test]
    fn a_container_that_waits_has_no_log() {
        let pod = |status: Value| json!({"metadata": {"name": "x"}, "status": {"containerStatuses": [status]}});
        let waiting =
            pod(json!({"name": "a", "state": {"waiting": {"reason": "ContainerCreating"}}}));
        let message = |pod: &Value, previous| {
            of_previous_run(pod, "a", previous)
                .expect_err("no log")
                .message
        };
        assert_eq!(
            message(&waiting, false),
            r#"container "a" in pod "x" is waiting to start: ContainerCreating"#
        );
        assert_eq!(
            message(&waiting, true),
            r#"previous terminated container "a" in pod "x" not found"#
        );
        let running = pod(json!({"name": "a", "state": {"running": {}}, "lastState": {}}));
        assert_eq!(of_previous_run(&running, "a", false), Ok(false));
        assert_eq!(
            message(&running, true),
            r#"previous terminated container "a" in pod "x" not found"#
        );
        let crashing = pod(
            json!({"name": "a", "state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": {"terminated": {"exitCode": 1, "containerID": "containerd://1"}}}),
        );
        for previous in [false, true] {
            assert_eq!(of_previous_run(&crashing, "a", previous), Ok(true));
        }
        let lost = pod(
            json!({"name": "a", "state": {"terminated": {"reason": "ContainerStatusUnknown", "exitCode": 137}}}),
        );
        assert_eq!(
            message(&lost, false),
            r#"container "a" in pod "x" is terminated"#
        );
    }
}
