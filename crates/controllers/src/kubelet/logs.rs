//! The log of a simulated container, for `kubectl logs`.
//!
//! No process runs, and no output is invented: the first line says that the container is simulated, the others show what
//! would have been started: image, command and arguments with variables expanded (see [`environment`]), and so on. The API
//! server chooses the container and applies the request's options.

use std::{borrow::Cow, fmt::Write as _, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, ContainerStatus, Pod, PodSpec};
use kube::ResourceExt;
use mullion_engine::images::ImageRef;

use super::{
    environment::{self, Sources, Variables},
    pod::ephemeral,
};
use crate::{Context, Informer};

/// How often a followed container is checked.
const POLL: Duration = Duration::from_millis(500);

/// The log of one run of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// When the run started; all lines have this time.
    pub started_at: Timestamp,
    /// The lines without line breaks.
    pub lines: Vec<String>,
}

/// Returns the log of a container's present or last run, or of the run before if `previous`; `None` if there is no such run.
pub async fn run(context: &Context, pod: &Pod, container: &str, previous: bool) -> Option<Run> {
    let definition = definition_of(pod, container)?;
    let sources = Sources::of(context, pod, &definition).await;
    run_with(&sources, pod, &definition, previous)
}

/// Finds a container of any kind.
fn definition_of<'a>(pod: &'a Pod, name: &str) -> Option<Cow<'a, Container>> {
    let spec = pod.spec.as_ref()?;
    let inits = spec.init_containers.iter().flatten();
    let others = spec.containers.iter().chain(inits).map(Cow::Borrowed);
    let ephemeral = spec.ephemeral_containers.iter().flatten();
    let ephemeral = ephemeral.map(|own| Cow::Owned(ephemeral::container(own)));
    let mut all = others.chain(ephemeral);
    all.find(|candidate| candidate.name == name)
}

fn run_with(sources: &Sources, pod: &Pod, container: &Container, previous: bool) -> Option<Run> {
    let status = status_of(pod, &container.name)?;
    let started_at = started_at(status, previous)?;
    let variables = environment::variables(pod, container, sources, started_at);
    Some(Run {
        started_at,
        lines: start_report(pod.spec.as_ref(), container, status, &variables),
    })
}

/// Waits until the container's present run has ended or the pod is deleted.
pub async fn until_stopped(pods: Informer<Pod>, pod: &Pod, container: &str) {
    let run = running_id(pod, container);
    let (namespace, name) = (pod.namespace().unwrap_or_default(), pod.name_any());
    let goes_on = || {
        pods.get(&namespace, &name)
            .and_then(|pod| running_id(&pod, container))
            == run
    };
    // The id changes with every restart, so following ends with this run, as `kubectl logs -f` does.
    while run.is_some() && goes_on() {
        tokio::time::sleep(POLL).await;
    }
}

/// Returns when a run started; `None` if the container never ran.
fn started_at(status: &ContainerStatus, previous: bool) -> Option<Timestamp> {
    let (state, last) = (status.state.as_ref(), status.last_state.as_ref());
    let ended = |state: Option<&k8s_openapi::api::core::v1::ContainerState>| {
        let ended = state?.terminated.as_ref()?;
        // An exit without a container id is one that the kubelet made up for a container that never ran.
        ended.container_id.as_ref()?;
        Some(
            ended
                .started_at
                .as_ref()
                .map_or(Timestamp::UNIX_EPOCH, |at| at.0),
        )
    };
    if previous {
        return ended(last);
    }
    let running = state.and_then(|state| state.running.as_ref());
    let running = running.map(|running| {
        running
            .started_at
            .as_ref()
            .map_or(Timestamp::UNIX_EPOCH, |at| at.0)
    });
    running.or_else(|| ended(state)).or_else(|| ended(last))
}

fn status_of<'a>(pod: &'a Pod, container: &str) -> Option<&'a ContainerStatus> {
    let status = pod.status.as_ref()?;
    let mut all = status
        .container_statuses
        .iter()
        .chain(&status.init_container_statuses)
        .chain(&status.ephemeral_container_statuses)
        .flatten();
    all.find(|status| status.name == container)
}

fn running_id(pod: &Pod, container: &str) -> Option<String> {
    let status = status_of(pod, container)?;
    status.state.as_ref()?.running.as_ref()?;
    status.container_id.clone()
}

/// Returns the lines that describe what would have been started.
fn start_report(
    spec: Option<&PodSpec>,
    container: &Container,
    status: &ContainerStatus,
    variables: &Variables,
) -> Vec<String> {
    let list = |words: &Option<Vec<String>>| {
        let words = words.as_ref().filter(|words| !words.is_empty())?;
        let expanded = words
            .iter()
            .map(|word| environment::expand(word, |name| variables.get(name)));
        Some(quoted(&expanded.collect::<Vec<_>>()))
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

/// Returns the user of the container: its own setting, or the pod's.
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

    fn run(pod: &Pod, container: &str, previous: bool) -> Option<Run> {
        let definition = definition_of(pod, container)?;
        run_with(&Sources::default(), pod, &definition, previous)
    }

    fn running() -> Value {
        json!({ "name": "web", "image": "", "imageID": "docker.io/library/nginx@sha256:12", "ready": true, "restartCount": 0,
            "containerID": "containerd://1", "state": { "running": { "startedAt": "2026-01-27T10:00:00Z" } } })
    }

    #[test]
    fn the_log_says_that_nothing_ran_and_what_would_have_without_any_secret() {
        let run = run(&pod(running()), "web", false).expect("it runs");
        assert_eq!(
            run.lines.join("\n"),
            "Container web is simulated by Mullion: no process runs. It would have been started with:\n  \
               image    nginx:1.27 (docker.io/library/nginx@sha256:12)\n  \
               command  nginx -g \"daemon off;\"\n  \
               env      TOKEN MODE\n  \
               user     ContainerUser\n  \
               ports    80/TCP (http), 53/UDP"
        );
        assert_eq!(run.started_at.to_string(), "2026-01-27T10:00:00Z");
    }

    #[test]
    fn variables_in_the_command_are_replaced_as_the_kubelet_does() {
        let mut pod = pod(running());
        let web = &mut pod.spec.as_mut().expect("a spec").containers[0];
        web.command = Some(vec!["$(TOKEN)".to_owned(), "$$(TOKEN)".to_owned()]);
        web.args = Some(
            ["$(NONE)", "$$listener", "a $(MODE)"]
                .map(str::to_owned)
                .into(),
        );
        let lines = run(&pod, "web", false).expect("it runs").lines;
        assert_eq!(lines[2], "  command  secret $(TOKEN)");
        assert_eq!(lines[3], "  args     $(NONE) $listener \"a \"");
    }

    #[test]
    fn a_container_that_never_ran_has_no_log() {
        let waiting = json!({ "name": "web", "image": "", "imageID": "", "ready": false, "restartCount": 0,
            "state": { "waiting": { "reason": "ContainerCreating" } } });
        assert_eq!(run(&pod(waiting), "web", false), None);
        assert_eq!(run(&pod(running()), "log", false), None);
        assert_eq!(run(&pod(running()), "web", true), None);
    }

    #[test]
    fn the_run_before_is_found_where_there_was_one() {
        let status = json!({ "name": "web", "image": "", "imageID": "", "ready": false, "restartCount": 1,
            "state": { "waiting": { "reason": "CrashLoopBackOff" } },
            "lastState": { "terminated": { "exitCode": 1, "startedAt": "2026-01-27T09:59:00Z", "containerID": "containerd://0" } } });
        let pod = pod(status);
        for previous in [false, true] {
            assert!(run(&pod, "web", previous).is_some_and(|run| run.lines.len() == 6));
        }
    }
}
