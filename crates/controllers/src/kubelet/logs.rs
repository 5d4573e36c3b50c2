//! What `kubectl logs` shows of a simulated container.
//!
//! No process runs, so nothing is made up: the first line says that the container is simulated, the others with what it
//! would have been started. Errors are those of the API server and the kubelet, word for word.

use std::{fmt::Write as _, time::Duration};

use futures::{Stream, StreamExt, stream};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Container, ContainerStatus, Pod, PodSpec};
use thiserror::Error;

use super::images::ImageRef;
use crate::{Clock, Informer};

/// How often a followed container is looked at.
const POLL: Duration = Duration::from_millis(500);

/// The query of a log request (`v1.PodLogOptions`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogOptions {
    /// Which container; may be left out when there is only one.
    pub container: Option<String>,
    /// Stay until the container stops.
    pub follow: bool,
    /// The run before the present one.
    pub previous: bool,
    /// Stamp every line.
    pub timestamps: bool,
    /// Only lines of the last so many seconds.
    pub since_seconds: Option<i64>,
    /// Only lines from then on.
    pub since_time: Option<Timestamp>,
    /// Only the last so many lines.
    pub tail_lines: Option<i64>,
    /// Cut after so many bytes.
    pub limit_bytes: Option<i64>,
}

/// Why there is no log. [`LogError::NoPod`] is a 404, the others are 400s.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum LogError {
    /// No such pod.
    #[error("pods {0:?} not found")]
    NoPod(String),
    /// Several containers and none was named.
    #[error(
        "a container name must be specified for pod {pod}, choose one of: [{containers}]{others}"
    )]
    Unnamed {
        /// The pod.
        pod: String,
        /// Its containers.
        containers: String,
        /// Its init containers, said in words, if it has any.
        others: String,
    },
    /// No such container.
    #[error("container {container} is not valid for pod {pod}")]
    NoContainer {
        /// The pod.
        pod: String,
        /// What was asked for.
        container: String,
    },
    /// It has not run, and this is why.
    #[error("container {container:?} in pod {pod:?} is waiting to start: {reason}")]
    Waiting {
        /// The pod.
        pod: String,
        /// The container.
        container: String,
        /// The kubelet's word for it.
        reason: String,
    },
    /// It was not run before.
    #[error("previous terminated container {container:?} in pod {pod:?} not found")]
    NoPrevious {
        /// The pod.
        pod: String,
        /// The container.
        container: String,
    },
    /// Nothing is known of it.
    #[error("container {container:?} in pod {pod:?} is not available")]
    Unavailable {
        /// The pod.
        pod: String,
        /// The container.
        container: String,
    },
}

/// The lines of a container's log, each with its line feed.
///
/// With [`LogOptions::follow`] the stream stays open until the container's present run ends or the pod is gone.
///
/// # Errors
/// When there is no such pod or container, or the container has not run.
pub fn stream(
    pods: &Informer<Pod>,
    clock: &Clock,
    namespace: &str,
    name: &str,
    options: &LogOptions,
) -> Result<impl Stream<Item = String> + Send + 'static, LogError> {
    let pod = pods
        .get(namespace, name)
        .ok_or_else(|| LogError::NoPod(name.to_owned()))?;
    let lines = lines(&pod, options, clock.now())?;
    let container = container_of(&pod, options)?.name.clone();
    let run = running_id(&pod, &container).filter(|_| options.follow && !options.previous);
    let (pods, namespace, name) = (pods.clone(), namespace.to_owned(), name.to_owned());
    let until_stopped = stream::once(async move {
        while run.is_some()
            && pods
                .get(&namespace, &name)
                .and_then(|pod| running_id(&pod, &container))
                == run
        {
            tokio::time::sleep(POLL).await;
        }
    });
    Ok(stream::iter(lines).chain(until_stopped.filter_map(|()| async { None })))
}

/// The lines there are at `now`.
///
/// # Errors
/// When there is no such container, or it has not run.
pub fn lines(pod: &Pod, options: &LogOptions, now: Timestamp) -> Result<Vec<String>, LogError> {
    let container = container_of(pod, options)?;
    let scheduled = pod
        .spec
        .as_ref()
        .is_some_and(|spec| spec.node_name.is_some());
    if !scheduled {
        return Ok(Vec::new());
    }
    let (status, started_at) = run(pod, container, options)?;
    let since = options.since_time.max(
        options
            .since_seconds
            .and_then(|seconds| now.checked_sub(SignedDuration::from_secs(seconds)).ok()),
    );
    if since.is_some_and(|since| started_at < since) {
        return Ok(Vec::new());
    }
    let mut lines = start_report(pod.spec.as_ref(), container, status);
    if let Some(tail) = options
        .tail_lines
        .and_then(|tail| usize::try_from(tail).ok())
    {
        lines.drain(..lines.len().saturating_sub(tail));
    }
    for line in &mut lines {
        if options.timestamps {
            line.insert_str(0, &format!("{started_at:.9} "));
        }
        line.push('\n');
    }
    if let Some(limit) = options
        .limit_bytes
        .and_then(|limit| usize::try_from(limit).ok())
    {
        cut(&mut lines, limit);
    }
    Ok(lines)
}

fn container_of<'a>(pod: &'a Pod, options: &LogOptions) -> Result<&'a Container, LogError> {
    let name = || pod.metadata.name.clone().unwrap_or_default();
    let spec = pod.spec.iter();
    let apps = spec.clone().flat_map(|spec| &spec.containers);
    let inits = spec.flat_map(|spec| spec.init_containers.iter().flatten());
    let Some(wanted) = options
        .container
        .as_deref()
        .filter(|wanted| !wanted.is_empty())
    else {
        let names = |containers: Vec<&Container>| {
            containers
                .into_iter()
                .map(|container| container.name.as_str())
                .collect::<Vec<_>>()
                .join(" ")
        };
        let (apps, inits): (Vec<_>, Vec<_>) = (apps.collect(), inits.collect());
        return match apps.as_slice() {
            [only] => Ok(only),
            _ => {
                let others = if inits.is_empty() {
                    String::new()
                } else {
                    format!(" or one of the init containers: [{}]", names(inits))
                };
                Err(LogError::Unnamed {
                    pod: name(),
                    containers: names(apps),
                    others,
                })
            }
        };
    };
    let mut all = apps.chain(inits);
    all.find(|container| container.name == wanted)
        .ok_or_else(|| LogError::NoContainer {
            pod: name(),
            container: wanted.to_owned(),
        })
}

fn status_of<'a>(pod: &'a Pod, container: &str) -> Option<&'a ContainerStatus> {
    let status = pod.status.as_ref()?;
    let mut all = status
        .container_statuses
        .iter()
        .chain(&status.init_container_statuses)
        .flatten();
    all.find(|status| status.name == container)
}

/// The run whose log is meant: its container's status and when it started.
fn run<'a>(
    pod: &'a Pod,
    container: &Container,
    options: &LogOptions,
) -> Result<(&'a ContainerStatus, Timestamp), LogError> {
    let names = || {
        (
            pod.metadata.name.clone().unwrap_or_default(),
            container.name.clone(),
        )
    };
    let Some(status) = status_of(pod, &container.name) else {
        let (pod, container) = names();
        return Err(LogError::Unavailable { pod, container });
    };
    let ended = status
        .last_state
        .as_ref()
        .and_then(|state| state.terminated.as_ref());
    let ended = ended
        .filter(|ended| ended.container_id.is_some())
        .map(|ended| ended.started_at.as_ref());
    let state = status.state.as_ref();
    let running = state
        .and_then(|state| state.running.as_ref())
        .map(|running| running.started_at.as_ref());
    let terminated = state.and_then(|state| state.terminated.as_ref());
    let terminated = terminated
        .filter(|ended| ended.container_id.is_some())
        .map(|ended| ended.started_at.as_ref());
    let started = if options.previous {
        ended.ok_or_else(|| {
            let (pod, container) = names();
            LogError::NoPrevious { pod, container }
        })?
    } else {
        running.or(terminated).or(ended).ok_or_else(|| {
            let (pod, container) = names();
            let reason = state
                .and_then(|state| state.waiting.as_ref())
                .and_then(|waiting| waiting.reason.as_deref());
            let reason = match reason {
                Some("ErrImagePull") => "image can't be pulled",
                Some("ImagePullBackOff") => "trying and failing to pull image",
                other => other.unwrap_or("ContainerCreating"),
            };
            LogError::Waiting {
                pod,
                container,
                reason: reason.to_owned(),
            }
        })?
    };
    Ok((status, started.map_or(Timestamp::UNIX_EPOCH, |at| at.0)))
}

fn running_id(pod: &Pod, container: &str) -> Option<String> {
    let status = status_of(pod, container)?;
    status.state.as_ref()?.running.as_ref()?;
    status.container_id.clone()
}

/// What the container would have been started with.
fn start_report(
    spec: Option<&PodSpec>,
    container: &Container,
    status: &ContainerStatus,
) -> Vec<String> {
    let list = |words: &Option<Vec<String>>| {
        words
            .as_ref()
            .filter(|words| !words.is_empty())
            .map(|words| quoted(words))
    };
    let image = container.image.clone().unwrap_or_default();
    let digest = ImageRef::parse(&image)
        .ok()
        .map(|_| format!(" ({})", status.image_id))
        .unwrap_or_default();
    let mut lines = vec![
        format!(
            "Container {} is simulated by Mullion: no process runs. It would have been started with:",
            container.name
        ),
        format!("  image    {image}{digest}"),
        format!(
            "  command  {}",
            list(&container.command).unwrap_or_else(|| "the image's entrypoint".to_owned())
        ),
    ];
    match list(&container.args) {
        Some(args) => lines.push(format!("  args     {args}")),
        None if container.command.is_none() => {
            lines.push("  args     the image's default arguments".to_owned())
        }
        None => {}
    }
    let names: Vec<_> = container
        .env
        .iter()
        .flatten()
        .map(|env| env.name.as_str())
        .collect();
    if !names.is_empty() {
        lines.push(format!("  env      {}", names.join(" ")));
    }
    if let Some(user) = user(spec, container) {
        lines.push(format!("  user     {user}"));
    }
    let ports: Vec<_> = container
        .ports
        .iter()
        .flatten()
        .map(|port| {
            let mut text = format!(
                "{}/{}",
                port.container_port,
                port.protocol.as_deref().unwrap_or("TCP")
            );
            if let Some(name) = &port.name {
                let _ = write!(text, " ({name})");
            }
            text
        })
        .collect();
    if !ports.is_empty() {
        lines.push(format!("  ports    {}", ports.join(", ")));
    }
    lines
}

/// The container's own setting, or the pod's.
fn user(spec: Option<&PodSpec>, container: &Container) -> Option<String> {
    let own = container.security_context.as_ref();
    let pod = spec.and_then(|spec| spec.security_context.as_ref());
    let windows = own
        .and_then(|context| context.windows_options.as_ref()?.run_as_user_name.clone())
        .or_else(|| pod?.windows_options.as_ref()?.run_as_user_name.clone());
    let linux = own
        .and_then(|context| context.run_as_user)
        .or_else(|| pod?.run_as_user);
    windows.or_else(|| linux.map(|uid| format!("uid {uid}")))
}

fn quoted(words: &[String]) -> String {
    let plain =
        |word: &str| !word.is_empty() && !word.contains(|c: char| c.is_whitespace() || c == '"');
    let words = words.iter().map(|word| {
        if plain(word) {
            word.clone()
        } else {
            format!("{word:?}")
        }
    });
    words.collect::<Vec<_>>().join(" ")
}

fn cut(lines: &mut Vec<String>, mut limit: usize) {
    for at in 0..lines.len() {
        if lines[at].len() > limit {
            let end = (0..=limit)
                .rev()
                .find(|end| lines[at].is_char_boundary(*end))
                .unwrap_or(0);
            lines[at].truncate(end);
            lines.truncate(at + usize::from(end > 0));
            return;
        }
        limit -= lines[at].len();
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(status: Value) -> Pod {
        let pod = json!({
            "metadata": { "name": "shop", "namespace": "ns" },
            "spec": {
                "nodeName": "n1",
                "securityContext": { "windowsOptions": { "runAsUserName": "ContainerUser" } },
                "initContainers": [{ "name": "setup", "image": "busybox" }],
                "containers": [
                    { "name": "web", "image": "nginx:1.27", "command": ["nginx", "-g", "daemon off;"],
                      "env": [{ "name": "TOKEN", "value": "secret" }, { "name": "MODE" }],
                      "ports": [{ "containerPort": 80, "name": "http" }, { "containerPort": 53, "protocol": "UDP" }] },
                    { "name": "log", "image": "log:1" },
                ],
            },
            "status": { "containerStatuses": [status] },
        });
        serde_json::from_value(pod).expect("a pod")
    }

    fn running() -> Value {
        json!({ "name": "web", "image": "", "imageID": "docker.io/library/nginx@sha256:12", "ready": true, "restartCount": 0,
            "containerID": "containerd://1", "state": { "running": { "startedAt": "2026-01-27T10:00:00Z" } } })
    }

    fn of(container: &str) -> LogOptions {
        LogOptions {
            container: Some(container.to_owned()),
            ..LogOptions::default()
        }
    }

    fn at(second: i64) -> Timestamp {
        "2026-01-27T10:00:00Z"
            .parse::<Timestamp>()
            .expect("a timestamp")
            + SignedDuration::from_secs(second)
    }

    #[test]
    fn the_log_says_that_nothing_ran_and_what_would_have_without_any_secret() {
        let lines = lines(&pod(running()), &of("web"), at(5))
            .expect("it runs")
            .concat();
        assert_eq!(
            lines,
            "Container web is simulated by Mullion: no process runs. It would have been started with:\n  \
               image    nginx:1.27 (docker.io/library/nginx@sha256:12)\n  \
               command  nginx -g \"daemon off;\"\n  \
               env      TOKEN MODE\n  \
               user     ContainerUser\n  \
               ports    80/TCP (http), 53/UDP\n"
        );
    }

    #[test]
    fn tail_since_timestamps_and_limit_cut_as_asked() {
        let pod = pod(running());
        let get = |options: LogOptions| lines(&pod, &options, at(60)).expect("it runs");
        assert_eq!(
            get(LogOptions {
                tail_lines: Some(1),
                ..of("web")
            }),
            ["  ports    80/TCP (http), 53/UDP\n"]
        );
        assert_eq!(
            get(LogOptions {
                tail_lines: Some(0),
                ..of("web")
            })
            .len(),
            0
        );
        assert_eq!(
            get(LogOptions {
                since_seconds: Some(30),
                ..of("web")
            })
            .len(),
            0
        );
        assert_eq!(
            get(LogOptions {
                since_seconds: Some(90),
                ..of("web")
            })
            .len(),
            6
        );
        assert_eq!(
            get(LogOptions {
                limit_bytes: Some(9),
                ..of("web")
            }),
            ["Container"]
        );
        let stamped = get(LogOptions {
            timestamps: true,
            tail_lines: Some(1),
            ..of("web")
        });
        assert_eq!(
            stamped,
            ["2026-01-27T10:00:00.000000000Z   ports    80/TCP (http), 53/UDP\n"]
        );
    }

    #[test]
    fn errors_are_upstreams() {
        let waiting = |reason: &str| {
            json!({ "name": "web", "image": "", "imageID": "", "ready": false, "restartCount": 0,
                "state": { "waiting": { "reason": reason } } })
        };
        let previous = LogOptions {
            previous: true,
            ..of("web")
        };
        let cases = [
            (
                running(),
                LogOptions::default(),
                "a container name must be specified for pod shop, choose one of: [web log] or one of the init containers: [setup]",
            ),
            (
                running(),
                of("db"),
                "container db is not valid for pod shop",
            ),
            (
                running(),
                of("log"),
                "container \"log\" in pod \"shop\" is not available",
            ),
            (
                running(),
                previous,
                "previous terminated container \"web\" in pod \"shop\" not found",
            ),
            (
                waiting("PodInitializing"),
                of("web"),
                "container \"web\" in pod \"shop\" is waiting to start: PodInitializing",
            ),
            (
                waiting("ImagePullBackOff"),
                of("web"),
                "container \"web\" in pod \"shop\" is waiting to start: trying and failing to pull image",
            ),
        ];
        for (status, options, message) in cases {
            assert_eq!(
                lines(&pod(status), &options, at(0))
                    .unwrap_err()
                    .to_string(),
                message
            );
        }
    }

    #[test]
    fn the_run_before_is_found_where_there_was_one() {
        let status = json!({ "name": "web", "image": "", "imageID": "", "ready": false, "restartCount": 1,
            "state": { "waiting": { "reason": "CrashLoopBackOff" } },
            "lastState": { "terminated": { "exitCode": 1, "startedAt": "2026-01-27T09:59:00Z", "containerID": "containerd://0" } } });
        let pod = pod(status);
        for options in [
            of("web"),
            LogOptions {
                previous: true,
                ..of("web")
            },
        ] {
            assert_eq!(
                lines(&pod, &options, at(0)).expect("it ran before").len(),
                6
            );
        }
    }
}
